"""What the journal keeps of finished actions, on SQLite and on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

from callsheet.scheduler.core.words.records import (
    ActionFinished,
    ActionSummary,
    ClosedAction,
    ClosedActionsKept,
    JobClosed,
    JobOpened,
)

from tests.support.journals import JournalPlace, submitted

OPENED = JobOpened("job", b"job spec")
STORY = [(12.5, "submitted"), (20.0, "outcome: failed (ENV lost)")]
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
BEFORE = (
    "job",
    "a",
    5,
    "failed",
    "lä'bel",
    "ENV",
    "lost",
    2,
    "m",
    "n",
    12.5,
    20.0,
    1.5,
    6.0,
    TRACEPARENT,
    "task",
    "api",
)
SUMMARY = ActionSummary(*BEFORE, {"cpu": 6.0}, {}, STORY)
FINISHED = ActionFinished("job", "a", "failed", b"outcome", 20.0, SUMMARY)


def test_an_open_jobs_finished_actions_come_back_without_their_stories(place: JournalPlace) -> None:
    with place.begun() as journal:
        journal.commit([OPENED, submitted("a"), submitted("b")])
        journal.commit([FINISHED])
        assert journal.load().finished == (replace(SUMMARY, story=[]),)


def test_actions_of_closed_jobs_come_back_with_their_stories(place: JournalPlace) -> None:
    with place.begun() as journal:
        journal.commit([OPENED, submitted("a"), FINISHED])
        journal.commit([JobClosed("job"), ClosedActionsKept((ClosedAction(1, 30.0, SUMMARY),), 0)])
    with place.begun() as journal:
        while journal.has_garbage:
            journal.purge(10)
        recovered = journal.load()
    assert (recovered.finished, recovered.closed) == ((), (ClosedAction(1, 30.0, SUMMARY),))


def test_a_long_storys_last_events_are_kept(place: JournalPlace) -> None:
    long = replace(SUMMARY, story=[(float(number), f"event {number}") for number in range(100)])
    with place.begun() as journal:
        journal.commit([ClosedActionsKept((ClosedAction(1, 30.0, long),), 0)])
        (closed,) = journal.load().closed
    assert closed.summary.story == long.story[-32:]


def test_what_is_forgotten_is_deleted(place: JournalPlace) -> None:
    def kept(*numbers: int, forgotten: int) -> ClosedActionsKept:
        return ClosedActionsKept(tuple(ClosedAction(number, 30.0, SUMMARY) for number in numbers), forgotten)

    with place.begun() as journal:
        journal.commit([kept(1, 2, forgotten=0), kept(3, forgotten=1)])
        assert [closed.number for closed in journal.load().closed] == [2, 3]
        journal.commit([kept(forgotten=3)])
        assert journal.load().closed == ()
    assert place.count("closed_actions") == 0
