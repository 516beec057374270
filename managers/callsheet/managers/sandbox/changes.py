"""What a sandbox changed in its overlays, kept as layers for later sandboxes.

The tree that is copied was written by code that nobody trusts. Nothing in it is followed or executed: entries are
opened by descriptor, links are copied as links, and only what an overlay's layer may hold is kept, owned by this
process's user and without set-user-id. The sandbox must stand still meanwhile.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from callsheet.managers.sandbox.root_filesystem import RootFilesystem, overlays_of

SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
# An entry takes about this much beside its content.
ENTRY_BYTES = 512


class ChangesTooLargeError(Exception):
    """A sandbox changed more than may be kept."""


class ChangedFiles:
    """The upper directories of a sandbox's overlays, as the launcher described them."""

    def __init__(self, report: socket.socket, overlays: Sequence[str]) -> None:
        """Args:
        report: Over it comes a descriptor of the directory that holds the overlays; closed by `close`.
        overlays: Names of the overlays.
        """
        self._report = report
        self._overlays = tuple(overlays)

    @classmethod
    def reported(cls, root: RootFilesystem) -> tuple[ChangedFiles, socket.socket]:
        """Returns the changes of a sandbox to be made, and the socket that the launcher is to get."""
        own, other = socket.socketpair()
        own.setblocking(False)
        return cls(own, [overlay.name for overlay in overlays_of(root)]), other

    def save(self, target: Path, limit_bytes: int) -> int:
        """Copies what was changed in stack NAME to TARGET/NAME; returns the bytes that takes, about. Blocks.

        Raises:
            ChangesTooLargeError: It is more than `limit_bytes`. What was copied stays.
            OSError: It cannot be read or written.
        """
        base = self._take_base()
        try:
            return self._save(base, target, limit_bytes)
        finally:
            os.close(base)

    def close(self) -> None:
        """Lets go of it. Safe to call again."""
        self._report.close()

    def _take_base(self) -> int:
        """Returns the descriptor that the launcher sent before it started anything. It can be taken once."""
        _, descriptors, _, _ = socket.recv_fds(self._report, 16, 1)
        if not descriptors:
            raise OSError(errno.ENODATA, "the launcher sent no descriptor of its overlays")
        return descriptors[0]

    def _save(self, base: int, target: Path, limit_bytes: int) -> int:
        copy = _Copy(limit_bytes)
        for name in self._overlays:
            path = target / name
            path.mkdir(mode=0o755)
            upper = os.open(f"{name}/upper", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=base)
            try:
                copy.directory(upper, path)
                path.chmod(stat.S_IMODE(os.fstat(upper).st_mode) & ~SPECIAL_BITS)
            finally:
                os.close(upper)
        return copy.bytes


class _Copy:
    """One copy of a tree, with what it took so far."""

    def __init__(self, limit_bytes: int) -> None:
        self.bytes = 0
        self._limit = limit_bytes
        self._links: dict[int, Path] = {}

    def directory(self, source: int, target: Path) -> None:
        """Copies what is in an open directory into a new one."""
        _keep_opaque(source, target)
        with os.scandir(source) as entries:
            for name in [entry.name for entry in entries]:
                self._entry(source, name, target / name)

    def _entry(self, parent: int, name: str, target: Path) -> None:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        self._account(ENTRY_BYTES)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            target.mkdir()
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                self.directory(inner, target)
            finally:
                os.close(inner)
        elif kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=parent), target)
            return
        elif kind == stat.S_IFREG:
            if self._link(status, target):
                return
            self._file(parent, name, target)
        elif kind == stat.S_IFCHR and status.st_rdev == 0:
            # A whiteout: what lies below under this name is deleted.
            os.mknod(target, stat.S_IFCHR, 0)
            return
        else:
            # Sockets and pipes mean nothing without the processes that had them open.
            return
        os.chmod(target, stat.S_IMODE(status.st_mode) & ~SPECIAL_BITS)
        os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))

    def _link(self, status: os.stat_result, target: Path) -> bool:
        """Makes a further link to a file that was copied before; returns whether it was."""
        if status.st_nlink == 1:
            return False
        first = self._links.setdefault(status.st_ino, target)
        if first is not target:
            os.link(first, target)
        return first is not target

    def _file(self, parent: int, name: str, target: Path) -> None:
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        # Its blocks and not its length: a file may be longer than any disk.
        self._account(os.fstat(source).st_blocks * 512)
        with open(source, "rb") as reader, open(target, "xb") as writer:
            _copy_content(reader.fileno(), writer.fileno())

    def _account(self, more: int) -> None:
        self.bytes += more
        if self.bytes > self._limit:
            raise ChangesTooLargeError(f"more than {self._limit} bytes were changed")


def _copy_content(source: int, target: int) -> None:
    """Copies the data of a file and leaves its holes as holes."""
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    end = 0
    while end < size:
        try:
            start = os.lseek(source, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = os.lseek(source, start, os.SEEK_HOLE)
        os.lseek(target, start, os.SEEK_SET)
        while start < end:
            start += os.sendfile(target, source, start, end - start)


def _keep_opaque(source: int, target: Path) -> None:
    """Keeps the mark of a directory that hides the one below it."""
    for name in _OPAQUE:
        with suppress(OSError):
            os.setxattr(target, name, os.getxattr(source, name))


def remove_layer(path: Path) -> None:
    """Removes a layer; its owner may have taken away its own right to write. Blocks."""
    for directory, names, _ in os.walk(path):
        for name in names:
            inner = os.path.join(directory, name)
            if not os.path.islink(inner):
                os.chmod(inner, 0o700)
    shutil.rmtree(path, ignore_errors=True)
