"""The jobs that move files."""

from __future__ import annotations

import errno
import os
import stat

from .clearing import clear_bytecode, clear_way
from .paths import RefusedJobError, open_directory, place_of
from .trees import remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

CHUNK = 1 << 20


def write(details: dict[str, Any], content: int, work: str) -> None:
    """Writes one file or makes one directory; `archives` unpacks."""
    root, components = place_of(work, details["path"])
    if details["replaces"]:
        clear_way(root, components, details["directory"])
        # Where the command begins that these files are for.
        clear_way(work, [], True)
    if details["directory"]:
        os.close(open_directory(root, components, True))
    else:
        with open(os.dup(content), "rb") as source:
            source.seek(0)
            place_file(root, components, source, details["mode"])
        if details["replaces"]:
            clear_bytecode(root, components)


def remove(details: dict[str, Any], work: str) -> None:
    """Removes whatever has a path, and links on the way to it; if nothing has it, that is no error."""
    root, components = place_of(work, details["path"])
    clear_way(root, components, False)


def clear(details: dict[str, Any], work: str) -> None:
    """Removes a directory with all that is in it; one that is not there is no error."""
    root, components = place_of(work, details["path"])
    try:
        remove_tree(open_directory(root, components[:-1], False), components[-1])
    except FileNotFoundError:
        return


def send_file(details: dict[str, Any], output: int, root: str) -> None:
    """Copies a regular file into a pipe, up to a limit. No symbolic link is followed."""
    root, components = place_of(root, details["path"])
    directory = open_directory(root, components[:-1], False)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(components[-1], flags, dir_fd=directory), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise RefusedJobError("read", errno.EINVAL)
        left = details["limit"]
        while left > 0:
            chunk = file.read(min(left, CHUNK))
            if not chunk:
                return
            left -= len(chunk)
            while chunk:
                chunk = chunk[os.write(output, chunk) :]


def place_file(root: str, components: list[str], source: IO[bytes], mode: int) -> None:
    """Writes a file beside its place and renames it there, so that a symbolic link in its place is replaced."""
    if not components:
        raise RefusedJobError("path", errno.EISDIR)
    directory = open_directory(root, components[:-1], True)
    # A name that nobody can have taken before.
    temporary = f".callsheet-{os.urandom(8).hex()}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600, dir_fd=directory), "wb") as file:
            try:
                while True:
                    chunk = source.read(CHUNK)
                    if not chunk:
                        break
                    file.write(chunk)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.rename(temporary, components[-1], src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                os.unlink(temporary, dir_fd=directory)
                raise
    finally:
        os.close(directory)
