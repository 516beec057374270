"""The processes below one: adopting those whose parent ended, finding them, and ending them with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Makes this process the parent of all below it whose own parent ends, also of those in other sessions."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def dying_with_parent() -> Callable[[], None]:
    """Returns what a child calls before it becomes another program, so that it is killed when its parent is."""
    parent = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def bind() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return bind


def descendants(ancestor: int) -> set[int]:
    """Returns the processes below one that have not ended; nothing where the system does not tell."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name of the program may hold anything, and stands in parentheses.
            state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        except OSError:
            continue  # It has ended meanwhile.
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(entry.name))
    found: set[int] = set()
    line = [ancestor]
    while line:
        below = children.get(line.pop(), [])
        found.update(below)
        line.extend(below)
    return found


def send(pid: int, number: signal.Signals) -> None:
    """Sends a signal; no error if the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def send_to_group(leader: int, number: signal.Signals) -> None:
    """Sends a signal to a group of processes; no error if it has ended."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return
