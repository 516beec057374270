"""Makes room for files that must win: those that a reward brings, over whatever the policy put in their places."""

from __future__ import annotations

import errno
import os
import stat

from .paths import open_directory
from .trees import remove_tree

CACHE = "__pycache__"
PASS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Links of a usual system, into /usr: whoever names a file below them is told so, as its programs are there.
SYSTEM_LINKS = frozenset({"bin", "sbin", "lib", "lib32", "lib64", "libx32"})


def clear_way(root: str, components: list[str], directory: bool) -> None:
    """Removes what keeps a file, or a directory, from its place: links and files on the way, and what has its name.

    Directories on the way are made writable, as all that is in a sandbox belongs to its user. Only what is below `root`
    is touched, and no link is followed.
    """
    parent = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for index, name in enumerate(components):
            make_usable(parent)
            mode = mode_of(name, parent)
            if mode is None or (root == "/" and index == 0 and stat.S_ISLNK(mode) and name in SYSTEM_LINKS):
                return
            if not stat.S_ISDIR(mode) or (index == len(components) - 1 and not directory):
                remove_entry(parent, name, mode)
                return
            below = os.open(name, PASS, dir_fd=parent)
            os.close(parent)
            parent = below
        make_usable(parent)
    finally:
        os.close(parent)


def clear_bytecode(root: str, components: list[str]) -> None:
    """Removes what Python cached for a source that takes this place: it would be run in the source's stead.

    A cache may say that it need not be compared with its source.
    """
    name = components[-1]
    if not name.endswith(".py"):
        return
    parent = open_directory(root, components[:-1], False)
    try:
        mode = mode_of(CACHE, parent)
        if mode is None:
            return
        if not stat.S_ISDIR(mode):
            os.unlink(CACHE, dir_fd=parent)
            return
        cache = os.open(CACHE, PASS, dir_fd=parent)
        try:
            make_usable(cache)
            for entry in os.listdir(f"/proc/self/fd/{cache}"):
                if entry.startswith(name[:-2]):
                    remove_entry(cache, entry, mode_of(entry, cache) or 0)
        finally:
            os.close(cache)
    finally:
        os.close(parent)


def mode_of(name: str, parent: int) -> int | None:
    """Returns the mode of what has a name; None if nothing has it."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def make_usable(directory: int) -> None:
    """Lets the owner of a directory list, search and change it, if it may not."""
    mode = stat.S_IMODE(os.fstat(directory).st_mode)
    if mode & 0o700 == 0o700:
        return
    try:
        os.chmod(f"/proc/self/fd/{directory}", mode | 0o700)
    except OSError as error:
        # One of the system's directories, which are no obstacle.
        if error.errno not in (errno.EPERM, errno.EROFS):
            raise


def remove_entry(parent: int, name: str, mode: int) -> None:
    """Removes a file, a link, or a directory with all that is in it."""
    if stat.S_ISDIR(mode):
        remove_tree(parent, name)
    else:
        os.unlink(name, dir_fd=parent)
