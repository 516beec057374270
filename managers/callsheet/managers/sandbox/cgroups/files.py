"""The files of control groups: making groups, writing settings, reading counters, waiting for events, removing."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterable
from pathlib import Path

import structlog

_EMPTY_MILLISECONDS = 2000

_log = structlog.get_logger(__name__)


def make_group(directory: Path) -> None:
    """Makes a group; the kernel puts its files there. OSError where it is not allowed."""
    directory.mkdir()


def write_setting(path: Path, value: str) -> None:
    """Writes in one call, as the kernel wants it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def read_counter(path: Path, name: str) -> int:
    """Returns a number of a file of lines "name number"; 0 if it is not there."""
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def open_entry(directory: Path) -> int:
    """Opens what a process writes "0" into to enter a group. The opener's rights count, not the writer's."""
    return os.open(directory / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)


def can_make_groups(parent: Path, needed: str) -> bool:
    """Whether groups with a file `needed` can be made, found out by making one."""
    trial = parent / f"callsheet-probe-{os.getpid()}"
    try:
        make_group(trial)
    except OSError:
        return False
    try:
        return (trial / needed).exists()
    finally:
        trial.rmdir()


def wait_for_event(directory: Path, state: str, milliseconds: int) -> None:
    """Waits for a state of a group; the kernel announces changes on cgroup.events. Gives up after a silence."""
    with open(directory / "cgroup.events", encoding="ascii") as events:
        poll = select.poll()
        poll.register(events, select.POLLPRI)
        while state not in events.read():
            if not poll.poll(milliseconds):
                return
            events.seek(0)


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
    """Whether a file of a group could not be used because the group has been removed."""
    return error.errno in {errno.ENOENT, errno.ENODEV}


def _empty(directory: Path) -> None:
    if (directory / "cgroup.kill").exists():
        write_setting(directory / "cgroup.kill", "1")
        wait_for_event(directory, "populated 0", _EMPTY_MILLISECONDS)
    else:
        _kill_members(directory)


def _kill_members(directory: Path) -> None:
    for pid in (directory / "cgroup.procs").read_text().split():
        try:
            os.kill(int(pid), 9)
        except ProcessLookupError:
            continue
