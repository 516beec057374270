"""The files of control groups: making groups, writing settings, reading counters, waiting for events, removing."""

from __future__ import annotations

import errno
import os
import resource
import secrets
import select
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import structlog

# How long processes may take to stop: one that waits for a disk stops afterwards.
FREEZE_MILLISECONDS = 100
# The same where it must not go on at all.
HOLD_MILLISECONDS = 2000
# How long what was killed may take to end, on a machine that has no time for it.
_EMPTY_MILLISECONDS = 10_000
_LONGEST_TEXT = 1 << 14
# Who may open no more than these has better use for them.
_FEW = 1024
KEPT_PART = 4
"""All groups together keep this part of the others that this process may open; `OpenFileRoom` counts them as open."""

_Result = TypeVar("_Result")

_log = structlog.get_logger(__name__)


def make_group(directory: Path) -> None:
    """Makes a group; the kernel puts its files there. OSError where it is not allowed."""
    directory.mkdir()


def make_threaded_group(directory: Path) -> None:
    """Makes a version 2 group that threads enter one by one, see `open_thread_entry`.

    Its siblings must be threaded as well; limits and `cgroup.kill` are matters of the group above them all.
    """
    make_group(directory)
    write_setting(directory / "cgroup.type", "threaded")


def write_setting(path: Path, value: str) -> None:
    """Writes in one call, as the kernel wants it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


class KeptFile:
    """A file of a group that is read, or written, with every command: it stays open where there is room for that.

    The kernel makes its text anew for each reading from the beginning. To look a path up costs ten times as much.
    """

    _kept = 0

    def __init__(self, path: Path, mode: int = os.O_RDONLY) -> None:
        """Opens nothing yet. Args: mode: How to open it: a file to write needs os.O_RDWR."""
        self._path = path
        self._mode = mode | os.O_CLOEXEC
        self._descriptor = -1
        self._keeps = True

    def text(self) -> str:
        """Returns what it says; OSError once the group is gone."""
        return self._using(lambda descriptor: os.pread(descriptor, _LONGEST_TEXT, 0)).decode()

    def numbers(self, *names: str) -> list[int]:
        """Returns numbers of a file of lines "name number", of one reading; 0 for one that is not there."""
        told = f"\n{self.text()}"
        return [int(told.partition(f"\n{name} ")[2].partition("\n")[0] or 0) for name in names]

    def write(self, value: bytes) -> None:
        """Writes a setting in one call."""
        self._using(lambda descriptor: os.pwrite(descriptor, value, 0))

    def close(self) -> None:
        """Closes it for good: a later use opens it for itself alone."""
        self._keeps = False
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            KeptFile._kept -= 1

    def _using(self, use: Callable[[int], _Result]) -> _Result:
        if self._descriptor >= 0:
            return use(self._descriptor)
        descriptor = os.open(self._path, self._mode)
        if self._keeps and KeptFile._kept < (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _FEW) // KEPT_PART:
            self._descriptor = descriptor
            KeptFile._kept += 1
            return use(descriptor)
        try:
            return use(descriptor)
        finally:
            os.close(descriptor)


def open_entry(directory: Path) -> int:
    """Opens what a process writes "0" into to enter a group. The opener's rights count, not the writer's.

    The kernel holds back every fork and end of the machine for the move, and waits for a grace period of RCU before.
    """
    return os.open(directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)


def open_thread_entry(directory: Path) -> int:
    """Opens what a thread writes "0" into to enter a group alone; what it forks is in there as well.

    A thread that moves itself disturbs nobody: some 0.1 ms, where a whole process takes 7 ms of waiting (Linux 5.5).
    It stays within the threaded groups of one sandbox, or within a tree of version 1.
    """
    version_2 = directory / "cgroup.threads"
    return os.open(version_2 if version_2.exists() else directory / "tasks", os.O_WRONLY | os.O_CLOEXEC)


def can_make_groups(parent: Path, needed: str) -> bool:
    """Returns whether groups with a file `needed` can be made, found out by making one."""
    # A name that no killed process has left behind, and no process of another container has now.
    trial = parent / f"callsheet-probe-{secrets.token_hex(8)}"
    try:
        make_group(trial)
    except OSError:
        return False
    try:
        return (trial / needed).exists()
    finally:
        trial.rmdir()


def wait_for_event(directory: Path, state: str, milliseconds: int) -> bool:
    """Waits for a state of a group; the kernel announces changes on cgroup.events. Gives up after a silence.

    Returns:
        Whether it is in that state.
    """
    with open(directory / "cgroup.events", encoding="ascii") as events:
        poll = select.poll()
        poll.register(events, select.POLLPRI)
        while state not in events.read():
            if not poll.poll(milliseconds):
                return False
            events.seek(0)
    return True


def remove_groups(directories: Iterable[Path]) -> None:
    """Kills what is inside the groups and removes them; one that cannot be removed is logged and left."""
    for directory in directories:
        try:
            _empty(directory)
            for path, _, _ in os.walk(directory, topdown=False):
                os.rmdir(path)
        except OSError as error:
            if not is_gone(error):
                _log.warning("group_not_removed", group=str(directory), error=str(error))


def is_gone(error: OSError) -> bool:
    """Returns whether a file of a group could not be used because the group has been removed."""
    return error.errno in {errno.ENOENT, errno.ENODEV}


def kill_threads(directory: Path) -> None:
    """Kills all in a threaded group and below it, where the kernel refuses `cgroup.kill`.

    The group is frozen first and stays so: nothing forks or ends by itself meanwhile, and what is frozen can be killed.
    A fork that had begun already adds one that is not in the list if the list is read before all are frozen.
    """
    write_setting(directory / "cgroup.freeze", "1")
    wait_for_event(directory, "frozen 1", FREEZE_MILLISECONDS)
    for path, _, _ in os.walk(directory):
        _kill_members(Path(path, "cgroup.threads"))


def _empty(directory: Path) -> None:
    if not (directory / "cgroup.kill").exists():
        _kill_members(directory / "cgroup.procs")
        return
    if (directory / "cgroup.type").read_text().strip() == "threaded":
        kill_threads(directory)
    else:
        write_setting(directory / "cgroup.kill", "1")
    wait_for_event(directory, "populated 0", _EMPTY_MILLISECONDS)


def _kill_members(members: Path) -> None:
    for member in members.read_text().split():
        try:
            os.kill(int(member), signal.SIGKILL)
        except ProcessLookupError:
            continue
