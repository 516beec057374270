"""Files and directories that nobody else may read, whatever the mask of the process is."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def make_private_directory(directory: Path) -> None:
    """Makes a directory, and what is missing above it, for its owner alone; one that is there stays as it is.

    `Path.mkdir` gives its mode to the last directory only.

    Raises:
        OSError: It cannot be made, or is none.
    """
    for missing in reversed([each for each in directory.parents if not each.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)


def make_own_directory(directory: Path) -> None:
    """Makes a directory for its owner alone in a place where others may write, who may have put something else there.

    Raises:
        OSError: It cannot be made, or what is there is a link, somebody else's, or open to others.
    """
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found, mine = directory.lstat(), os.geteuid()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != mine or stat.S_IMODE(found.st_mode) & 0o077:
        told = f"it is of user {found.st_uid}, with mode {stat.filemode(found.st_mode)}"
        raise PermissionError(f"{directory}: must be a directory of user {mine} with mode 0700, but {told}")


def write_private_file(path: Path, content: str) -> None:
    """Writes a file for its owner alone, as a whole: a reader finds the old content or the new one.

    If root writes it, one that is there keeps its owner, such as a service's user. No other file of its directory
    changes: the new content has a name by chance until it is whole.

    Raises:
        OSError: It cannot be written.
    """
    descriptor, new = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if os.geteuid() == 0 and path.exists():
                os.fchown(file.fileno(), path.stat().st_uid, path.stat().st_gid)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise
