"""Keeps a tree of processes on given cores from outside, where no cpuset group can."""

from __future__ import annotations

import os

from callsheet.managers.sandbox.process_tree import for_every_thread


def pin_tree(root: int, cores: frozenset[int]) -> None:
    """Puts a process, its threads and all their descendants on `cores`.

    Args:
        root: Process id of the first process, as this process sees it.
        cores: Core ids.

    Raises:
        ProcessLookupError: The root is gone.
        OSError: None of the cores exist here (EINVAL).
    """
    os.sched_setaffinity(root, cores)
    for_every_thread(root, lambda thread: os.sched_setaffinity(thread, cores), include_root=True)
