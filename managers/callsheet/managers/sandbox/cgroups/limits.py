"""The limits of one sandbox's groups: the same for both versions, under their different files."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from callsheet.managers.node import numa_node_by_core, parse_core_list
from callsheet.managers.sandbox.cgroups import files

SOCKET_MEMORY_FILE = "memory.kmem.tcp.limit_in_bytes"
"""File of version 1, which counts the buffers of sockets apart from other memory."""

_QUOTA_PERIOD_US = 100_000
# Sockets may have this part of a sandbox's memory in their buffers, where they are not counted with it.
_BUFFERS_SHARE = 4


@dataclass(frozen=True, slots=True)
class LimitEvents:
    """How often a sandbox met its limits so far."""

    out_of_memory: int
    process_limit: int


class Limits(Protocol):
    """Limits and counters of one sandbox.

    To limit needs the controller: memory, pids, cpu, and cpuset for the cores. Counters of a missing one are 0.
    """

    def limit_memory(self, size_bytes: int) -> None:
        """Bounds the memory of all processes and of files in memory together."""

    def limit_buffers(self, size_bytes: int) -> None:
        """Bounds the buffers of sockets to a part of a memory limit, where that does not count them."""

    def limit_processes(self, count: int) -> None:
        """Bounds the processes and threads."""

    def limit_cpu(self, cores: int | None) -> None:
        """Bounds the CPU time to that of so many cores; None lifts the bound."""

    def set_cores(self, cores: Collection[int]) -> None:
        """Puts all processes on these cores, and new memory on their NUMA nodes."""

    def begin_peak(self) -> None:
        """Forgets the peak of memory so far, where the kernel can."""

    def peak_bytes(self) -> int:
        """Most memory used since `begin_peak`."""

    def held_bytes(self) -> int:
        """Memory that the kernel cannot take back: all but pages that are on a disk as well and are not locked."""

    def events(self) -> LimitEvents:
        """The counters."""

    def close(self) -> None:
        """Closes what was kept open."""


class LegacyLimits:
    """Limits in the version 1 trees."""

    def __init__(self, groups: Mapping[str, Path]) -> None:
        """Args: groups: The sandbox's group by controller, in each controller's own tree."""
        self._groups = groups
        cpuset, memory, processes = groups.get("cpuset"), groups.get("memory"), groups.get("pids")
        self._cpuset = _Cpuset(cpuset, cpuset.parent / "cpuset.mems") if cpuset is not None else None
        self._peak = files.KeptFile(memory / "memory.max_usage_in_bytes", os.O_RDWR) if memory else None
        self._killed = files.KeptFile(memory / "memory.oom_control") if memory else None
        self._refused = files.KeptFile(processes / "pids.events") if processes else None
        self._held = files.KeptFile(memory / "memory.stat") if memory else None
        apart = ("memory.kmem.usage_in_bytes", "memory.kmem.tcp.usage_in_bytes")
        self._apart = [files.KeptFile(memory / name) for name in apart] if memory else []

    def limit_memory(self, size_bytes: int) -> None:
        """Memory, and together with swap no more; beside it buffers of sockets, which this version counts apart."""
        memory = self._groups["memory"]
        files.write_setting(memory / "memory.limit_in_bytes", str(size_bytes))
        with_swap = memory / "memory.memsw.limit_in_bytes"
        if with_swap.exists():
            files.write_setting(with_swap, str(size_bytes))
        self.limit_buffers(size_bytes)

    def limit_buffers(self, size_bytes: int) -> None:
        """Buffers of sockets."""
        buffers = self._groups["memory"] / SOCKET_MEMORY_FILE
        if buffers.exists():
            files.write_setting(buffers, str(size_bytes // _BUFFERS_SHARE))

    def limit_processes(self, count: int) -> None:
        """Processes and threads."""
        files.write_setting(self._groups["pids"] / "pids.max", str(count))

    def limit_cpu(self, cores: int | None) -> None:
        """CPU time."""
        quota = -1 if cores is None else cores * _QUOTA_PERIOD_US
        files.write_setting(self._groups["cpu"] / "cpu.cfs_quota_us", str(quota))

    def set_cores(self, cores: Collection[int]) -> None:
        """Cores; a new group has none and no memory nodes, and takes no process before."""
        if self._cpuset is not None:
            self._cpuset.set(cores)

    def begin_peak(self) -> None:
        """Resets the kernel's own mark."""
        if self._peak is not None:
            self._peak.write(b"0")

    def peak_bytes(self) -> int:
        """The kernel's mark."""
        return int(self._peak.text()) if self._peak is not None else 0

    def held_bytes(self) -> int:
        """Processes, files in memory, locked pages of other files, the kernel's own, and buffers of sockets."""
        names = ("total_rss", "total_shmem", "total_inactive_anon", "total_active_anon", "total_unevictable")
        held = _kept_bytes(*self._held.numbers(*names)) if self._held is not None else 0
        for each in self._apart:
            with contextlib.suppress(FileNotFoundError):
                held += int(each.text())
        return held

    def events(self) -> LimitEvents:
        """The counters."""
        return LimitEvents(
            self._killed.numbers("oom_kill")[0] if self._killed is not None else 0,
            self._refused.numbers("max")[0] if self._refused is not None else 0,
        )

    def close(self) -> None:
        """Closes what was kept open."""
        for kept in (self._peak, self._killed, self._refused, self._held, *self._apart):
            if kept is not None:
                kept.close()


class UnifiedLimits:
    """Limits in the version 2 tree."""

    def __init__(self, group: Path, controllers: Collection[str]) -> None:
        """Args: group: The sandbox's group. controllers: Those that it has."""
        self._group = group
        self._controllers = controllers
        self._cpuset = _Cpuset(group, group.parent / "cpuset.mems.effective")
        self._peak = -1
        self._held = files.KeptFile(group / "memory.stat")
        self._killed = files.KeptFile(group / "memory.events")
        self._refused = files.KeptFile(group / "pids.events")

    def limit_memory(self, size_bytes: int) -> None:
        """Memory, and no swap."""
        files.write_setting(self._group / "memory.max", str(size_bytes))
        if (self._group / "memory.swap.max").exists():
            files.write_setting(self._group / "memory.swap.max", "0")

    def limit_buffers(self, size_bytes: int) -> None:
        """They are in the memory limit."""

    def limit_processes(self, count: int) -> None:
        """Processes and threads."""
        files.write_setting(self._group / "pids.max", str(count))

    def limit_cpu(self, cores: int | None) -> None:
        """CPU time."""
        quota = "max" if cores is None else str(cores * _QUOTA_PERIOD_US)
        files.write_setting(self._group / "cpu.max", f"{quota} {_QUOTA_PERIOD_US}")

    def set_cores(self, cores: Collection[int]) -> None:
        """Cores."""
        self._cpuset.set(cores)

    def begin_peak(self) -> None:
        """Starts a peak of its own on a descriptor (Linux 6.12); before that, the peak is that of the group's life."""
        if "memory" not in self._controllers:
            return
        with contextlib.suppress(OSError):
            if self._peak < 0:
                self._peak = os.open(self._group / "memory.peak", os.O_RDWR | os.O_CLOEXEC)
            os.pwrite(self._peak, b"reset", 0)

    def peak_bytes(self) -> int:
        """The peak of the descriptor, else of the group's life (Linux 5.19), else 0."""
        if self._peak >= 0:
            return int(os.pread(self._peak, 64, 0))
        with contextlib.suppress(OSError):
            return int((self._group / "memory.peak").read_text())
        return 0

    def held_bytes(self) -> int:
        """The same; the kernel's own in parts before Linux 5.18."""
        pages = ("anon", "shmem", "inactive_anon", "active_anon", "unevictable")
        own = ("sock", "slab_reclaimable", "kernel", "slab", "kernel_stack", "pagetables", "percpu")
        *kept, sockets, freed, kernel, slab, stacks, tables, percpu = self._held.numbers(*pages, *own)
        return _kept_bytes(*kept) + sockets + (kernel or slab + stacks + tables + percpu) - freed

    def events(self) -> LimitEvents:
        """The counters."""
        return LimitEvents(
            self._killed.numbers("oom_kill")[0] if "memory" in self._controllers else 0,
            self._refused.numbers("max")[0] if "pids" in self._controllers else 0,
        )

    def close(self) -> None:
        """Closes what was kept open."""
        for kept in (self._held, self._killed, self._refused):
            kept.close()
        if self._peak >= 0:
            os.close(self._peak)
            self._peak = -1


class _Cpuset:
    """The cores of a group, with the memory nodes next to them."""

    def __init__(self, group: Path, usable_memory_nodes: Path) -> None:
        """Args: usable_memory_nodes: File of the group above that lists the nodes that groups below it may name."""
        self._group = group
        self._usable = usable_memory_nodes
        self._nodes: set[int] = set()

    def set(self, cores: Collection[int]) -> None:
        """Writes the memory nodes only if they change: a change of version 2 moves the pages that are there already."""
        by_core = _numa_node_by_core()
        nodes = {by_core[core] for core in cores if core in by_core}
        if not self._nodes or nodes != self._nodes:
            usable = parse_core_list(self._usable.read_text())
            files.write_setting(self._group / "cpuset.mems", ",".join(map(str, sorted((nodes & usable) or usable))))
            self._nodes = nodes
        files.write_setting(self._group / "cpuset.cpus", ",".join(map(str, sorted(cores))))


def _kept_bytes(anonymous: int, shared: int, inactive: int, active: int, unevictable: int) -> int:
    """Pages that are on no disk, and locked pages of files that are.

    The lists of anonymous pages hold shared memory, too, but no locked page. Locked pages of all kinds have one list.
    A new page is on no list for a moment.
    """
    return max(anonymous + shared, inactive + active + unevictable)


@functools.cache
def _numa_node_by_core() -> Mapping[int, int]:
    """The machine's table, read once: a grant is a matter of microseconds."""
    return numa_node_by_core()
