"""A process's own temporary files, and the end of all that it leaves when it is killed.

What it starts inherits the name of its directory. By that the next start finds processes that outlived it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import structlog
from callsheet.options.temporary_directories import temporary_directory

_VARIABLE = "TMPDIR"
_KILL_SECONDS = 5.0
_MOST_LOOKS = 20
_log = structlog.get_logger(__name__)


@contextlib.contextmanager
def own_temporary_files(role: str) -> Iterator[None]:
    """Has temporary files of this process, and of what it starts, in a directory that ends with it.

    What earlier processes of the role left is removed: processes first, then their directories.

    Raises:
        OSError: The directory cannot be made.
    """
    before, given = tempfile.tempdir, os.environ.get(_VARIABLE)
    with temporary_directory(f"callsheet-{role}-", clear=_end_processes) as directory:
        # Users of sandboxes pass through it in a trial of overlays; they can list nothing.
        directory.chmod(0o1711)
        tempfile.tempdir = os.environ[_VARIABLE] = str(directory)
        try:
            yield
        finally:
            tempfile.tempdir = before
            os.environ.pop(_VARIABLE)
            if given is not None:
                os.environ[_VARIABLE] = given


def _end_processes(directory: Path) -> None:
    ended = kill_processes(lambda: processes_with({f"{_VARIABLE}={directory}".encode()}))
    _log.info("leftovers_removed", directory=str(directory), processes=ended)


def processes_with(variables: set[bytes]) -> list[psutil.Process]:
    """Returns the processes that were started with these variables, each as "NAME=value"; not this one."""
    found = []
    for process in psutil.process_iter():
        try:
            given = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if variables <= set(given) and process.pid != os.getpid():
            found.append(process)
    return found


def kill_processes(look: Callable[[], list[psutil.Process]]) -> int:
    """Kills the processes that a look finds and waits for their end; returns how many there were.

    It looks again until it finds nobody new: what was forked, or was becoming another program, during a look was not
    seen in it.
    """
    killed: set[psutil.Process] = set()
    for _ in range(_MOST_LOOKS):
        new = [process for process in look() if process not in killed]
        if not new:
            break
        for process in new:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(new, timeout=_KILL_SECONDS)
        killed.update(new)
    return len(killed)
