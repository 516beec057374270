"""The control groups that the engine made for a container, where this process may write them."""

from __future__ import annotations

import os
from pathlib import Path

from callsheet.managers.sandbox.cgroups import GroupLayout, SandboxGroup, find_layout


def adopt_container(
    first_pid: int, memory_mib: int, *, with_cpu_tree: bool, proc: Path = Path("/proc")
) -> SandboxGroup | None:
    """Returns the groups of a running container; None where they cannot be found or written.

    Args:
        first_pid: Its first process as this process sees it.
        memory_mib: Its memory limit.
        with_cpu_tree: Whether a "cpu" tree of its own is used, see `build`.
    """
    layout = container_layout(first_pid, proc)
    if layout is None:
        return None
    if not with_cpu_tree and layout.own_tree("cpu") is not None:
        layout = layout.without("cpu")
    try:
        return SandboxGroup.adopt(layout, memory_mib)
    except OSError:
        return None


def container_layout(first_pid: int, proc: Path = Path("/proc")) -> GroupLayout | None:
    """Returns the groups that a process is directly in, if all of them can be written; None otherwise.

    A process in another control group namespace shows paths that do not exist here, which its absence from the groups
    gives away.
    """
    try:
        layout = find_layout((proc / "self/mountinfo").read_text(), (proc / str(first_pid) / "cgroup").read_text())
        if layout is None or str(first_pid) not in (layout.core / "cgroup.procs").read_text().split():
            return None
    except (OSError, ValueError):
        return None
    version_2 = (layout.core / "cgroup.controllers").read_text().split()
    controllers = {**dict.fromkeys((name for name in version_2 if _limits(name)), layout.core), **layout.controllers}
    found = GroupLayout(layout.core, controllers)
    return found if all(os.access(path / "cgroup.procs", os.W_OK) for path in found.directories()) else None


def _limits(controller: str) -> bool:
    return controller in {"cpu", "cpuset", "memory", "pids"}
