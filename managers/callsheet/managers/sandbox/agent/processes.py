"""Signals to the processes of the sandbox."""

from __future__ import annotations

import os
import time

from .slim import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection


# The highest score: these die first when the memory of the sandbox, or of the machine, is used up.
FIRST_TO_DIE = b"1000"
# Longer than anything but a disk keeps a process from standing still.
SECONDS_TO_STOP, LOOK_SECONDS = 1.0, 0.001
STANDING = (b"T", b"t", b"Z", b"X")


class Forks:
    """Makes children that the kernel kills before this process when memory is used up.

    Scores are inherited. A child cannot raise its own, because what it has in /proc is closed to it, as this process's
    is, until it has become a program. So this one has the highest score while it forks.
    """

    def __init__(self) -> None:
        """Must be called before /proc is closed."""
        self.score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        self.usual = os.pread(self.score, 16, 0).strip()

    def fork(self) -> int:
        """Forks; raises OSError."""
        os.pwrite(self.score, FIRST_TO_DIE, 0)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid != 0:
                os.pwrite(self.score, self.usual, 0)
        return pid


def signal_everything(number: int) -> bool:
    """Signals every process of the sandbox but this one; as PID 1 atomically, so that a fork bomb cannot outrun it.

    Returns:
        Whether there was any.
    """
    if os.getpid() == 1:
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            return False
        return True
    return signal_all(descendants, number)


def signal_all(find: Callable[[], list[int]], number: int) -> bool:
    """Signals all processes that can be found, again until nothing new turns up: a stopped process cannot fork.

    Returns:
        Whether there was any.
    """
    seen: set[int] = set()
    looks_in_vain = 0
    # One is not enough: whose parent ends during a look has a parent then that is not there.
    while looks_in_vain < 2:
        new = [pid for pid in find() if pid not in seen]
        looks_in_vain = 0 if new else looks_in_vain + 1
        seen.update(new)
        for pid in new:
            send_signal(pid, number if number == signal.SIGCONT else signal.SIGSTOP)
    if number not in (signal.SIGSTOP, signal.SIGCONT):
        for pid in seen:
            send_signal(pid, number)
    return bool(seen)


def interrupt(process: int | None, since: float, spared: set[int]) -> None:
    """Kills what began after `since`, in seconds since boot, and sends SIGUSR1 to one process that stays.

    Args:
        process: Gets the signal, if it is there.
        since: What is older stays.
        spared: Stay as well.
    """
    ticks = int(since * os.sysconf("SC_CLK_TCK"))
    signal_all(
        lambda: [pid for pid in descendants() if pid not in spared and begin_of(pid) >= ticks],
        signal.SIGKILL,
    )
    send_signal(process, signal.SIGUSR1)


def begin_of(pid: int) -> int:
    """Returns when a process began, in clock ticks since boot; -1 once it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return -1


def until_stopped(pids: Collection[int]) -> None:
    """Waits until some processes that were sent a stop stand still, for a second at most.

    What waits in the kernel ends what it was doing before it stops, for instance a rename.
    """
    end = time.monotonic() + SECONDS_TO_STOP
    while not all(map(stands_still, pids)) and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)


def stands_still(pid: int) -> bool:
    """Returns whether no thread of a process runs any more."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] not in STANDING:
                    return False
    except (OSError, IndexError):
        return True
    return True


def send_signal(pid: int | None, number: int) -> None:
    """Signals a process that may have ended; None is one that has."""
    try:
        if pid is not None:
            os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def children_by_parent() -> dict[int, list[int]]:
    """Returns the processes that can be seen, by parent."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(name))
    return children


def descendants() -> list[int]:
    """Returns all processes below this one."""
    children = children_by_parent()
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found
