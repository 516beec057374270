"""Where a process may make control groups, from the kernel's own lists."""

from __future__ import annotations

from pathlib import Path

from callsheet.managers.sandbox.cgroups import Form, GroupLayout, find_layout, form_of, limit_capabilities

HYBRID_MOUNTS = """\
24 30 0:21 / /proc rw,nosuid shared:5 - proc proc rw
30 24 0:26 / /sys/fs/cgroup rw shared:9 - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/cpuset rw shared:12 - cgroup cgroup rw,cpuset
34 30 0:30 /docker/1 /sys/fs/cgroup/memory rw shared:13 - cgroup cgroup rw,memory
"""
HYBRID_GROUPS = "4:memory:/docker/1/own\n3:cpuset:/\n1:cpu,cpuacct:/x\n0::/user/session\n"
UNIFIED_MOUNTS = "31 30 0:27 / /sys/fs/cgroup rw shared:10 - cgroup2 cgroup2 rw\n"


def test_a_hybrid_host_has_limits_in_version_1_and_the_rest_in_version_2() -> None:
    layout = find_layout(HYBRID_MOUNTS, HYBRID_GROUPS)
    assert layout is not None
    assert layout.core == Path("/sys/fs/cgroup/unified/user/session")
    assert layout.controllers == {
        "cpu": Path("/sys/fs/cgroup/cpu,cpuacct/x"),
        "cpuset": Path("/sys/fs/cgroup/cpuset"),
        "memory": Path("/sys/fs/cgroup/memory/own"),
    }
    assert form_of(layout) is Form.HYBRID


def test_without_a_version_2_tree_there_is_no_layout() -> None:
    mounts = "\n".join(line for line in HYBRID_MOUNTS.splitlines() if "cgroup2" not in line)
    assert find_layout(mounts, HYBRID_GROUPS) is None


def test_a_pure_version_2_host_has_the_core_alone_before_controllers_are_enabled() -> None:
    layout = find_layout(UNIFIED_MOUNTS, "0::/user.slice\n")
    assert layout is not None
    assert (layout.core, layout.controllers) == (Path("/sys/fs/cgroup/user.slice"), {})
    assert form_of(layout) is Form.AFFINITY


def test_a_manager_that_was_moved_down_makes_its_groups_above() -> None:
    layout = find_layout(UNIFIED_MOUNTS, "0::/system.slice/callsheet.service/callsheet-managers\n")
    assert layout is not None
    assert layout.core == Path("/sys/fs/cgroup/system.slice/callsheet.service")


def test_a_container_sees_its_own_group_as_the_root() -> None:
    layout = find_layout("31 30 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/\n")
    assert layout is not None
    assert layout.core == Path("/sys/fs/cgroup")


def test_directories_are_named_once() -> None:
    core = Path("/sys/fs/cgroup/x")
    assert GroupLayout(core, {"cpu": core, "memory": core}).directories() == [core]


def test_the_registration_tells_what_cannot_be_done() -> None:
    nothing = dict(limit_capabilities(None))
    assert nothing.pop("cgroups") == "affinity"
    assert set(nothing.values()) == {"no"}
    assert set(nothing) == {"hard_cpuset", "quota", "memory_hard", "pids_hard", "freeze", "psi", "cpu_accounting"}


def test_a_user_without_a_delegated_cpuset_is_told_so(tmp_path: Path) -> None:
    layout = GroupLayout(tmp_path, dict.fromkeys(("cpu", "memory", "pids"), tmp_path))
    told = limit_capabilities(layout)
    assert (told["cgroups"], told["hard_cpuset"], told["quota"], told["memory_hard"]) == ("v2", "no", "yes", "yes")
    assert told["psi"] == "no"
    (tmp_path / "cpu.pressure").write_text("some avg10=0.00\n")
    assert limit_capabilities(layout)["psi"] == "yes"
