"""The processes below one, seen from outside: for what no control group can do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
# Of /proc/PID/stat behind the name: utime, stime, cutime, cstime.
_OWN_TICKS, _REAPED_TICKS = slice(11, 13), slice(13, 15)
_MOST_LOOKS = 50


def for_every_thread(root: int, change: Callable[[int], None], *, include_root: bool) -> None:
    """Changes every thread of a tree of processes.

    It walks until it finds nothing new, so that what is forked between a look and a change is found; orphans are found
    because a sandbox's first process adopts them. A storm of forks has something new in every look, which its parents
    hand the change on to: the walk ends all the same. What is left is a fork that had begun before its parent was
    changed and that the kernel does not list yet: whoever cannot bear that changes the tree once more a little later.

    Args:
        root: Process id, as this process sees it.
        change: Gets the id of a thread; ProcessLookupError from it means that the thread has ended.
        include_root: Whether the root's own threads are meant as well.
    """
    seen: set[int] = set()
    for _ in range(_MOST_LOOKS):
        new = [thread for thread in threads_below(root, include_root=include_root) if thread not in seen]
        if not new:
            return
        seen.update(new)
        for thread in new:
            try:
                change(thread)
            except ProcessLookupError:
                continue


def pin_tree(root: int, cores: frozenset[int]) -> None:
    """Puts a process, its threads and all their descendants on `cores`, where no cpuset group can.

    Args:
        root: Process id of the first process, as this process sees it.
        cores: Core ids.

    Raises:
        ProcessLookupError: The root is gone.
        OSError: None of the cores exist here (EINVAL).
    """
    os.sched_setaffinity(root, cores)
    for_every_thread(root, lambda thread: os.sched_setaffinity(thread, cores), include_root=True)


def threads_below(root: int, *, include_root: bool) -> Iterator[int]:
    """Returns the threads of all processes below one, and its own ones if asked to."""
    for process in processes_below(root):
        if process == root and not include_root:
            continue
        try:
            yield from map(int, os.listdir(f"/proc/{process}/task"))
        except (FileNotFoundError, ProcessLookupError):
            # It ended before, or while its threads were listed.
            continue


def processes_below(root: int) -> Iterator[int]:
    """Returns a process and all its descendants."""
    waiting = [root]
    while waiting:
        process = waiting.pop()
        yield process
        waiting += _children(process)


def cpu_seconds_below(root: int, *, include_root: bool = False) -> float:
    """Returns the CPU seconds of all descendants of a process, ended ones that were waited for included."""
    ticks = 0
    for process in processes_below(root):
        try:
            fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(map(int, fields[_REAPED_TICKS]))
        if include_root or process != root:
            ticks += sum(map(int, fields[_OWN_TICKS]))
    return ticks / _CLOCK_TICKS


def _children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task")
    try:
        return [
            int(child) for thread in os.listdir(tasks) for child in (tasks / thread / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        # It ended meanwhile; or only a thread did, whose children another one has now; or a kernel has no such lists.
        return _children_without_kernel_list(process)


def _children_without_kernel_list(process: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(process).children()]
    except psutil.NoSuchProcess:
        return []


def has_children(process: int) -> bool:
    """Blocks: whether a process has children other than those that ended and were not waited for yet."""
    for child in processes_below(process):
        try:
            ended = psutil.Process(child).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            continue
        if child != process and not ended:
            return True
    return False
