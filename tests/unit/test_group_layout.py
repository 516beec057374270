"""Where a process may make control groups, from the kernel's own lists."""

from __future__ import annotations

from pathlib import Path

from callsheet.managers.sandbox.cgroups import find_layout

HYBRID_MOUNTS = """\
24 30 0:21 / /proc rw,nosuid shared:5 - proc proc rw
30 24 0:26 / /sys/fs/cgroup rw shared:9 - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 / /sys/fs/cgroup/cpuset rw shared:12 - cgroup cgroup rw,cpuset
34 30 0:30 /docker/1 /sys/fs/cgroup/memory rw shared:13 - cgroup cgroup rw,memory
"""
HYBRID_GROUPS = "4:memory:/docker/1/own\n3:cpuset:/\n1:cpu,cpuacct:/x\n0::/user/session\n"


def test_a_hybrid_host_has_limits_in_version_1_and_the_rest_in_version_2() -> None:
    layout = find_layout(HYBRID_MOUNTS, HYBRID_GROUPS)
    assert layout is not None
    assert layout.core == Path("/sys/fs/cgroup/unified/user/session")
    assert layout.controllers == {
        "cpuset": Path("/sys/fs/cgroup/cpuset"),
        "memory": Path("/sys/fs/cgroup/memory/own"),
    }


def test_without_a_version_2_tree_there_is_no_layout() -> None:
    mounts = "\n".join(line for line in HYBRID_MOUNTS.splitlines() if "cgroup2" not in line)
    assert find_layout(mounts, HYBRID_GROUPS) is None


def test_a_pure_version_2_host_has_the_core_alone() -> None:
    mounts = "31 30 0:27 / /sys/fs/cgroup rw shared:10 - cgroup2 cgroup2 rw\n"
    layout = find_layout(mounts, "0::/user.slice\n")
    assert layout is not None
    assert layout.core == Path("/sys/fs/cgroup/user.slice")
    assert layout.controllers == {}
