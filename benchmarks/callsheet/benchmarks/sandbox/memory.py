"""What an idle sandbox takes of the machine's memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import psutil
from callsheet.managers.sandbox.cgroups.layout import find_layout

_MIB = 1 << 20
_TOOL = "bwrap"


@dataclass(frozen=True, slots=True)
class IdleMemory:
    """Means over sandboxes, in MiB.

    Attributes:
        processes_mib: Private memory and the share of what is shared (PSS) of its first process and of the tool that
            holds it; None where that cannot be read.
        group_mib: What its group is charged with: kernel memory and files in memory too, but shared pages only where
            it touched them first; None without a memory group of its own.
    """

    processes_mib: float | None
    group_mib: float | None

    @property
    def mib(self) -> float | None:
        """The larger of both."""
        return max((each for each in (self.processes_mib, self.group_mib) if each is not None), default=None)


def idle_memory(first_processes: Sequence[int]) -> IdleMemory:
    """Measures sandboxes by the ids of their first processes."""
    return IdleMemory(
        _mean([_processes_mib(pid) for pid in first_processes]), _mean([_group_mib(pid) for pid in first_processes])
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _processes_mib(pid: int) -> float | None:
    try:
        first = psutil.Process(pid)
        around = [parent for parent in first.parents() if parent.name() == _TOOL]
        return float(sum(each.memory_full_info().pss for each in (first, *around))) / _MIB
    except psutil.Error:
        # The agent closes itself to its own user.
        return None


def _group_mib(pid: int) -> float | None:
    with suppress(OSError):
        charged = _charge_of_group(str(pid))
        # Without a group of its own it is in this process's, which is charged with everything.
        if charged is not None and charged != _charge_of_group("self"):
            return int(charged.read_text()) / _MIB
    return None


def _charge_of_group(process: str) -> Path | None:
    """Returns the file that says how much memory a sandbox's group is charged with, given its first process."""
    layout = find_layout(Path("/proc/self/mountinfo").read_text(), Path(f"/proc/{process}/cgroup").read_text())
    if layout is None:
        return None
    if "memory" in layout.controllers:
        return layout.controllers["memory"] / "memory.usage_in_bytes"
    # In version 2 the first process is in a leaf of its own, and the limit is on the group above.
    return layout.core.parent / "memory.current"
