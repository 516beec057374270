"""A manager's own directory, and the removal of what an earlier manager of the same name left when it was killed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path

import psutil
import structlog
from callsheet.managers.sandbox.cgroups import GroupLayout, remove_groups
from callsheet.managers.sandbox.files.root_filesystem import remove_directory
from callsheet.options.private_files import make_private_directory

_KILL_SECONDS = 5.0
_MOST_LOOKS = 20
_LOCK_FILE = "lock"

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
    agent was killed. Only what carries the manager's marker is touched.
    """
    processes = kill_marked(directory.marker)
    groups = 0
    for parent in layout.directories() if layout is not None else []:
        found = list(parent.glob(f"{directory.marker}-*"))
        groups += len(found)
        remove_groups(found)
    directories = [path for path in directory.path.iterdir() if path.is_dir()]
    for path in directories:
        remove_directory(path)
    if processes or groups or directories:
        _log.info(
            "leftovers_removed",
            marker=directory.marker,
            processes=processes,
            groups=groups,
            directories=len(directories),
        )


def marked_processes(marker: str, sandbox_id: str | None = None) -> list[psutil.Process]:
    """Returns the processes that were started for a manager, or for one of its sandboxes, by their environment."""
    wanted = {f"CALLSHEET_SANDBOX_OF={marker}".encode()}
    if sandbox_id is not None:
        wanted.add(f"CALLSHEET_SANDBOX={sandbox_id}".encode())
    found = []
    for process in psutil.process_iter():
        try:
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted <= set(variables) and process.pid != os.getpid():
            found.append(process)
    return found


def kill_marked(marker: str, sandbox_id: str | None = None) -> int:
    """Kills `marked_processes` and waits for their end; returns how many there were.

    It looks again until it finds nobody new: what was forked, or was becoming another program, during a look was not
    seen in it.
    """
    killed: set[psutil.Process] = set()
    for _ in range(_MOST_LOOKS):
        new = [process for process in marked_processes(marker, sandbox_id) if process not in killed]
        if not new:
            break
        for process in new:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(new, timeout=_KILL_SECONDS)
        killed.update(new)
    return len(killed)
