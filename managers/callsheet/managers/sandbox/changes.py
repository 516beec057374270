"""What a sandbox changed in its overlays, kept as layers for later sandboxes.

The tree that is copied was written by code that nobody trusts. Nothing in it is followed or executed: entries are
opened by descriptor, links are copied as links, and only what an overlay's layer may hold is kept, owned by this
process's user and without set-user-id. The sandbox must stand still meanwhile.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import stat
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from callsheet.managers.sandbox.agent.trees import DIRECTORY, identity_of, open_above
from callsheet.managers.sandbox.directories import remove_directory
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
        # By these names, files with several are found again wherever in the tree they are.
        links = target / f"links-{secrets.token_hex(8)}"
        links.mkdir(mode=0o700)
        with ExitStack() as opened:
            copy.links = _opened(opened, str(links))
            for name in self._overlays:
                path = target / name
                path.mkdir(mode=0o755)
                upper = _opened(opened, f"{name}/upper", base)
                copy.tree(upper, _opened(opened, str(path)))
                path.chmod(stat.S_IMODE(os.fstat(upper).st_mode) & ~SPECIAL_BITS)
        remove_directory(links)
        return copy.bytes


def _opened(stack: ExitStack, path: str, parent: int | None = None) -> int:
    directory = os.open(path, DIRECTORY, dir_fd=parent)
    stack.callback(os.close, directory)
    return directory


@dataclass(frozen=True, slots=True)
class _Level:
    """A directory on the way down: which ones it is in, there and here, and what is in it and was not visited yet."""

    source: tuple[int, int]
    target: tuple[int, int]
    status: os.stat_result
    waiting: list[tuple[str, os.stat_result]]


class _Copy:
    """One copy of some trees, with what it took so far.

    Attributes:
        links: Descriptor of the directory that gets a name for each file that has several.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.bytes = 0
        self.links = -1
        self._limit = limit_bytes
        self._linked: set[int] = set()

    def tree(self, source: int, target: int) -> None:
        """Copies what is in an open directory into another one, however deep it is."""
        source, target = os.dup(source), os.dup(target)
        levels: list[_Level] = []
        try:
            _keep_opaque(source, target)
            waiting = self._entries(source, target)
            while True:
                if waiting:
                    name, status = waiting.pop()
                    levels.append(_Level(identity_of(source), identity_of(target), status, waiting))
                    os.mkdir(name, dir_fd=target)
                    source, target = _move(source, _below(source, name)), _move(target, _below(target, name))
                    _keep_opaque(source, target)
                    waiting = self._entries(source, target)
                elif levels:
                    level = levels.pop()
                    # Only now: what was made in it changed its time, and it may forbid to make anything in it.
                    os.fchmod(target, stat.S_IMODE(level.status.st_mode) & ~SPECIAL_BITS)
                    os.utime(target, ns=(level.status.st_mtime_ns, level.status.st_mtime_ns))
                    source = _move(source, open_above(source, level.source))
                    target = _move(target, open_above(target, level.target))
                    waiting = level.waiting
                else:
                    return
        finally:
            os.close(source)
            os.close(target)

    def _entries(self, source: int, target: int) -> list[tuple[str, os.stat_result]]:
        """Copies all but the directories of a directory; returns those."""
        with os.scandir(source) as entries:
            names = [entry.name for entry in entries]
        directories = []
        for name in names:
            status = os.stat(name, dir_fd=source, follow_symlinks=False)
            self._account(ENTRY_BYTES)
            kind = stat.S_IFMT(status.st_mode)
            if kind == stat.S_IFDIR:
                directories.append((name, status))
            elif kind == stat.S_IFLNK:
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
            elif kind == stat.S_IFREG:
                self._file(source, target, name, status)
            elif kind == stat.S_IFCHR and status.st_rdev == 0:
                # A whiteout: what lies below under this name is deleted.
                os.mknod(name, stat.S_IFCHR, 0, dir_fd=target)
            # Sockets and pipes mean nothing without the processes that had them open.
        return directories

    def _file(self, source: int, target: int, name: str, status: os.stat_result) -> None:
        if status.st_ino in self._linked:
            os.link(str(status.st_ino), name, src_dir_fd=self.links, dst_dir_fd=target)
            return
        content = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source)
        with open(content, "rb") as reader:
            # Its blocks and not its length: a file may be longer than any disk.
            self._account(os.fstat(content).st_blocks * 512)
            copied = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
            with open(copied, "wb"):
                _copy_content(reader.fileno(), copied)
                os.fchmod(copied, stat.S_IMODE(status.st_mode) & ~SPECIAL_BITS)
                os.utime(copied, ns=(status.st_mtime_ns, status.st_mtime_ns))
        if status.st_nlink > 1:
            os.link(name, str(status.st_ino), src_dir_fd=target, dst_dir_fd=self.links)
            self._linked.add(status.st_ino)

    def _account(self, more: int) -> None:
        self.bytes += more
        if self.bytes > self._limit:
            raise ChangesTooLargeError(f"more than {self._limit} bytes were changed")


def _below(directory: int, name: str) -> int:
    return os.open(name, DIRECTORY, dir_fd=directory)


def _move(former: int, directory: int) -> int:
    """Closes a directory for another one."""
    os.close(former)
    return directory


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


def _keep_opaque(source: int, target: int) -> None:
    """Keeps the mark of a directory that hides the one below it."""
    for name in _OPAQUE:
        with suppress(OSError):
            os.setxattr(target, name, os.getxattr(source, name))
