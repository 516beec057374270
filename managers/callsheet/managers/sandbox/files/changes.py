"""Keeps changes of a sandbox in its overlays, or all of its files, as layers for later sandboxes.

The tree that is copied was written by untrusted code. Nothing in it is followed or executed: entries are
opened by descriptor, links are copied as links, and only entries that an overlay's layer may hold are kept, owned by
this process's user and without set-user-id. The sandbox must stand still meanwhile.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import stat
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from callsheet.managers.sandbox.agent.trees import DIRECTORY, identity_of, open_above
from callsheet.managers.sandbox.errors import StoppedError
from callsheet.managers.sandbox.files.directories import remove_directory
from callsheet.managers.sandbox.files.images.layer_tree import ENTRY_BYTES, SPECIAL_BITS
from callsheet.managers.sandbox.files.root_filesystem import RootFilesystem, overlays_of

_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
# Caches of bytecode: one can be made to pass for that of a file which takes the place of its source.
_CACHES = frozenset({"__pycache__"})
# Of the root of an image: what belongs to one sandbox, and is mounted over.
_OWN_PLACES = frozenset({"dev", "proc", "run", "sys", "tmp"})
# Up to here a file without holes is read and written at once: most are as small, and each call counts.
_SMALL = 1 << 17
# Errors of a kernel that cannot let two files share their blocks.
_NOT_SHARED = frozenset({errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM})


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
        self._base = -1

    @classmethod
    def reported(cls, root: RootFilesystem) -> tuple[ChangedFiles, socket.socket]:
        """Returns the changes of a sandbox to be made, and the socket that the launcher is to get."""
        own, other = socket.socketpair()
        own.setblocking(False)
        return cls(own, [overlay.name for overlay in overlays_of(root)]), other

    def save(self, target: Path, limit_bytes: int) -> int:
        """Copies what was changed in stack NAME to TARGET/NAME; returns the bytes that takes, about. Blocks.

        Raises:
            ChangesTooLargeError: It is more than `limit_bytes`, or its disk is full, so that it may be a part. What was
                copied stays.
            OSError: It cannot be read or written.
        """
        left = os.fstatvfs(self._take_base())
        if not left.f_bavail or not left.f_favail:
            raise ChangesTooLargeError("its disk is full")
        with ExitStack() as opened:
            return _copy_trees(self._uppers(self._overlays, opened), target, _Copy(limit_bytes))

    def copy(self, target: Path, limit_bytes: int, stopped: Callable[[], bool]) -> int:
        """Does as `save` for what a sandbox of its own is to begin with, see `backend.Sandbox.copy_files`. Blocks."""
        names = [name for name in self._overlays if name != "temporary"]
        with ExitStack() as opened:
            return _copy_trees(self._uppers(names, opened), target, _Copy(limit_bytes, stopped, _CACHES))

    def close(self) -> None:
        """Lets go of it. Safe to call again."""
        self._report.close()
        if self._base >= 0:
            os.close(self._base)
            self._base = -1

    def _uppers(self, names: Sequence[str], opened: ExitStack) -> list[tuple[str, int]]:
        base = self._take_base()
        return [(name, _opened_up(opened, f"{name}/upper", base)) for name in names]

    def _take_base(self) -> int:
        """Returns the descriptor that the launcher sent before it started anything."""
        if self._base < 0:
            _, descriptors, _, _ = socket.recv_fds(self._report, 16, 1)
            if not descriptors:
                raise OSError(errno.ENODATA, "the launcher sent no descriptor of its overlays")
            self._base = descriptors[0]
        return self._base


def copy_working_directory(source: str, target: Path, limit_bytes: int, stopped: Callable[[], bool]) -> int:
    """Copies a directory to TARGET/work, see `backend.Sandbox.copy_files`; returns the bytes, about. Blocks.

    Raises:
        ChangesTooLargeError: It is more than `limit_bytes`. What was copied stays.
        StoppedError: `stopped` says so.
        OSError: It cannot be read or written.
    """
    with ExitStack() as opened:
        return _copy_trees([("work", _opened_up(opened, source))], target, _Copy(limit_bytes, stopped, _CACHES))


def _copy_trees(trees: Sequence[tuple[str, int]], target: Path, copy: _Copy) -> int:
    """Copies each of some open directories to TARGET/NAME."""
    # By these names, files with several are found again wherever in the trees they are.
    links = target / f"links-{secrets.token_hex(8)}"
    links.mkdir(mode=0o700)
    with ExitStack() as opened:
        copy.links = _opened(opened, str(links))
        for name, source in trees:
            path = target / name
            path.mkdir(mode=0o755)
            # Only the root of an image has such places.
            copy.tree(source, _opened(opened, str(path)), _OWN_PLACES if copy.left_out and name == "system" else ())
            path.chmod(stat.S_IMODE(os.fstat(source).st_mode) & ~SPECIAL_BITS)
    remove_directory(links)
    return copy.bytes


def _opened(stack: ExitStack, path: str, parent: int | None = None) -> int:
    directory = os.open(path, DIRECTORY, dir_fd=parent)
    stack.callback(os.close, directory)
    return directory


def _opened_up(stack: ExitStack, path: str, parent: int | None = None) -> int:
    directory, mode = _open(path, DIRECTORY, parent)
    stack.callback(os.close, directory)
    if mode is not None:
        stack.callback(os.fchmod, directory, mode)
    return directory


def _open(name: str, flags: int, parent: int | None) -> tuple[int, int | None]:
    """Opens what a tree has under a name, also what its owner, who may be this process's user, took the right from.

    Returns:
        A descriptor, and the mode that it is to have again; None if that was not changed.
    """
    with suppress(PermissionError):  # Its owner took the right away, which is given back below.
        opened = os.open(name, flags, dir_fd=parent)
        # One that may be listed and not searched can be opened.
        if not flags & os.O_DIRECTORY or os.fstat(opened).st_mode & stat.S_IXUSR:
            return opened, None
        os.close(opened)
    place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        # By descriptor, so that it is this very entry whatever has its name by now.
        status = os.fstat(place)
        needed = stat.S_IRUSR | (stat.S_IXUSR if stat.S_ISDIR(status.st_mode) else 0)
        os.chmod(f"/proc/self/fd/{place}", stat.S_IMODE(status.st_mode) | needed)
        return os.open(name, flags, dir_fd=parent), stat.S_IMODE(status.st_mode)
    finally:
        os.close(place)


@dataclass(frozen=True, slots=True)
class _Level:
    """A directory on the way down: which ones it is in, there and here, and what is in it and was not visited yet.

    Attributes:
        mode: The one that it is to have again; None if that was not changed.
    """

    source: tuple[int, int]
    target: tuple[int, int]
    status: os.stat_result
    waiting: list[tuple[str, os.stat_result]]
    mode: int | None


class _Copy:
    """One copy of some trees, with what it took so far.

    Attributes:
        links: Descriptor of the directory that gets a name for each file that has several.
        left_out: Names that are nowhere copied.
    """

    def __init__(
        self, limit_bytes: int, stopped: Callable[[], bool] = lambda: False, left_out: Collection[str] = ()
    ) -> None:
        self.bytes = 0
        self.links = -1
        self.left_out = left_out
        self._stopped = stopped
        self._limit = limit_bytes
        self._linked: set[int] = set()

    def tree(self, source: int, target: int, not_at_its_top: Collection[str] = ()) -> None:
        """Copies what is in an open directory into another one, however deep it is."""
        source, target = os.dup(source), os.dup(target)
        levels: list[_Level] = []
        try:
            _keep_opaque(source, target)
            waiting = self._entries(source, target, not_at_its_top)
            while True:
                if waiting:
                    name, status = waiting.pop()
                    below, mode = _open(name, DIRECTORY, source)
                    levels.append(_Level(identity_of(source), identity_of(target), status, waiting, mode))
                    os.mkdir(name, dir_fd=target)
                    source, target = _move(source, below), _move(target, _below(target, name))
                    _keep_opaque(source, target)
                    waiting = self._entries(source, target)
                elif levels:
                    level = levels.pop()
                    # Both before a mode that may forbid to go on from here.
                    above, target_above = open_above(source, level.source), open_above(target, level.target)
                    if level.mode is not None:
                        os.fchmod(source, level.mode)
                    # Only now: what was made in it changed its time, and it may forbid to make anything in it.
                    os.fchmod(target, stat.S_IMODE(level.status.st_mode) & ~SPECIAL_BITS)
                    os.utime(target, ns=(level.status.st_mtime_ns, level.status.st_mtime_ns))
                    source, target = _move(source, above), _move(target, target_above)
                    waiting = level.waiting
                else:
                    return
        finally:
            os.close(source)
            os.close(target)

    def _entries(self, source: int, target: int, not_here: Collection[str] = ()) -> list[tuple[str, os.stat_result]]:
        """Copies all but the directories of a directory; returns those."""
        with os.scandir(source) as entries:
            names = [entry.name for entry in entries if entry.name not in self.left_out and entry.name not in not_here]
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
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        content, mode = _open(name, flags, source)
        with open(content, "rb"):
            if mode is not None:
                os.fchmod(content, mode)
            # Its blocks and not its length: a file may be longer than any disk.
            self._account(os.fstat(content).st_blocks * 512)
            copied = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
            with open(copied, "wb"):
                _copy_content(content, copied)
                os.fchmod(copied, stat.S_IMODE(status.st_mode) & ~SPECIAL_BITS)
                os.utime(copied, ns=(status.st_mtime_ns, status.st_mtime_ns))
        if status.st_nlink > 1:
            os.link(name, str(status.st_ino), src_dir_fd=target, dst_dir_fd=self.links)
            self._linked.add(status.st_ino)

    def _account(self, more: int) -> None:
        self.bytes += more
        if self._stopped():
            raise StoppedError
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
    status = os.fstat(source)
    size = status.st_size
    if size <= _SMALL and status.st_blocks * 512 >= size:
        content = os.read(source, size)
        if os.write(target, content) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return
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
            copied = _copy_part(source, target, start, end - start)
            if not copied:
                # It was cut meanwhile: not everywhere does everything stand still.
                return
            start += copied


def _copy_part(source: int, target: int, start: int, count: int) -> int:
    """Lets both share their blocks where the file system can; both are on one only without isolation."""
    try:
        copied = os.copy_file_range(source, target, count, start, start)
        if copied:
            return copied
    except OSError as error:
        if error.errno not in _NOT_SHARED:
            raise
    return os.sendfile(target, source, start, count)


def _keep_opaque(source: int, target: int) -> None:
    """Keeps the mark of a directory that hides the one below it."""
    for name in _OPAQUE:
        with suppress(OSError):
            os.setxattr(target, name, os.getxattr(source, name))
