"""Bounds one sandbox's part of what the kernel has for all, beside its memory, processes and cores."""

from __future__ import annotations

import functools
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from callsheet.managers.open_files import open_files_of_commands
from callsheet.managers.sandbox.backend import SandboxSpec

_PAGE_BYTES = resource.getpagesize()
_PSEUDO_TERMINALS = 64
# Sets of semaphores: in each, in all, for each operation, and the number of sets; what Linux had until 3.19.
_SEMAPHORES = "250 32000 32 128"
_MESSAGE_QUEUES = "32"
# One sandbox may have this part of what all of the manager's user may have.
_SHARE = 4
# A sandbox with all the processes that it may have must leave room for others.
_PROCESS_SHARE = 8
_USUAL_STACK_BYTES = 8 << 20
LOCKED_BYTES = 64 << 10
"""The most that each process may lock in memory, enough for a key. A frozen sandbox keeps locked pages of files."""
# The part of a sandbox's memory that may wait in its netlink sockets beside it, and how many it has in any case.
_NETLINK_SHARE = 8
_FEWEST_NETLINK, _MOST_NETLINK = 8, 64
_USUAL_BUFFER_BYTES = 212_992
_SETTINGS = Path("/proc/sys")


@dataclass(frozen=True, slots=True)
class KernelBounds:
    """Bounds that are set in the namespaces of a sandbox, before anything runs there.

    Attributes:
        files: The most files of its file systems in memory, by path.
        terminals: The most pseudo terminals.
        settings: Of the kernel for its namespaces, by name below /proc/sys.
    """

    files: Mapping[str, int]
    terminals: int
    settings: Mapping[str, str]


def kernel_bounds(spec: SandboxSpec, files: Mapping[str, int], *, system_v: bool) -> KernelBounds:
    """Returns the bounds of a sandbox.

    Args:
        spec: What it is to be.
        files: The most files of its file systems in memory, by path.
        system_v: Whether the kernel lets System V objects be bounded; otherwise they are refused.
    """
    objects = {
        # No group may count shared memory: half of the memory, as for files.
        "kernel/shmall": str((spec.memory_mib << 20) // 2 // _PAGE_BYTES),
        "kernel/sem": _SEMAPHORES,
        "kernel/msgmni": _MESSAGE_QUEUES,
    }
    return KernelBounds(files, _PSEUDO_TERMINALS, {**_watches(), **(objects if system_v else {})})


def command_limits(spec: SandboxSpec, *, memory_counted: bool, own_user: bool) -> Mapping[str, tuple[int, int]]:
    """Returns the limits, soft and hard, of each process of a sandbox.

    Args:
        spec: The sandbox.
        memory_counted: Whether a group counts its memory.
        own_user: Whether commands run as this process's user.
    """
    most = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    locked = LOCKED_BYTES if most == resource.RLIM_INFINITY else min(most, LOCKED_BYTES)
    limits = {"RLIMIT_NOFILE": open_files_of_commands(own_user=own_user), "RLIMIT_MEMLOCK": (locked, locked)}
    return limits if memory_counted else {**limits, **memory_limits(spec.memory_mib << 20)}


def memory_limits(size_bytes: int) -> Mapping[str, tuple[int, int]]:
    """Returns the limits, soft and hard, of each process where no group counts a sandbox's memory."""
    usual, most = resource.getrlimit(resource.RLIMIT_STACK)
    # A thread's stack has the size of the soft limit.
    soft = _USUAL_STACK_BYTES if usual == resource.RLIM_INFINITY else usual
    hard = size_bytes if most == resource.RLIM_INFINITY else min(most, size_bytes)
    return {"RLIMIT_DATA": (size_bytes, size_bytes), "RLIMIT_STACK": (min(soft, hard), hard)}


def most_netlink_sockets(memory_mib: int) -> int:
    """Returns how many netlink sockets a sandbox may have: no group of memory counts what waits in them."""
    return max(_FEWEST_NETLINK, min(_MOST_NETLINK, (memory_mib << 20) // _NETLINK_SHARE // _netlink_bytes()))


@functools.cache
def _netlink_bytes() -> int:
    """The most that waits in one: its buffer, of twice the size that was asked for, and one message beyond it."""
    sizes = (_number(f"net/core/{name}_max") or _USUAL_BUFFER_BYTES for name in ("rmem", "wmem"))
    return 2 * sum(sizes)


@functools.cache
def most_processes() -> int:
    """Returns the most processes of one sandbox that leave enough for others, of all that this process may start."""
    found = [_number("kernel/pid_max"), _number("kernel/threads-max"), resource.getrlimit(resource.RLIMIT_NPROC)[1]]
    return max(1, min(number for number in found if number > 0) // _PROCESS_SHARE)


@functools.cache
def _watches() -> Mapping[str, str]:
    """Returns the limits of watched files: a user has a number of them, and sandboxes may share a user."""
    shares = {name: _number(f"fs/inotify/max_user_{name}") // _SHARE for name in ("instances", "watches")}
    return {f"user/max_inotify_{name}": str(share) for name, share in shares.items() if share > 0}


def _number(name: str) -> int:
    """Returns a setting of the kernel; 0 where it has none."""
    try:
        return int((_SETTINGS / name).read_text())
    except (OSError, ValueError):
        return 0
