"""Paths of the sandbox, walked without following symbolic links."""

from __future__ import annotations

import errno
import os


class RefusedJobError(Exception):
    """A job that cannot be done; `stage` is a stable word."""

    def __init__(self, stage: str, number: int) -> None:
        super().__init__(stage)
        self.stage = stage
        self.number = number


def place_of(root: str, path: str) -> tuple[str, list[str]]:
    """Returns the directory that a path begins from, `root` unless it is absolute, and its components."""
    return ("/", components_of(path.lstrip("/"))) if path.startswith("/") else (root, components_of(path))


def components_of(path: str) -> list[str]:
    """Splits a path; the manager checked it, and this checks again."""
    components = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in components or "\0" in path:
        raise RefusedJobError("path", errno.EINVAL)
    return components


def make_directory(name: str, parent: int) -> None:
    """Makes a directory in another, unless it is there."""
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        return
    # A default list of rights above it may have taken its owner's.
    if os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode & 0o700 != 0o700:
        os.chmod(name, 0o755, dir_fd=parent)


def open_directory(root: str, components: list[str], create: bool) -> int:
    """Walks down from a directory without following symbolic links; returns a descriptor."""
    # Only to pass through: on the way to a file are directories that may not be listed.
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    current = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for component in components:
        try:
            try:
                below = os.open(component, flags, dir_fd=current)
            except FileNotFoundError:
                if not create:
                    raise
                make_directory(component, current)
                below = os.open(component, flags, dir_fd=current)
        finally:
            os.close(current)
        current = below
    return current
