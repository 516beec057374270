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

import hashlib
import os
import tempfile
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection
from functools import partial
from pathlib import Path
from typing import IO, Final, Self, TypeVar

from anyio import CapacityLimiter, to_thread
from callsheet.options.private_files import make_private_directory
from callsheet.scheduler.store.disk_room import DiskRoom, MissingFileError, as_store_errors
from callsheet.scheduler.store.errors import PayloadNotFoundError
from callsheet.scheduler.store.payloads import (
    CHUNK_BYTES,
    DEFAULT_MAX_BYTES,
    DEFAULT_UNUSED_S,
    PayloadMeter,
    StoredPayload,
    check_key,
    rechunk,
    verified,
)

_T = TypeVar("_T")
_THREADS: Final = 8
# A loss of power may take back a date that was renewed after less time than this.
_UNSYNCED_S: Final = 600.0


class LocalPayloadStore:
    """A `PayloadStore` in a directory of a local file system. Open it with `open`."""

    def __init__(
        self,
        directory: Path,
        max_bytes: int,
        unused_s: float,
        max_stored_bytes: int | None,
        clock: Callable[[], float],
    ) -> None:
        self._objects = directory / "objects"
        self._jobs = directory / "jobs"
        self._owners = directory / "owners"
        self._put_again = self._owners / "again"
        self._incoming = directory / "incoming"
        self._clock = clock
        self._max_bytes = max_bytes
        self._unused_s = unused_s
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
            max_bytes: The most bytes of one payload.
            unused_s: Seconds that a payload is kept while no job retains it.
            max_stored_bytes: The most bytes of all payloads; None leaves some of the disk free.
            clock: Seconds since the epoch.
        """
        store = cls(directory, max_bytes, unused_s, max_stored_bytes, clock)
        await store._in_thread(store._prepare)
        return store

    async def put(
        self, chunks: AsyncIterable[bytes], expected: StoredPayload | None = None, owner: str = ""
    ) -> StoredPayload:
        """See `PayloadStore.put`."""
        meter = PayloadMeter(self._max_bytes)
        file = await self._in_thread(self._create)
        written = 0
        try:
            async for chunk in rechunk(chunks):
                await self._in_thread(partial(self._append, file, meter, chunk))
                written += len(chunk)
            payload = meter.finish(expected)
            await self._in_thread(lambda: self._keep(file, payload, owner))
        finally:
            # What has become an object is counted as that.
            self._room.give_back(written)
            _discard(file)
        return payload

    async def get(self, sha256: str) -> AsyncIterator[bytes]:
        """See `PayloadStore.get`."""
        async for chunk in verified(self._read(sha256), sha256):
            yield chunk

    async def size(self, sha256: str) -> int:
        """See `PayloadStore.size`."""
        path = self._object(sha256)
        try:
            return (await self._in_thread(path.stat)).st_size
        except MissingFileError:
            raise PayloadNotFoundError(sha256) from None

    async def unknown_to(self, owner: str, job_id: str, sha256s: Collection[str]) -> list[str]:
        """See `PayloadStore.unknown_to`."""
        places = (self._notes_of(owner), self._links_of(job_id))

        def unknown() -> list[str]:
            return [each for each in sha256s if not any((place / self._object(each).name).exists() for place in places)]

        return await self._in_thread(unknown)

    async def retain(self, job_id: str, sha256s: Collection[str]) -> Collection[str]:
        """See `PayloadStore.retain`."""
        return await self._in_thread(lambda: self._retain(job_id, sha256s))

    async def release(self, job_id: str, sha256s: Collection[str]) -> None:
        """See `PayloadStore.release`."""
        await self._in_thread(lambda: self._unlink(self._links_of(job_id), sha256s))

    async def idle(self, job_id: str, idle_s: float) -> list[str]:
        """See `PayloadStore.idle`."""
        return await self._in_thread(lambda: self._idle(self._links_of(job_id), self._clock() - idle_s))

    async def release_idle(self, job_id: str, sha256s: Collection[str], idle_s: float) -> int:
        """See `PayloadStore.release_idle`: a link that goes does not renew the date of its object."""
        used_before = self._clock() - idle_s
        return await self._in_thread(lambda: self._unlink(self._links_of(job_id), sha256s, used_before))

    async def release_job(self, job_id: str) -> None:
        """See `PayloadStore.release_job`."""
        await self._in_thread(lambda: self._release(self._links_of(job_id)))

    async def release_all_but(self, job_ids: Collection[str]) -> None:
        """See `PayloadStore.release_all_but`."""
        await self._in_thread(lambda: self._release_all_but(job_ids))

    async def remove_unused(self) -> int:
        """See `PayloadStore.remove_unused`."""
        return await self._in_thread(lambda: self._remove_unused(self._clock() - self._unused_s))

    async def aclose(self) -> None:
        """See `PayloadStore.aclose`: nothing is open between calls."""

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

    def _create(self) -> IO[bytes]:
        # Not buffered: a disk that is full says so when it is written to, and not when it is closed.
        return tempfile.NamedTemporaryFile(dir=self._incoming, delete=False, buffering=0)

    def _append(self, file: IO[bytes], meter: PayloadMeter, chunk: bytes) -> None:
        meter.add(chunk)
        self._room.take(len(chunk))
        view = memoryview(chunk)
        try:
            while view:
                view = view[file.write(view) :]
        except BaseException:
            self._room.give_back(len(chunk))
            raise

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
            if not notes.exists():
                notes.mkdir(mode=0o700)
                _sync(notes.parent)
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

    def _retain(self, job_id: str, sha256s: Collection[str]) -> Collection[str]:
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
            if not links.exists():
                links.mkdir(mode=0o700)
                _sync(self._jobs)
            try:
                for sha256 in new:
                    (links / sha256).hardlink_to(self._objects / sha256)
                _sync(links)
            except OSError:
                for sha256 in new:
                    (links / sha256).unlink(missing_ok=True)
                raise
            return new

    def _idle(self, links: Path, used_before: float) -> list[str]:
        # Without the lock, as there may be very many: one that goes meanwhile is idle no more.
        try:
            names = [link.name for link in links.iterdir()]
        except FileNotFoundError:
            return []
        return [name for name in names if _is_older(links / name, used_before)]

    def _unlink(self, links: Path, sha256s: Collection[str], used_before: float | None = None) -> int:
        """Unlink some objects; those alone that were used last before a time, if it is given."""
        unlinked = 0
        with self._lock:
            for sha256 in sha256s:
                check_key(sha256)
                if used_before is None or _is_older(links / sha256, used_before):
                    (links / sha256).unlink(missing_ok=True)
                    unlinked += 1
            if links.exists() and not any(links.iterdir()):
                links.rmdir()
        return unlinked

    def _release(self, links: Path) -> None:
        if not links.exists():
            return
        # The lock is taken for one file at a time, so that a job with very many holds up nobody.
        for link in list(links.iterdir()):
            with self._lock:
                link.unlink(missing_ok=True)
                if not self._is_noted(self._put_again / link.name):
                    self._remove_if_unlinked(self._objects / link.name)
        with self._lock:
            # Something may have been retained meanwhile; then it is not empty, and stays.
            if links.exists() and not any(links.iterdir()):
                links.rmdir()

    def _is_noted(self, note: Path) -> bool:
        return note.exists() and not _is_older(note, self._clock() - self._unused_s)

    def _release_all_but(self, job_ids: Collection[str]) -> None:
        kept = {self._links_of(job_id).name for job_id in job_ids}
        for links in list(self._jobs.iterdir()):
            if links.name not in kept:
                self._release(links)

    def _remove_unused(self, put_before: float) -> int:
        removed = 0
        for path in list(self._objects.iterdir()):
            with self._lock:
                if path.exists() and path.stat().st_mtime < put_before:
                    removed += self._remove_if_unlinked(path)
        for notes in list(self._owners.iterdir()):
            self._forget_puts(notes, put_before)
        return removed

    def _forget_puts(self, notes: Path, put_before: float) -> None:
        # One file at a time, too: an owner may have put very many in a day.
        for note in list(notes.iterdir()):
            with self._lock:
                if note.stat().st_mtime < put_before:
                    note.unlink()
        with self._lock:
            if not any(notes.iterdir()):
                notes.rmdir()

    def _remove_if_unlinked(self, path: Path) -> bool:
        if not path.exists():
            return False
        status = path.stat()
        if status.st_nlink > 1:
            return False
        path.unlink()
        self._room.give_back(status.st_size)
        return True


def _discard(file: IO[bytes]) -> None:
    """Close a file and remove it, unless it has become an object and so has another name."""
    try:
        file.close()
    finally:
        Path(file.name).unlink(missing_ok=True)


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
