"""Payloads as files of the data directory.

    objects/<sha256>             the bytes
    jobs/<digest of the job id>/<sha256>    a hard link to an object that the job retains
    owners/<digest of the owner>/<sha256>   empty: the owner put it lately
    owners/again/<sha256>        empty: it was put lately when it was there already
    incoming/                    what is being written

The file system counts the links, so an object with one link is one that nobody retains. They share the object's date,
which is when it was put or retained last. There is one process per data directory; within it, one lock keeps an object
from being retained and removed at the same time.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import IO, Any, Concatenate, Final, ParamSpec, Self, TypeVar

from anyio import CapacityLimiter, to_thread
from callsheet.options.private_files import make_private_directory
from callsheet.scheduler.store.payloads import (
    CHUNK_BYTES,
    DEFAULT_MAX_BYTES,
    DEFAULT_UNUSED_S,
    PayloadNotFoundError,
    PayloadStore,
    PayloadStoreFullError,
    PayloadsUnusableError,
    StoredPayload,
    Upload,
    check_key,
)

LEFT_FREE_SHARE: Final = 20
"""One part of so many is left free on the disk because the journal may be there, too."""

MOST_LEFT_FREE: Final = 256 * 1024 * 1024

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_T = TypeVar("_T")
_P = ParamSpec("_P")
_THREADS: Final = 8
# A loss of power may take back a date that was renewed after less time than this.
_UNSYNCED_S: Final = 600.0


class MissingFileError(PayloadsUnusableError):
    """A file is not there."""


class DiskRoom:
    """Counts bytes of payloads against a bound and against what the disk has. Its methods may be called anywhere."""

    def __init__(self, directory: Path, max_bytes: int | None) -> None:
        """Starts with nothing.

        Args:
            directory: Where the payloads are.
            max_bytes: Most bytes of all of them; None leaves some of the disk free.
        """
        self._directory = directory
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._used = 0

    def count(self, size: int) -> None:
        """Counts bytes that are there already."""
        with self._lock:
            self._used += size

    def take(self, size: int, before: int = 0) -> None:
        """Counts bytes that are about to be written, of a payload that had some before.

        Raises:
            PayloadStoreFullError: There is no room for them; they are not counted.
        """
        with self._lock:
            if self._max_bytes is not None and self._used + size > self._max_bytes:
                reason = f"it has {self._used} of its {self._max_bytes} bytes"
                raise PayloadStoreFullError(f"{size} bytes", reason, for_good=before + size > self._max_bytes)
            disk = shutil.disk_usage(self._directory)
            left = min(disk.total // LEFT_FREE_SHARE, MOST_LEFT_FREE)
            if disk.free - size < left:
                reason = f"its disk has {disk.free} bytes free, of which {left} must stay free"
                raise PayloadStoreFullError(f"{size} bytes", reason)
            self._used += size

    def give_back(self, size: int) -> None:
        """Counts bytes that are gone."""
        self.count(-size)


@contextmanager
def as_store_errors() -> Iterator[None]:
    """Turns errors of files into those of a payload store.

    Raises:
        PayloadStoreFullError: A disk or a quota is full.
        MissingFileError: A file is not there.
        PayloadsUnusableError: Anything else.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFileError(error) from error
    except OSError as error:
        if error.errno in _FULL:
            raise PayloadStoreFullError("the disk", error.strerror or str(error)) from error
        raise PayloadsUnusableError(error) from error


def _in_a_thread(
    function: Callable[Concatenate[LocalPayloadStore, _P], _T],
) -> Callable[Concatenate[LocalPayloadStore, _P], Coroutine[Any, Any, _T]]:
    async def call(store: LocalPayloadStore, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await store._in_thread(lambda: function(store, *args, **kwargs))

    return call


class LocalPayloadStore(PayloadStore):
    """Payloads in a directory of a local file system. Open it with `open`."""

    def __init__(
        self,
        directory: Path,
        max_bytes: int,
        unused_s: float,
        max_stored_bytes: int | None,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(max_bytes, unused_s, clock)
        self._objects = directory / "objects"
        self._jobs = directory / "jobs"
        self._owners = directory / "owners"
        self._put_again = self._owners / "again"
        self._incoming = directory / "incoming"
        self._room = DiskRoom(directory, max_stored_bytes)
        self._lock = threading.Lock()
        self._threads = CapacityLimiter(_THREADS)

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        unused_s: float = DEFAULT_UNUSED_S,
        max_stored_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """Open the store in `directory`, which is created if need be; the caller holds the lock of what it is in.

        Args:
            directory: Where the payloads are; nothing else may be there.
            max_bytes: See `PayloadStore`.
            unused_s: See `PayloadStore`.
            max_stored_bytes: The most bytes of all payloads; None leaves some of the disk free.
            clock: See `PayloadStore`.
        """
        store = cls(directory, max_bytes, unused_s, max_stored_bytes, clock)
        await store._in_thread(store._prepare)
        return store

    @asynccontextmanager
    async def _upload(self) -> AsyncIterator[Upload]:
        file = await self._in_thread(self._create)
        upload = _FileUpload(self, file)
        try:
            yield upload
        finally:
            # What has become an object is counted as that.
            self._room.give_back(upload.written)
            _discard(file)

    def _create(self) -> IO[bytes]:
        # Not buffered: a disk that is full says so when it is written to, and not when it is closed.
        return tempfile.NamedTemporaryFile(dir=self._incoming, delete=False, buffering=0)

    async def size(self, sha256: str) -> int:
        path = self._object(sha256)
        try:
            return (await self._in_thread(path.stat)).st_size
        except MissingFileError:
            raise PayloadNotFoundError(sha256) from None

    @_in_a_thread
    def unknown_to(self, owner: str, job_id: str, sha256s: Collection[str]) -> list[str]:
        places = (self._notes_of(owner), self._links_of(job_id))
        return [each for each in sha256s if not any((place / self._object(each).name).exists() for place in places)]

    @_in_a_thread
    def retain(self, job_id: str, sha256s: Collection[str]) -> Collection[str]:
        links = self._links_of(job_id)
        with self._lock:
            for sha256 in sha256s:
                if not self._object(sha256).exists():
                    raise PayloadNotFoundError(sha256)
            for sha256 in sha256s:
                self._renew(self._object(sha256))
            new = list(dict.fromkeys(sha256 for sha256 in sha256s if not (links / sha256).exists()))
            if not new:
                return ()
            _make_directory(links)
            try:
                for sha256 in new:
                    (links / sha256).hardlink_to(self._objects / sha256)
                _sync(links)
            except OSError:
                for sha256 in new:
                    (links / sha256).unlink(missing_ok=True)
                raise
            return new

    @_in_a_thread
    def release(self, job_id: str, sha256s: Collection[str], idle_s: float | None = None) -> int:
        links, released = self._links_of(job_id), 0
        with self._lock:
            for sha256 in sha256s:
                check_key(sha256)
                # A link that goes does not renew the date of its object.
                if idle_s is None or _is_older(links / sha256, self._clock() - idle_s):
                    (links / sha256).unlink(missing_ok=True)
                    released += 1
            _remove_if_empty(links)
        return released

    @_in_a_thread
    def idle(self, job_id: str, idle_s: float) -> list[str]:
        links, used_before = self._links_of(job_id), self._clock() - idle_s
        # Without the lock, as there may be very many: one that goes meanwhile is idle no more.
        names = [link.name for link in links.iterdir()] if links.exists() else []
        return [name for name in names if _is_older(links / name, used_before)]

    @_in_a_thread
    def release_job(self, job_id: str) -> None:
        self._release(self._links_of(job_id))

    @_in_a_thread
    def release_all_but(self, job_ids: Collection[str]) -> None:
        kept = {self._links_of(job_id).name for job_id in job_ids}
        for links in list(self._jobs.iterdir()):
            if links.name not in kept:
                self._release(links)

    @_in_a_thread
    def remove_unused(self) -> int:
        removed, put_before = 0, self._clock() - self._unused_s
        # The lock is taken for one file at a time: an owner may have put very many in a day.
        for path in list(self._objects.iterdir()):
            with self._lock:
                if path.exists() and path.stat().st_mtime < put_before:
                    removed += self._remove_if_unlinked(path)
        for notes in list(self._owners.iterdir()):
            for note in list(notes.iterdir()):
                with self._lock:
                    if note.stat().st_mtime < put_before:
                        note.unlink()
            with self._lock:
                _remove_if_empty(notes)
        return removed

    async def aclose(self) -> None:
        """Nothing is open between calls."""

    async def _in_thread(self, function: Callable[[], _T]) -> _T:
        def call() -> _T:
            with as_store_errors():
                return function()

        return await to_thread.run_sync(call, limiter=self._threads)

    async def _read(self, sha256: str) -> AsyncIterator[bytes]:
        path = self._object(sha256)
        try:
            file = await self._in_thread(lambda: path.open("rb"))
        except MissingFileError:
            raise PayloadNotFoundError(sha256) from None
        with file:
            while chunk := await self._in_thread(lambda: file.read(CHUNK_BYTES)):
                yield chunk

    def _object(self, sha256: str) -> Path:
        check_key(sha256)
        return self._objects / sha256

    def _links_of(self, job_id: str) -> Path:
        # A job id may have characters that a file name may not.
        return self._jobs / hashlib.sha256(job_id.encode()).hexdigest()

    def _notes_of(self, owner: str) -> Path:
        return self._owners / hashlib.sha256(owner.encode()).hexdigest()

    def _prepare(self) -> None:
        for directory in (self._objects.parent, self._objects, self._jobs, self._owners, self._incoming):
            make_private_directory(directory)
            _sync(directory.parent)
        # Whatever was being written when the last scheduler ended.
        for left_over in self._incoming.iterdir():
            left_over.unlink()
        self._room.count(sum(path.stat().st_size for path in self._objects.iterdir()))

    def _keep(self, file: IO[bytes], payload: StoredPayload, owner: str) -> None:
        """Make a complete file the object of its content, durably."""
        self._date(Path(file.name))
        os.fsync(file.fileno())
        path = self._objects / payload.sha256
        with self._lock:
            try:
                # Not written again: jobs may have links to it.
                self._renew(path)
            except FileNotFoundError:
                Path(file.name).rename(path)
                self._room.count(payload.size)
                _sync(self._objects)
            else:
                self._note(self._put_again, payload.sha256)
            if owner:
                self._note(self._notes_of(owner), payload.sha256)

    def _note(self, notes: Path, sha256: str) -> None:
        """Note a put, as durably as `_renew`."""
        note = notes / sha256
        try:
            self._renew(note)
        except FileNotFoundError:
            _make_directory(notes)
            note.touch(mode=0o600)
            self._date(note)
            _sync(note)
            _sync(notes)

    def _date(self, path: Path) -> None:
        now = self._clock()
        os.utime(path, (now, now))

    def _renew(self, path: Path) -> None:
        """Date an object or a note anew, durably but for a few minutes.

        Raises:
            FileNotFoundError: There is none.
        """
        before = path.stat().st_mtime
        self._date(path)
        if self._clock() - before > _UNSYNCED_S:
            _sync(path)

    def _release(self, links: Path) -> None:
        # The lock is taken for one file at a time, so that a job with very many holds up nobody.
        for link in list(links.iterdir()) if links.exists() else []:
            with self._lock:
                link.unlink(missing_ok=True)
                if not self._is_noted(self._put_again / link.name):
                    self._remove_if_unlinked(self._objects / link.name)
        with self._lock:
            # Something may have been retained meanwhile.
            _remove_if_empty(links)

    def _is_noted(self, note: Path) -> bool:
        return note.exists() and not _is_older(note, self._clock() - self._unused_s)

    def _remove_if_unlinked(self, path: Path) -> bool:
        if not path.exists():
            return False
        status = path.stat()
        if status.st_nlink > 1:
            return False
        path.unlink()
        self._room.give_back(status.st_size)
        return True


class _FileUpload(Upload):
    def __init__(self, store: LocalPayloadStore, file: IO[bytes]) -> None:
        self._store = store
        self._file = file
        self.written = 0

    async def write(self, chunk: bytes) -> None:
        await self._store._in_thread(lambda: self._append(chunk))

    async def keep(self, payload: StoredPayload, owner: str) -> None:
        await self._store._in_thread(lambda: self._store._keep(self._file, payload, owner))

    def _append(self, chunk: bytes) -> None:
        self._store._room.take(len(chunk), self.written)
        self.written += len(chunk)
        view = memoryview(chunk)
        while view:
            view = view[self._file.write(view) :]


def _discard(file: IO[bytes]) -> None:
    """Close a file and remove it, unless it has become an object and so has another name."""
    try:
        file.close()
    finally:
        Path(file.name).unlink(missing_ok=True)


def _make_directory(directory: Path) -> None:
    if not directory.exists():
        directory.mkdir(mode=0o700)
        _sync(directory.parent)


def _remove_if_empty(directory: Path) -> None:
    if directory.exists() and not any(directory.iterdir()):
        directory.rmdir()


def _is_older(path: Path, time: float) -> bool:
    try:
        return path.stat().st_mtime < time
    except FileNotFoundError:
        return False


def _sync(path: Path) -> None:
    """Make what is known of a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
