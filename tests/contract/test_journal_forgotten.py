"""What the journal keeps of forgotten actions, and of the times in which no scheduler ran."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.state.forgotten_ids import entry, trajectory_entry
from callsheet.scheduler.core.words.model import ActionState, TrajectoryEnd
from callsheet.scheduler.core.words.records import (
    ActionFinished,
    ActionSubmitted,
    GroupCancelled,
    JobClosed,
    JobOpened,
    Record,
    SchedulerAlive,
    SchedulerAway,
    TrajectoryClosed,
    TrajectoryOpened,
    WorkForgotten,
)

from tests.support.journals import JournalPlace

OPENED = JobOpened("job", b"job spec", 3, 9)
ENTRIES = entry("a", b"hash", ActionState.SUCCEEDED) + entry("b", b"hash", ActionState.FAILED)


def finished(action_id: str) -> list[Record]:
    """An action that was submitted and has its outcome."""
    return [
        ActionSubmitted("job", action_id, "", b"hash", b"spec", 1.0),
        ActionFinished("job", action_id, "succeeded", b"outcome", 2.0),
    ]


@pytest.mark.parametrize("together", [True, False], ids=["one commit", "a commit each"])
def test_forgotten_actions_leave_their_entries(place: JournalPlace, together: bool) -> None:
    every = [OPENED, *finished("a"), *finished("b"), *finished("c"), WorkForgotten("job", ("a", "b"), ENTRIES)]
    with place.begun() as journal:
        for batch in [every] if together else [[record] for record in every]:
            journal.commit(batch)
    with place.begun() as journal:
        recovered = journal.load()
        assert recovered.forgotten == (("job", ENTRIES),)
        assert [(row.action_id, row.outcome_bytes) for row in recovered.actions] == [("c", 7)]
        assert [each.action_id for each in recovered.finished] == []
        assert journal.outcome("job", "a") is None
        assert (recovered.jobs[0].begun_epoch, recovered.jobs[0].begun_sequence) == (3, 9)
        journal.commit([WorkForgotten("job", ("c",), entry("c", b"hash", ActionState.SUCCEEDED))])
    with place.begun() as journal:
        assert len(journal.load().forgotten) == 2


@pytest.mark.parametrize("together", [True, False], ids=["one commit", "a commit each"])
def test_forgotten_trajectories_leave_their_entries(place: JournalPlace, together: bool) -> None:
    entries = trajectory_entry("a", b"spec", TrajectoryEnd.LOST)
    every: list[Record] = [OPENED]
    for name in ("a", "b"):
        every += [TrajectoryOpened("job", name, b"spec", 0, 1.0), TrajectoryClosed("job", name, "lost", "why", 2.5)]
    every += [*finished("c"), GroupCancelled("job", "b"), WorkForgotten("job", ("c",), entries, ("a",))]
    with place.begun() as journal:
        for batch in [every] if together else [[record] for record in every]:
            journal.commit(batch)
    with place.begun() as journal:
        recovered = journal.load()
        assert recovered.forgotten == (("job", entries),)
        (kept,) = recovered.trajectories
        assert (kept.trajectory_id, kept.end, kept.closed_at, kept.group_cancelled) == ("b", "lost", 2.5, True)
        assert recovered.actions == ()
    assert place.count("trajectories") == 1


def test_a_closed_job_takes_its_entries_with_it(place: JournalPlace) -> None:
    forgets = WorkForgotten("job", ("a", "b"), ENTRIES)
    with place.begun() as journal:
        journal.commit([OPENED, *finished("a"), *finished("b")])
        journal.commit([forgets])
        journal.commit([JobClosed("job"), forgets, JobOpened("job", b"again")])
        assert journal.load().forgotten == ()
        while journal.has_garbage:
            journal.purge(1)
    assert place.count("forgotten_actions") == 0
    assert place.count("actions") == 0


def test_times_without_a_scheduler_come_back_until_they_concern_nothing(place: JournalPlace) -> None:
    with place.begun() as journal:
        assert journal.load().alive_at is None
        journal.commit([SchedulerAlive(5.0), SchedulerAlive(10.0)])
    with place.begun() as journal:
        assert (journal.load().alive_at, journal.load().away) == (10.0, ())
        journal.commit([SchedulerAway(journal.epoch, 10.0, 20.0, 1.0)])
    with place.begun() as journal:
        assert (journal.load().alive_at, journal.load().away) == (20.0, ((10.0, 20.0),))
        journal.commit([SchedulerAway(journal.epoch, 25.0, 30.0, 20.0)])
    with place.begun() as journal:
        assert journal.load().away == ((25.0, 30.0),)
