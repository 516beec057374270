"""Walks trees of any depth without recursion, with two descriptors and no paths: both of those have an end."""

from __future__ import annotations

import errno
import os
import stat

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def identity_of(directory: int) -> tuple[int, int]:
    """Returns what tells a directory from every other one."""
    status = os.fstat(directory)
    return status.st_dev, status.st_ino


def open_above(directory: int, identity: tuple[int, int]) -> int:
    """Returns the directory above one, which must be the one that it was entered from. Raises OSError."""
    above = os.open("..", DIRECTORY, dir_fd=directory)
    if identity_of(above) != identity:
        os.close(above)
        raise OSError(errno.ESTALE, "a directory was moved away")
    return above


def remove_tree(parent: int, name: str) -> None:
    """Removes a directory of this user with all that is in it. No symbolic link is followed.

    Args:
        parent: Descriptor of the directory above.
        name: In it.

    Raises:
        OSError: It is no directory, or something in it cannot be removed; the first such error, after all the rest.
    """
    problems: list[OSError] = []
    # The directories on the way down: the name of each, which one it is in, and what is in it and was not visited yet.
    levels: list[tuple[str, tuple[int, int], list[str]]] = []
    current = os.dup(parent)
    waiting = [name]
    try:
        while True:
            if waiting:
                below = waiting.pop()
                try:
                    entered = _enter(current, below)
                except OSError as error:
                    problems.append(error)
                    continue
                levels.append((below, identity_of(current), waiting))
                waiting = _remove_files(entered, problems)
            elif levels:
                done, identity, waiting = levels.pop()
                # The one that all began in need not be the one above: it may be known by another mount.
                entered = open_above(current, identity) if levels else os.dup(parent)
                try:
                    os.rmdir(done, dir_fd=entered)
                except OSError as error:
                    problems.append(error)
            else:
                break
            os.close(current)
            current = entered
    finally:
        os.close(current)
    if problems:
        raise problems[0]


def _enter(parent: int, name: str) -> int:
    """Opens a directory, whatever its owner forbade itself there."""
    place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        path = f"/proc/self/fd/{place}"
        if stat.S_IMODE(os.fstat(place).st_mode) & 0o700 != 0o700:
            os.chmod(path, 0o700)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(place)


def _remove_files(directory: int, problems: list[OSError]) -> list[str]:
    """Removes all but directories; returns the names of those."""
    directories = []
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        if is_directory:
            directories.append(name)
            continue
        try:
            os.unlink(name, dir_fd=directory)
        except OSError as error:
            problems.append(error)
    return directories
