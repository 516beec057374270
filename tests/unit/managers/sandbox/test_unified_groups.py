"""Control groups of version 2, on a tree of files that follows the kernel's rules: the machine may have none."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from callsheet.managers.sandbox.cgroups import Form, GroupLayout, SandboxGroup, files, form_of, probe_layout
from callsheet.managers.sandbox.cgroups.delegation import MANAGERS_GROUP, enable_controllers
from callsheet.managers.sandbox.cgroups.limits import LegacyLimits, UnifiedLimits

from tests.support.cgroups import FakeCgroups, install

ALL = ("cpuset", "cpu", "memory", "pids")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCgroups:
    root = tmp_path / "unit"
    root.mkdir()
    made = FakeCgroups(root, "io", *ALL)
    install(monkeypatch, made)
    return made


def layout_of(fake: FakeCgroups) -> GroupLayout:
    layout = probe_layout(fake.root)
    assert layout is not None
    return layout


def make_sandbox(fake: FakeCgroups) -> tuple[SandboxGroup, Path]:
    """A sandbox in the groups of a manager, and its group."""
    return SandboxGroup.make(layout_of(fake), "one", memory_mib=256, max_processes=64), fake.root / "one"


@pytest.fixture
def without_cpuset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCgroups:
    root = tmp_path / "user@1000.service"
    root.mkdir()
    made = FakeCgroups(root, "cpu", "memory", "pids")
    install(monkeypatch, made)
    return made


def test_the_manager_moves_down_and_hands_the_controllers_on(fake: FakeCgroups) -> None:
    (fake.root / "cgroup.procs").write_text(f"{os.getpid()}\n4711\n")
    layout = layout_of(fake)
    assert form_of(layout) is Form.V2
    assert set(layout.controllers) == set(ALL)
    assert fake.read(fake.root, "cgroup.procs") == ""
    assert fake.read(fake.root / MANAGERS_GROUP, "cgroup.procs").split() == [str(os.getpid()), "4711"]
    assert "io" not in fake.read(fake.root, "cgroup.subtree_control")


def test_a_second_manager_of_the_unit_finds_all_done(fake: FakeCgroups) -> None:
    (fake.root / "cgroup.procs").write_text("4711\n")
    assert layout_of(fake) == layout_of(fake)


def test_a_unit_that_was_not_delegated_is_left_as_it_is(fake: FakeCgroups) -> None:
    (fake.root / "cgroup.procs").write_text("4711\n")
    assert list(enable_controllers(fake.root, ALL)) == []
    assert fake.read(fake.root, "cgroup.procs") == "4711"
    assert not (fake.root / MANAGERS_GROUP).exists()


def test_a_mark_of_systemd_is_a_delegation(fake: FakeCgroups, monkeypatch: pytest.MonkeyPatch) -> None:
    (fake.root / "cgroup.procs").write_text("4711\n")
    monkeypatch.setattr(os, "getxattr", lambda _, name: b"1" if name == "user.delegate" else b"0")
    assert list(enable_controllers(fake.root, ALL)) == list(ALL)


def test_the_machines_root_group_may_keep_its_processes(fake: FakeCgroups) -> None:
    (fake.root / "cgroup.type").unlink()
    (fake.root / "cgroup.procs").write_text("1\n")
    assert list(enable_controllers(fake.root, ALL)) == list(ALL)
    assert fake.read(fake.root, "cgroup.procs") == "1"


def test_a_controller_that_is_not_there_costs_only_itself(without_cpuset: FakeCgroups) -> None:
    assert set(layout_of(without_cpuset).controllers) == {"cpu", "memory", "pids"}


def test_a_sandbox_has_its_limits_on_one_group(fake: FakeCgroups) -> None:
    sandbox, one = make_sandbox(fake)
    # Groups below must not need limits of their own.
    limits = {"memory.max": str(256 << 20), "memory.swap.max": "0", "pids.max": "66", "cgroup.subtree_control": ""}
    assert {name: fake.read(one, name) for name in limits} == limits
    assert (sandbox.pins_cores, sandbox.weight_file) == (True, one / "cpu.weight")
    assert sorted(path.name for path in one.iterdir() if path.is_dir()) == ["commands", "init"]


def test_a_grant_names_cores_and_their_memory_nodes(fake: FakeCgroups, monkeypatch: pytest.MonkeyPatch) -> None:
    from callsheet.managers.sandbox.cgroups import limits

    monkeypatch.setattr(limits, "_numa_node_by_core", lambda: {0: 0, 1: 0, 2: 1, 3: 1})
    sandbox, one = make_sandbox(fake)
    sandbox.set_cores({3, 2})
    assert (fake.read(one, "cpuset.cpus"), fake.read(one, "cpuset.mems")) == ("2,3", "1")
    sandbox.set_cores({0, 3})
    assert (fake.read(one, "cpuset.cpus"), fake.read(one, "cpuset.mems")) == ("0,3", "0,1")


def test_cores_of_no_known_node_keep_all_memory(fake: FakeCgroups, monkeypatch: pytest.MonkeyPatch) -> None:
    from callsheet.managers.sandbox.cgroups import limits

    monkeypatch.setattr(limits, "_numa_node_by_core", dict)
    sandbox, one = make_sandbox(fake)
    sandbox.set_cores({0})
    assert fake.read(one, "cpuset.mems") == "0,1"


def test_without_a_cpuset_a_grant_is_a_quota(without_cpuset: FakeCgroups) -> None:
    sandbox, one = make_sandbox(without_cpuset)
    sandbox.set_cores({0, 1})
    assert (sandbox.pins_cores, without_cpuset.read(one, "cpu.max")) == (False, "200000 100000")


def test_counters_of_met_limits(fake: FakeCgroups) -> None:
    sandbox, one = make_sandbox(fake)
    before = sandbox.begin_measuring()
    (one / "memory.events").write_text("low 0\noom 2\noom_kill 2\n")
    (one / "pids.events").write_text("max 7\n")
    told = [(each.out_of_memory, each.process_limit) for each in (before, sandbox.limit_events())]
    assert told == [(0, 0), (2, 7)]
    sandbox.remove()


NEW_KERNEL = "anon 3000000\nfile 900000000\nkernel 2000000\nshmem 4000000\nsock 1000000\nslab 1500000\n"
OLD_KERNEL = (
    "anon 3000000\nfile 900000000\nkernel_stack 500000\npagetables 500000\nshmem 4000000\nsock 1000000\nslab 1000000\n"
)


@pytest.mark.parametrize("told", [NEW_KERNEL, OLD_KERNEL])
def test_what_cannot_be_taken_back_is_read_once_all_stands_still(fake: FakeCgroups, told: str) -> None:
    sandbox, one = make_sandbox(fake)
    (one / "memory.stat").write_text(f"{told}slab_reclaimable 1000000\n")
    assert sandbox.held_mib() is None, "what waits in the kernel may still take some"
    (one / "commands" / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    uncounted = (os.cpu_count() or 1) * 64 * os.sysconf("SC_PAGESIZE")
    assert sandbox.held_mib() == -(-(9_000_000 + uncounted) >> 20)


def test_version_1_counts_the_kernel_and_sockets_apart(tmp_path: Path) -> None:
    (tmp_path / "memory.stat").write_text(
        "rss 1\nshmem 1\ntotal_cache 7777777\ntotal_rss 3000000\ntotal_shmem 4000000\n"
    )
    limits = LegacyLimits({"memory": tmp_path})
    assert limits.held_bytes() == 7_000_000
    (tmp_path / "memory.kmem.usage_in_bytes").write_text("500000\n")
    (tmp_path / "memory.kmem.tcp.usage_in_bytes").write_text("100000\n")
    assert limits.held_bytes() == 7_600_000


@pytest.mark.parametrize(("locked_file", "fresh"), [(0, 0), (20_000_000, 0), (20_000_000, 500_000)])
@pytest.mark.parametrize("version", [1, 2])
def test_locked_pages_of_files_are_held_and_no_page_counts_twice(
    tmp_path: Path, version: int, locked_file: int, fresh: int
) -> None:
    """Of 7 MB on no disk 4 are locked, too; what is fresh is on none of the kernel's lists yet."""
    limits = LegacyLimits({"memory": tmp_path}) if version == 1 else UnifiedLimits(tmp_path, {"memory"})
    prefix = "total_" if version == 1 else ""
    pages = {
        "rss" if version == 1 else "anon": 3_000_000 + fresh,
        "shmem": 4_000_000,
        "inactive_anon": 2_000_000,
        "active_anon": 1_000_000,
        "inactive_file": 900_000_000,
        "unevictable": 4_000_000 + locked_file,
    }
    (tmp_path / "memory.stat").write_text("".join(f"{prefix}{name} {size}\n" for name, size in pages.items()))
    assert limits.held_bytes() == 7_000_000 + max(locked_file, fresh)


def test_without_a_group_of_memory_nobody_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "unit"
    root.mkdir()
    fake = FakeCgroups(root, "cpu", "pids")
    install(monkeypatch, fake)
    sandbox, one = make_sandbox(fake)
    (one / "commands" / "cgroup.events").write_text("frozen 1\n")
    assert sandbox.held_mib() is None


def test_a_peak_that_cannot_be_reset_is_that_of_the_sandboxes_life(fake: FakeCgroups) -> None:
    sandbox, one = make_sandbox(fake)
    (one / "memory.peak").unlink()
    sandbox.begin_measuring()
    assert sandbox.peak_memory_bytes() == 0
    (one / "memory.peak").write_text("4096\n")
    assert sandbox.peak_memory_bytes() == 4096


def test_freezing_spares_the_first_process(fake: FakeCgroups) -> None:
    sandbox, one = make_sandbox(fake)
    (one / "commands/cgroup.events").write_text("populated 1\nfrozen 1\n")
    sandbox.freeze(True)
    assert (fake.read(one / "commands", "cgroup.freeze"), fake.read(one, "cgroup.freeze")) == ("1", "0")


def test_killing_a_leaf_kills_what_is_inside_and_nothing_else(fake: FakeCgroups) -> None:
    sandbox, one = make_sandbox(fake)
    leaf, other = sandbox.new_leaf(), sandbox.new_leaf()
    with subprocess.Popen(["sleep", "60"]) as inside, subprocess.Popen(["sleep", "60"]) as beside:
        (one / "commands/1/cgroup.threads").write_text(f"{inside.pid}\n")
        (one / "commands/2/cgroup.threads").write_text(f"{beside.pid}\n")
        leaf.kill()
        assert inside.wait(timeout=10) == -signal.SIGKILL
        assert beside.poll() is None
        beside.kill()
    assert (fake.read(one / "commands/1", "cgroup.freeze"), fake.read(one / "commands", "cgroup.freeze")) == ("1", "0")
    for entry in (*leaf.entries, *other.entries):
        os.close(entry)


def test_killing_a_leaf_reaches_what_was_forked_until_all_are_frozen(
    fake: FakeCgroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, one = make_sandbox(fake)
    leaf, members = sandbox.new_leaf(), one / "commands/1/cgroup.threads"
    with subprocess.Popen(["sleep", "60"]) as late:
        monkeypatch.setattr(files, "wait_for_event", lambda *_: members.write_text(f"{late.pid}\n"))
        leaf.kill()
        assert late.wait(timeout=10) == -signal.SIGKILL
    for entry in leaf.entries:
        os.close(entry)


def test_a_command_enters_its_leaf_as_a_thread_and_the_first_process_as_a_whole(fake: FakeCgroups) -> None:
    sandbox, one = make_sandbox(fake)
    leaf = sandbox.new_leaf()
    entered = [*leaf.entries, *sandbox.open_entries()]
    assert [os.readlink(f"/proc/self/fd/{entry}") for entry in entered] == [
        str(one / "commands/1/cgroup.threads"),
        str(one / "init/cgroup.procs"),
    ]
    assert {fake.read(one / name, "cgroup.type") for name in ("init", "commands", "commands/1")} == {"threaded"}
    for entry in entered:
        os.close(entry)


def test_a_leaf_that_was_prepared_is_taken_once(fake: FakeCgroups) -> None:
    sandbox, one = make_sandbox(fake)
    assert sandbox.take_leaf() is None
    sandbox.prepare_leaf()
    sandbox.prepare_leaf()
    leaf = sandbox.take_leaf()
    assert leaf is not None
    assert [os.readlink(f"/proc/self/fd/{entry}") for entry in leaf.entries] == [str(one / "commands/1/cgroup.threads")]
    assert sandbox.take_leaf() is None
    leaf.close()
    assert leaf.entries == []


def test_a_leaf_that_nobody_took_is_closed_with_its_sandbox(fake: FakeCgroups) -> None:
    sandbox, one = make_sandbox(fake)
    sandbox.prepare_leaf()
    assert fake.open_files() == [str(one / "commands/1/cgroup.threads")]
    sandbox.remove()
    assert fake.open_files() == []


def test_a_background_lane_is_a_group_of_little_weight(fake: FakeCgroups) -> None:
    sandbox, one = make_sandbox(fake)
    for background, weight in ((True, "5"), (False, "100")):
        sandbox.set_background(background)
        assert fake.read(one, "cpu.weight") == weight


def test_adopted_groups_stay_when_the_sandbox_ends(fake: FakeCgroups) -> None:
    layout_of(fake)
    container = fake.root / "container"
    fake.make_group(container)
    (container / "cgroup.procs").write_text("4711\n")
    sandbox = SandboxGroup.adopt(GroupLayout(container, dict.fromkeys(ALL, container)), memory_mib=64)
    sandbox.set_cores({0})
    assert fake.read(container, "cpuset.cpus") == "0"
    assert (container / "commands").is_dir()
    assert fake.read(container, "memory.max") == "max"
    sandbox.set_background(True)
    assert fake.read(container, "cpu.weight") == "5"


def test_adopted_groups_may_go_with_their_container(fake: FakeCgroups) -> None:
    layout_of(fake)
    container = fake.root / "container"
    fake.make_group(container)
    sandbox = SandboxGroup.adopt(GroupLayout(container, dict.fromkeys(ALL, container)), memory_mib=64)
    shutil.rmtree(container)
    sandbox.kill()
    sandbox.remove()
    with pytest.raises(FileNotFoundError):
        sandbox.new_leaf()
