"""What the journal keeps of buffers and batches, on each database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

import pytest
from callsheet.scheduler.core.words import records
from callsheet.scheduler.store.journal import Journal

from tests.support.journals import JournalPlace


@pytest.fixture
def journal(place: JournalPlace) -> Iterator[Journal]:
    with place.begun() as journal:
        yield journal


def finished(name: str, number: int, job_id: str = "j") -> records.TrajectoryBuffered:
    return records.TrajectoryBuffered(job_id, name, "g", number, 3, 1.5, 2.5, b"result")


def taken(batch_id: str, *names: str) -> records.BatchTaken:
    return records.BatchTaken("j", batch_id, 2, 60.0, 4, names)


OPENED: Sequence[records.Record] = (records.JobOpened("j", b"spec"),)


def values_of(record: object) -> dict[str, object]:
    return {each.name: getattr(record, each.name) for each in fields(record)}  # type: ignore[arg-type]


@pytest.mark.parametrize("together", [True, False])
def test_what_is_buffered_and_leased_comes_back(journal: Journal, together: bool) -> None:
    history = [
        *OPENED,
        finished("a", 1),
        finished("b", 2),
        finished("c", 3),
        finished("d", 4),
        taken("one", "a"),
        taken("two", "b"),
        taken("three", "c"),
        records.BatchReturned("j", "two"),
        records.BatchAcknowledged("j", "one", ("a",)),
        records.BufferedTrajectoriesRemoved("j", ("d",)),
    ]
    for batch in [history] if together else [[each] for each in history]:
        journal.commit(batch)
    found = journal.load()
    assert [values_of(each) for each in found.buffered] == [
        values_of(each) for each in (finished("b", 2), finished("c", 3))
    ]
    assert [(each.batch_id, each.acknowledged, each.trajectory_ids) for each in found.batches] == [
        ("three", False, ("c",)),
        ("two", False, ()),
        ("one", True, ()),
    ]


def test_forgotten_acknowledgements_and_closed_jobs_leave_nothing(journal: Journal) -> None:
    journal.commit([*OPENED, finished("a", 1), finished("b", 2), taken("one", "a"), taken("two", "b")])
    journal.commit([records.BatchAcknowledged("j", "one", ("a",))])
    journal.commit([records.BatchAcknowledged("j", "two", ("b",), ("one",))])
    assert [each.batch_id for each in journal.load().batches] == ["two"]
    journal.commit([finished("d", 4), taken("missed", "d"), records.BatchReturned("j", "missed", ("missed",))])
    assert [each.batch_id for each in journal.load().batches] == ["two"]
    journal.commit([finished("c", 3), taken("three", "c"), records.JobClosed("j")])
    journal.commit([records.JobOpened("j", b"spec")])
    found = journal.load()
    assert (found.buffered, found.batches) == ((), ())


@pytest.mark.parametrize("together", [True, False])
def test_a_trajectory_that_was_let_begin_has_begun_after_a_restart(journal: Journal, together: bool) -> None:
    opened = [records.TrajectoryOpened("j", name, b"spec", 3, 1.5) for name in "ab"]
    history = [*OPENED, *opened, records.TrajectoryBegan("j", "b", 4)]
    for batch in [history] if together else [[each] for each in history]:
        journal.commit(batch)
    found = [(each.trajectory_id, each.policy_version, each.began) for each in journal.load().trajectories]
    assert found == [("a", 3, False), ("b", 4, True)]
