"""Makes room for files that must win: those that a reward brings, over whatever the policy put in their places."""

from __future__ import annotations

import errno
import os
import stat

PASS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
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
    """Removes a file, a link, or a directory with all that is in it, however deep."""
    if not stat.S_ISDIR(mode):
        os.unlink(name, dir_fd=parent)
        return
    # One descriptor at a time, and names alone on the way: a path through a deep tree is longer than any may be.
    current = os.dup(parent)
    above: list[tuple[str, tuple[int, int]]] = []
    pending = [[name]]
    try:
        while pending:
            if pending[-1]:
                below = into(current, pending[-1].pop(), above)
                os.close(current)
                current = below
                pending.append(emptied(current))
            else:
                pending.pop()
                if pending:
                    outer = out_of(current, above)
                    os.close(current)
                    current = outer
    finally:
        os.close(current)


def into(current: int, name: str, above: list[tuple[str, tuple[int, int]]]) -> int:
    """Goes into a directory."""
    below = os.open(name, PASS, dir_fd=current)
    make_usable(below)
    above.append((name, identity(current)))
    return below


def out_of(current: int, above: list[tuple[str, tuple[int, int]]]) -> int:
    """Goes back to where it was entered from, and removes it."""
    name, expected = above.pop()
    outer = os.open("..", PASS, dir_fd=current)
    if identity(outer) != expected:
        raise OSError(errno.EBUSY, "a directory was moved meanwhile")
    os.rmdir(name, dir_fd=outer)
    return outer


def emptied(directory: int) -> list[str]:
    """Removes what is no directory; returns the names of those that are."""
    listed = os.open(".", LIST, dir_fd=directory)
    try:
        names = os.listdir(listed)
        inner = [name for name in names if stat.S_ISDIR(mode_of(name, listed) or 0)]
        for name in set(names).difference(inner):
            os.unlink(name, dir_fd=listed)
        return inner
    finally:
        os.close(listed)


def identity(directory: int) -> tuple[int, int]:
    """Tells a directory from all others."""
    found = os.fstat(directory)
    return found.st_dev, found.st_ino
