"""What a sandbox changed in its overlays, or all of its files, kept as layers for later sandboxes.

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
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from callsheet.managers.sandbox.errors import StoppedError
from callsheet.managers.sandbox.root_filesystem import RootFilesystem, overlays_of

SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
# An entry takes about this much beside its content.
ENTRY_BYTES = 512
# Caches of bytecode: one can be made to pass for that of a file which takes the place of its source.
_CACHES = frozenset({"__pycache__"})
# Of the root of an image: what belongs to one sandbox, and is mounted over.
_OWN_PLACES = frozenset({"dev", "proc", "run", "sys", "tmp"})
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
            ChangesTooLargeError: It is more than `limit_bytes`. What was copied stays.
            OSError: It cannot be read or written.
        """
        return self._save(self._overlays, target, _Copy(limit_bytes))

    def copy(self, target: Path, limit_bytes: int, stopped: Callable[[], bool]) -> int:
        """Does as `save` for what a sandbox of its own is to begin with, see `backend.Sandbox.copy_files`. Blocks."""
        names = [name for name in self._overlays if name != "temporary"]
        return self._save(names, target, _Copy(limit_bytes, stopped, _CACHES), left_out=_OWN_PLACES)

    def close(self) -> None:
        """Lets go of it. Safe to call again."""
        self._report.close()
        if self._base >= 0:
            os.close(self._base)
            self._base = -1

    def _take_base(self) -> int:
        """Returns the descriptor that the launcher sent before it started anything."""
        if self._base < 0:
            _, descriptors, _, _ = socket.recv_fds(self._report, 16, 1)
            if not descriptors:
                raise OSError(errno.ENODATA, "the launcher sent no descriptor of its overlays")
            self._base = descriptors[0]
        return self._base

    def _save(self, names: Sequence[str], target: Path, copy: _Copy, left_out: Collection[str] = ()) -> int:
        base = self._take_base()
        for name in names:
            upper = os.open(f"{name}/upper", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=base)
            try:
                # Only the root of an image has such places.
                copy.tree(upper, target / name, left_out if name == "system" else ())
            finally:
                os.close(upper)
        return copy.bytes


def copy_tree(source: str, target: Path, limit_bytes: int, stopped: Callable[[], bool]) -> int:
    """Copies a directory, see `backend.Sandbox.copy_files`, to one that is made; returns the bytes, about. Blocks.

    Raises:
        ChangesTooLargeError: It is more than `limit_bytes`. What was copied stays.
        StoppedError: `stopped` says so.
        OSError: It cannot be read or written.
    """
    copy = _Copy(limit_bytes, stopped, _CACHES)
    place = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        copy.tree(place, target)
    finally:
        os.close(place)
    return copy.bytes


class _Copy:
    """One copy of a tree, with what it took so far."""

    def __init__(
        self, limit_bytes: int, stopped: Callable[[], bool] = lambda: False, left_out: Collection[str] = ()
    ) -> None:
        """Args: left_out: Names that are nowhere copied."""
        self.bytes = 0
        self._limit = limit_bytes
        self._stopped = stopped
        self._left_out = left_out
        self._links: dict[int, Path] = {}

    def tree(self, source: int, target: Path, left_out: Collection[str] = ()) -> None:
        """Copies an open directory to one that is made; `left_out` are names that are not copied from it itself."""
        target.mkdir(mode=0o755)
        self.directory(source, target, left_out)
        target.chmod(stat.S_IMODE(os.fstat(source).st_mode) & ~SPECIAL_BITS)

    def directory(self, source: int, target: Path, left_out: Collection[str] = ()) -> None:
        """Copies what is in an open directory into a new one."""
        _keep_opaque(source, target)
        with os.scandir(source) as entries:
            for name in [entry.name for entry in entries]:
                if name not in self._left_out and name not in left_out:
                    self._entry(source, name, target / name)

    def _entry(self, parent: int, name: str, target: Path) -> None:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        self._account(ENTRY_BYTES)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            target.mkdir()
            with _readable(name, parent, os.O_DIRECTORY, stat.S_IRUSR | stat.S_IXUSR) as inner:
                self.directory(inner, target)
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
        with _readable(name, parent, os.O_NONBLOCK, stat.S_IRUSR) as source, open(target, "xb") as writer:
            # Its blocks and not its length: a file may be longer than any disk.
            self._account(os.fstat(source).st_blocks * 512)
            _copy_content(source, writer.fileno())

    def _account(self, more: int) -> None:
        self.bytes += more
        if self._stopped():
            raise StoppedError
        if self.bytes > self._limit:
            raise ChangesTooLargeError(f"more than {self._limit} bytes were changed")


@contextmanager
def _readable(name: str, parent: int, flags: int, needed: int) -> Iterator[int]:
    """Opens what a tree has under a name, also what its owner, who may be this process's user, took the right from."""
    flags |= os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    place, mode = -1, 0
    try:
        try:
            opened = os.open(name, flags, dir_fd=parent)
        except PermissionError:
            place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            # By descriptor, so that it is this very entry whatever has its name by now.
            mode = stat.S_IMODE(os.fstat(place).st_mode)
            os.chmod(f"/proc/self/fd/{place}", mode | needed)
            opened = os.open(name, flags, dir_fd=parent)
        try:
            yield opened
        finally:
            os.close(opened)
    finally:
        if place >= 0:
            os.chmod(f"/proc/self/fd/{place}", mode)
            os.close(place)


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
            copied = _copy_part(source, target, start, end - start)
            if not copied:
                # It was cut meanwhile: not everything stands still everywhere.
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
