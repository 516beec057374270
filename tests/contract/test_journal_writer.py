"""The group commit: order, gathering, bounds, and its one way to fail."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from callsheet.scheduler.core.words.records import ActionFinished, JobClosed, JobOpened, Record
from callsheet.scheduler.store.engine import SQLITE_FILE
from callsheet.scheduler.store.journal import Journal
from callsheet.scheduler.store.journal_errors import JournalBackloggedError, JournalStoppedError, StaleEpochError
from callsheet.scheduler.store.writer import GroupCommitWriter, WriterLimits

from tests.support.journals import JournalPlace, submitted

pytestmark = pytest.mark.anyio
DEADLINE_S = 30.0


class Commits:
    """A journal, and how many records each of its commits had."""

    def __init__(self, journal: Journal, patches: pytest.MonkeyPatch) -> None:
        self.journal = journal
        self.sizes: list[int] = []
        self.purged = threading.Event()
        commit, purge = journal.commit, journal.purge

        def noted_commit(records: Sequence[Record]) -> None:
            commit(records)
            self.sizes.append(len(records))

        def noted_purge(limit: int) -> None:
            purge(limit)
            if not journal.has_garbage:
                self.purged.set()

        patches.setattr(journal, "commit", noted_commit)
        patches.setattr(journal, "purge", noted_purge)


@pytest.fixture
def place(tmp_path: Path) -> JournalPlace:
    """A place for a journal on SQLite, whose one write lock a test can take."""
    return JournalPlace(tmp_path, None)


@pytest.fixture
def commits(place: JournalPlace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commits]:
    """An open journal with one open job."""
    with place.begun() as journal:
        journal.commit([JobOpened("job", b"")])
        yield Commits(journal, monkeypatch)


def unexpected(error: BaseException) -> None:
    """The writer must not fail in this test."""
    raise AssertionError(repr(error))


def nothing() -> None:
    """Nobody waits for this commit."""


@asynccontextmanager
async def writing(
    commits: Commits, limits: WriterLimits | None = None, on_fatal: Callable[[BaseException], None] = unexpected
) -> AsyncIterator[GroupCommitWriter]:
    """A writer that is started, and closed at the end."""
    writer = GroupCommitWriter(commits.journal, on_fatal, limits)
    writer.start()
    try:
        yield writer
    finally:
        with anyio.CancelScope(shield=True):
            await writer.close(DEADLINE_S)


async def flush(writer: GroupCommitWriter, timeout_s: float = DEADLINE_S) -> None:
    """Waits until all that was submitted so far is committed and called back."""
    reached = anyio.Event()
    writer.submit((), reached.set)
    with anyio.fail_after(timeout_s):
        await reached.wait()


@contextmanager
def commits_held_up(place: JournalPlace) -> Iterator[None]:
    """No commit ends while this lasts: somebody else has the database's write lock."""
    with closing(sqlite3.connect(place.data_dir / SQLITE_FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def test_callbacks_come_in_order_after_their_commits(commits: Commits) -> None:
    called: list[tuple[int, bool]] = []

    def committed(number: int) -> None:
        known = {action.action_id for action in commits.journal.load().actions}
        called.append((number, f"a{number}" in known))

    async with writing(commits) as writer:
        for number in range(20):
            writer.submit([submitted(f"a{number}")], partial(committed, number))
            await anyio.lowlevel.checkpoint()
        await flush(writer)
        assert called == [(number, True) for number in range(20)]
        assert writer.backlog == 0


async def test_what_arrives_during_a_commit_is_committed_together(place: JournalPlace, commits: Commits) -> None:
    called: list[int] = []
    async with writing(commits) as writer:
        with commits_held_up(place):
            for number in range(100):
                writer.submit([submitted(f"a{number}")], partial(called.append, number))
            assert writer.backlog == 100
            assert called == []
        await flush(writer)
    assert called == list(range(100))
    # The thread takes the first submits when it wakes; all others have gathered by the time that it is free again.
    assert sum(commits.sizes) == 100
    assert len(commits.sizes) <= 2


@pytest.mark.parametrize("limits", [WriterLimits(records_per_commit=10), WriterLimits(bytes_per_commit=1000)])
async def test_a_commit_has_a_bound(place: JournalPlace, commits: Commits, limits: WriterLimits) -> None:
    async with writing(commits, limits) as writer:
        with commits_held_up(place):
            for number in range(50):
                writer.submit([submitted(f"a{number}", spec=bytes(100))], nothing)
        await flush(writer)
    assert max(commits.sizes) == 10
    assert sum(commits.sizes) == 50


async def test_a_submit_without_records_keeps_its_place(place: JournalPlace, commits: Commits) -> None:
    called: list[str] = []
    async with writing(commits) as writer:
        writer.submit((), partial(called.append, "nothing before"))
        await flush(writer)
        with commits_held_up(place):
            writer.submit([submitted("a")], partial(called.append, "a"))
            writer.submit((), partial(called.append, "after a"))
            writer.submit([submitted("b")], partial(called.append, "b"))
            await anyio.lowlevel.checkpoint()
            assert called == ["nothing before"]
        await flush(writer)
    assert called == ["nothing before", "a", "after a", "b"]


async def test_a_full_backlog_refuses_records_but_no_callbacks(place: JournalPlace, commits: Commits) -> None:
    called: list[str] = []
    async with writing(commits, WriterLimits(backlog=3)) as writer:
        with commits_held_up(place):
            for name in ("a", "b", "c"):
                writer.submit([submitted(name)], partial(called.append, name))
            with pytest.raises(JournalBackloggedError, match="3 records wait"):
                writer.submit([submitted("d")], partial(called.append, "d"))
            writer.submit((), partial(called.append, "end"))
        await flush(writer)
        writer.submit([submitted("d")], partial(called.append, "d"))
    assert called == ["a", "b", "c", "end", "d"]


async def test_a_flush_gives_up_at_its_deadline_and_the_commits_go_on(place: JournalPlace, commits: Commits) -> None:
    async with writing(commits) as writer:
        with commits_held_up(place):
            writer.submit([submitted("a")], nothing)
            with pytest.raises(TimeoutError):
                await flush(writer, 0.01)
            with pytest.raises(TimeoutError):
                await writer.close(0.01)
        await writer.close(DEADLINE_S)
    assert commits.sizes == [1]


async def test_close_commits_what_was_submitted_and_takes_nothing_more(commits: Commits) -> None:
    called: list[int] = []
    async with writing(commits) as writer:
        for number in range(50):
            writer.submit([submitted(f"a{number}")], partial(called.append, number))
        await writer.close(DEADLINE_S)
        assert called == list(range(50))
        assert sum(commits.sizes) == 50
        with pytest.raises(JournalStoppedError):
            writer.submit((), nothing)


async def test_a_writer_that_was_never_started_can_be_closed(commits: Commits) -> None:
    await GroupCommitWriter(commits.journal, unexpected).close(DEADLINE_S)


@pytest.mark.parametrize("records", [[submitted("b")], []], ids=["records", "a proof that it leads"])
async def test_a_commit_that_fails_is_fatal(place: JournalPlace, commits: Commits, records: Sequence[Record]) -> None:
    called: list[str] = []
    errors: list[BaseException] = []
    failed = anyio.Event()

    def on_fatal(error: BaseException) -> None:
        errors.append(error)
        failed.set()

    async with writing(commits, on_fatal=on_fatal) as writer:
        writer.submit([submitted("a")], partial(called.append, "a"))
        await flush(writer)
        with place.outside() as connection:
            connection.execute("UPDATE scheduler SET epoch = epoch + 1")
        writer.submit(records, partial(called.append, "b"))
        with anyio.fail_after(DEADLINE_S):
            await failed.wait()
        with pytest.raises(JournalStoppedError):
            writer.submit([submitted("c")], partial(called.append, "c"))
    assert [type(error) for error in errors] == [StaleEpochError]
    assert called == ["a"]
    assert place.count("actions") == 1


async def test_a_callback_that_raises_is_fatal_but_the_others_are_called(place: JournalPlace, commits: Commits) -> None:
    called: list[str] = []
    errors: list[BaseException] = []
    async with writing(commits, on_fatal=errors.append) as writer:
        with commits_held_up(place):
            writer.submit([submitted("a")], partial(called.append, "a"))
            writer.submit([submitted("b")], lambda: called.remove("never there"))
            writer.submit([submitted("c")], partial(called.append, "c"))
        await writer.close(DEADLINE_S)
    assert [type(error) for error in errors] == [ValueError]
    assert called == ["a", "c"]


async def test_rows_of_closed_jobs_are_deleted_when_there_is_nothing_else_to_do(
    place: JournalPlace, commits: Commits
) -> None:
    async with writing(commits, WriterLimits(rows_per_purge=7)) as writer:
        actions = [submitted(f"a{number}") for number in range(100)]
        writer.submit([*actions, ActionFinished("job", "a0", "succeeded", b"", 1.0)], nothing)
        writer.submit([JobClosed("job"), JobOpened("other", b""), submitted("kept", "other")], nothing)
        await flush(writer)
        assert await anyio.to_thread.run_sync(commits.purged.wait, DEADLINE_S)
    assert place.count("actions") == 1


async def test_rows_of_closed_jobs_are_deleted_now_and_then_while_there_is(
    place: JournalPlace, commits: Commits
) -> None:
    limits = WriterLimits(records_per_commit=1, rows_per_purge=1000)
    async with writing(commits, limits) as writer:
        writer.submit([submitted("a")], nothing)
        writer.submit([JobClosed("job"), JobOpened("other", b"")], nothing)
        with commits_held_up(place):
            for number in range(200):
                writer.submit([submitted(f"b{number}", "other")], nothing)
        assert await anyio.to_thread.run_sync(commits.purged.wait, DEADLINE_S)
    assert place.count("actions") == 200
