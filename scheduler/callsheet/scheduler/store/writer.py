"""Group commit: a thread that commits what the event loop hands it, as many records at a time as have gathered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final

import anyio
from callsheet.scheduler.core.words.records import ActionFinished, ActionSubmitted, Record
from callsheet.scheduler.store.journal import Journal
from callsheet.scheduler.store.journal_errors import JournalBackloggedError, JournalStoppedError

OnCommitted = Callable[[], None]
OnFatal = Callable[[BaseException], None]

# While commits never pause, rows of closed jobs are still deleted after every so many of them.
_COMMITS_PER_PURGE: Final = 64


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Bounds of a writer.

    Attributes:
        backlog: Submits beyond this many uncommitted records are refused. A caller should stop taking work well before.
        records_per_commit: A commit gathers no further once it has this many records.
        bytes_per_commit: Or once its specs and outcomes have this many bytes.
        rows_per_purge: Rows of closed jobs deleted at a time.
    """

    backlog: int = 1_000_000
    records_per_commit: int = 2_048
    bytes_per_commit: int = 8 * 1024 * 1024
    rows_per_purge: int = 1_000


@dataclass(frozen=True, slots=True)
class _Submission:
    records: Sequence[Record]
    on_committed: OnCommitted
    size: int


class GroupCommitWriter:
    """Commits records in the order of their submits and then calls back, in the same order, on the event loop.

    While one commit runs, what arrives gathers for the next one. All methods are called on the event loop.

    A commit that fails leaves the writer unusable: nothing after it is committed or called back, and `on_fatal` is
    called with the error, once, on the event loop. The process must then end, since its state is ahead of the journal.
    """

    def __init__(self, journal: Journal, on_fatal: OnFatal, limits: WriterLimits | None = None) -> None:
        self._journal = journal
        self._on_fatal = on_fatal
        self._limits = limits or WriterLimits()
        self._queue: SimpleQueue[_Submission | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal-writer")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = anyio.Event()
        self._closed = False
        self._failed = False
        # Each counter is written by one thread only, so neither needs a lock.
        self._submitted = 0
        self._committed = 0
        self._submitted_bytes = 0
        self._committed_bytes = 0

    def start(self) -> None:
        """Start the thread. It does not end by itself: `close` must be called."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def backlog(self) -> int:
        """Records that are not committed yet."""
        return self._submitted - self._committed

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the specs and outcomes that are not committed yet."""
        return self._submitted_bytes - self._committed_bytes

    def submit(self, records: Sequence[Record], on_committed: OnCommitted) -> None:
        """Commit `records`, together and after all that were submitted before, then call `on_committed`.

        With no records it keeps its place, and proves that no newer epoch had begun by the time of its submit.

        Raises:
            JournalBackloggedError: The backlog is at its limit; the records were not taken.
            JournalStoppedError: The writer was closed or has failed; the records were not taken.
        """
        if self._closed or self._failed:
            raise JournalStoppedError("the journal's writer takes no more records: it was closed or has failed")
        if records and self.backlog >= self._limits.backlog:
            raise JournalBackloggedError(self.backlog, self._limits.backlog)
        self._submitted += len(records)
        size = _size(records)
        self._submitted_bytes += size
        self._queue.put(_Submission(records, on_committed, size))

    async def close(self, timeout_s: float) -> None:
        """Commit what was submitted, call back, and end the thread. Nothing can be submitted any more.

        Raises:
            TimeoutError: The thread has not ended within `timeout_s` seconds; it ends after its commits.
        """
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        if self._thread.ident is None:
            return
        with anyio.fail_after(timeout_s):
            await self._ended.wait()
        # It has nothing left to do but to return.
        self._thread.join()

    def _run(self) -> None:
        """Commits in the thread until it is asked to end, or until a commit fails."""
        try:
            self._commit_until_closed()
        except BaseException as error:
            # Whatever it was, the loop must hear of it: nothing is committed from here on.
            self._on_loop(self._fail, error)
        finally:
            self._on_loop(self._ended.set)

    def _commit_until_closed(self) -> None:
        commits = 0
        while True:
            first = self._next(commits)
            if first is None:
                return
            batch, closing = self._gather(first)
            records = [record for submission in batch for record in submission.records]
            self._journal.commit(records)
            commits += 1
            self._committed += len(records)
            self._committed_bytes += sum(submission.size for submission in batch)
            self._on_loop(self._call_back, [submission.on_committed for submission in batch])
            if closing:
                return

    def _next(self, commits: int) -> _Submission | None:
        """The next submission. Rows of closed jobs are deleted while there is none, and now and then while there is."""
        if self._journal.has_garbage and commits % _COMMITS_PER_PURGE == 0:
            self._journal.purge(self._limits.rows_per_purge)
        while self._journal.has_garbage:
            try:
                return self._queue.get_nowait()
            except Empty:
                self._journal.purge(self._limits.rows_per_purge)
        return self._queue.get()

    def _gather(self, first: _Submission) -> tuple[list[_Submission], bool]:
        """`first` and what else is waiting, within the limits; and whether the end was among it."""
        batch = [first]
        records = len(first.records)
        size = first.size
        while records < self._limits.records_per_commit and size < self._limits.bytes_per_commit:
            try:
                submission = self._queue.get_nowait()
            except Empty:
                break
            if submission is None:
                return batch, True
            batch.append(submission)
            records += len(submission.records)
            size += submission.size
        return batch, False

    def _on_loop(self, function: Callable[..., None], *arguments: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _call_back(self, callbacks: Sequence[OnCommitted]) -> None:
        """Call each, even if one raises: what they stand for is committed. An error of one is fatal all the same."""
        for callback in callbacks:
            try:
                callback()
            except Exception as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._failed:
            return
        self._failed = True
        self._on_fatal(error)


def _size(records: Sequence[Record]) -> int:
    """Bytes of the specs and outcomes in `records`; all else in them is small."""
    size = 0
    for record in records:
        if type(record) is ActionSubmitted:
            size += len(record.spec)
        elif type(record) is ActionFinished:
            size += len(record.outcome)
    return size
