"""A manager's own directory, and the removal of what an earlier manager of the same name left when it was killed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from pathlib import Path

import psutil
import structlog
from callsheet.managers.sandbox.cgroups import GroupLayout, remove_groups
from callsheet.managers.sandbox.files.directories import remove_directory
from callsheet.managers.supervision.remains import kill_processes, processes_with
from callsheet.options.private_files import make_private_directory

_LOCK_FILE = "lock"
# A sandbox enters its group at once, and its first process stays there as long as it lives.
_ABANDONED_S = 600.0
_DIGEST = re.compile(r"[0-9a-f]{12}")
# See `cgroups.files.can_make_groups`.
_TRIAL = "callsheet-probe"

_log = structlog.get_logger(__name__)


class ManagerRunningError(RuntimeError):
    """Another process is this manager already: the same id in the same data directory."""


class ManagerDirectory:
    """The directory of one manager, locked as long as its process lives."""

    def __init__(self, data_directory: Path, manager_id: str) -> None:
        """Makes and locks it.

        Raises:
            ManagerRunningError: Another process holds it.
            OSError: It cannot be made.
        """
        self.path = data_directory / "sandboxes" / manager_id
        make_private_directory(self.path)
        digest = hashlib.sha256(os.fsencode(self.path.resolve())).hexdigest()[:12]
        self.marker = f"callsheet-{manager_id}-{digest}"
        self._lock = os.open(self.path / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise ManagerRunningError(
                f"manager_id: {manager_id!r}: another process is this manager, with {data_directory}"
            ) from error

    def release(self) -> None:
        """Unlocks it. Safe to call again."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def remove_leftovers(directory: ManagerDirectory, layout: GroupLayout | None) -> None:
    """Ends the processes and removes the groups and directories of an earlier process of this manager. Blocks.

    Sandboxes end with their manager; this is for what escaped that: groups, directories, and plain processes whose
    agent was killed. Of other managers only groups are removed that nothing has been in for long.
    """
    processes = kill_marked(directory.marker)
    groups: list[Path] = []
    if layout is not None:
        groups = [each for parent in layout.directories() for each in parent.glob(f"{directory.marker}-*")]
        # The kernel dates groups by this clock.
        groups += abandoned_groups(layout, time.clock_gettime(time.CLOCK_REALTIME) - _ABANDONED_S)
        groups = list(dict.fromkeys(groups))
        remove_groups(groups)
    directories = [path for path in directory.path.iterdir() if path.is_dir()]
    for path in directories:
        remove_directory(path)
    if processes or groups or directories:
        _log.info(
            "leftovers_removed",
            marker=directory.marker,
            processes=processes,
            groups=len(groups),
            directories=len(directories),
        )


def abandoned_groups(layout: GroupLayout, before: float) -> list[Path]:
    """Returns the groups of sandboxes that nothing is in and that were made before a time in seconds.

    They are of managers that were killed and have not been started again, as with another data directory. The group of
    version 2 tells for all of a sandbox: it has the first process in it, of which the tree of "cpu" has none. That one
    comes last, so that a removal which is interrupted can be taken up again.
    """
    names = [each.name for each in layout.core.glob("callsheet-*-*") if _is_of_sandbox(each.name)]
    over = [name for name in names if _is_over(layout.core / name, before)]
    parents = layout.directories()[::-1]
    groups = [parent / name for name in over for parent in parents if (parent / name).is_dir()]
    trials = [each for parent in parents for each in parent.glob(f"{_TRIAL}-*") if _is_over(each, before)]
    return groups + trials


def _is_of_sandbox(group: str) -> bool:
    """Returns whether a group's name is a manager's marker and a sandbox."""
    return _DIGEST.fullmatch(group.rsplit("-", 2)[1]) is not None


def _is_over(group: Path, before: float) -> bool:
    try:
        if group.stat().st_mtime >= before:
            return False
        if (group / "cgroup.events").exists():
            return "populated 0" in (group / "cgroup.events").read_text()
        return not any(members.read_text() for members in group.rglob("cgroup.procs"))
    except OSError:
        return False  # Its manager removes it at this moment.


def marked_processes(marker: str, sandbox_id: str | None = None) -> list[psutil.Process]:
    """Returns the processes that were started for a manager, or for one of its sandboxes, by their environment."""
    wanted = {f"CALLSHEET_SANDBOX_OF={marker}".encode()}
    if sandbox_id is not None:
        wanted.add(f"CALLSHEET_SANDBOX={sandbox_id}".encode())
    return processes_with(wanted)


def kill_marked(marker: str, sandbox_id: str | None = None) -> int:
    """Kills `marked_processes` and waits for their end; returns how many there were."""
    return kill_processes(lambda: marked_processes(marker, sandbox_id))
