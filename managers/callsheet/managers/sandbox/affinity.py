"""Keeps a tree of processes on given cores from outside, where no cpuset group can."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil


def pin_tree(root: int, cores: frozenset[int]) -> None:
    """Puts a process, its threads and all their descendants on `cores`.

    A fork inherits the affinity of its parent, so this walks until it finds nothing new. The walk is complete because
    orphans of a sandbox are adopted by its first process.

    Args:
        root: Process id of the first process, as this process sees it.
        cores: Core ids.

    Raises:
        ProcessLookupError: The root is gone.
        OSError: None of the cores exist here (EINVAL).
    """
    os.sched_setaffinity(root, cores)
    seen: set[int] = set()
    while True:
        new = [thread for thread in _threads_below(root) if thread not in seen]
        if not new:
            return
        seen.update(new)
        for thread in new:
            try:
                os.sched_setaffinity(thread, cores)
            except ProcessLookupError:
                continue


def _threads_below(root: int) -> Iterator[int]:
    waiting = [root]
    while waiting:
        process = waiting.pop()
        tasks = Path(f"/proc/{process}/task")
        try:
            threads = [int(name) for name in os.listdir(tasks)]
            yield from threads
            for thread in threads:
                waiting += map(int, (tasks / str(thread) / "children").read_text().split())
        except FileNotFoundError:
            # Ended meanwhile, or a kernel without CONFIG_PROC_CHILDREN.
            waiting += _children_without_kernel_list(process)
        except ProcessLookupError:
            continue


def _children_without_kernel_list(process: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(process).children()]
    except psutil.NoSuchProcess:
        return []
