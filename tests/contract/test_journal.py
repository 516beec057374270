"""What every journal does, on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from callsheet.scheduler.core.words.records import (
    ActionCancelRequested,
    ActionDispatched,
    ActionFinished,
    ActionRequeued,
    ActionSubmitted,
    GroupCancelled,
    JobClosed,
    JobLease,
    JobOpened,
    PolicyVersionPublished,
    Record,
    TrajectoryClosed,
    TrajectoryCommandTimeout,
    TrajectoryOpened,
    TrajectoryPlaced,
)
from callsheet.scheduler.core.words.recovered import Recovered, RecoveredAction, RecoveredJob, RecoveredTrajectory
from callsheet.scheduler.store.journal_errors import (
    DatabaseLockedError,
    DataDirectoryLockedError,
    InconsistentRecordError,
    StaleEpochError,
)

from tests.support.journals import JournalPlace, submitted
from tests.support.servers import PostgresServer

OPENED = JobOpened("job", b"job spec")
QUEUED = RecoveredAction("job", "a", "trajectory", b"hash of a", b"spec", 12.5)
SENT = ActionDispatched("job", "a", 1, 1, 7, "manager", "process")
DISPATCHED = replace(
    QUEUED, state="dispatched", attempt=1, epoch=1, sequence=7, manager_id="manager", incarnation="process"
)


def recovered_after(place: JournalPlace, *batches: Sequence[Record]) -> Recovered:
    """What a new scheduler finds after one that committed `batches` has ended."""
    with place.begun() as journal:
        for batch in batches:
            journal.commit(batch)
    with place.begun() as journal:
        return journal.load()


def test_epochs_grow_over_restarts(place: JournalPlace) -> None:
    epochs = []
    for _ in range(3):
        with place.begun() as journal:
            epochs.append(journal.epoch)
    assert epochs == [1, 2, 3]


def test_an_empty_journal_recovers_nothing(place: JournalPlace) -> None:
    assert recovered_after(place) == Recovered()


def test_jobs_come_back_with_their_newest_policy_version(place: JournalPlace) -> None:
    published = PolicyVersionPublished("job", 5)
    expected = (RecoveredJob("job", b"job spec", policy_version=5),)
    assert recovered_after(place, [OPENED], [PolicyVersionPublished("job", 4), published]).jobs == expected


def test_what_is_left_of_a_lease_comes_back(place: JournalPlace) -> None:
    for leases, expected in (
        ([JobLease("job", expired=False, left=7.5)], RecoveredJob("job", b"job spec", expired=False, left=7.5)),
        ([JobLease("job", expired=True, left=None)], RecoveredJob("job", b"job spec", expired=True)),
        ([JobLease("job", expired=False, left=None)], RecoveredJob("job", b"job spec")),
    ):
        with place.begun() as journal:
            journal.commit([*leases] if journal.load().jobs else [OPENED, *leases])
        with place.begun() as journal:
            assert journal.load().jobs == (expected,)


def test_a_default_of_commands_and_the_cancel_of_a_group_come_back_with_their_trajectory(place: JournalPlace) -> None:
    recovered = recovered_after(
        place,
        [OPENED, TrajectoryOpened("job", "t", b"", 0, 1.0)],
        [TrajectoryCommandTimeout("job", "t", 45.0), GroupCancelled("job", "t")],
    )
    plain = RecoveredTrajectory("job", "t", b"", 0, 1.0)
    assert recovered.trajectories == (replace(plain, command_timeout=45.0, group_cancelled=True),)


def test_trajectories_come_back(place: JournalPlace) -> None:
    recovered = recovered_after(
        place,
        [OPENED, TrajectoryOpened("job", "t1", b"one", 3, 1.5), TrajectoryOpened("job", "t2", b"two", 4, 2.5)],
        [TrajectoryPlaced("job", "t1", "sandbox", "manager", {"memory": 256, "cpu": 2}, (3, 5))],
        [TrajectoryClosed("job", "t2", "completed", "why", 4.0)],
    )
    held = ({"memory": 256, "cpu": 2}, (3, 5))
    assert recovered.trajectories == (
        RecoveredTrajectory("job", "t1", b"one", 3, 1.5, "", "sandbox", "manager", *held, had_sandbox=True),
        RecoveredTrajectory("job", "t2", b"two", 4, 2.5, end="completed", reason="why", closed_at=4.0),
    )


def test_that_a_trajectory_had_a_sandbox_and_that_an_action_copies_it_come_back(place: JournalPlace) -> None:
    placed = [TrajectoryPlaced("job", "t", "s", "m", {}, ()), TrajectoryPlaced("job", "t", "", "", {}, (), died=True)]
    copying = ActionSubmitted("job", "a", "t", b"hash of a", b"spec", 12.5, copies_sandbox=True)
    recovered = recovered_after(place, [OPENED, TrajectoryOpened("job", "t", b"", 0, 1.0)], [*placed, copying])
    trajectory, action = recovered.trajectories[0], recovered.actions[0]
    found = (trajectory.sandbox_id, trajectory.had_sandbox, trajectory.died, action.copies_sandbox)
    assert found == ("", True, True, True)


@pytest.mark.parametrize("together", [True, False], ids=["one commit", "a commit each"])
@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], QUEUED),
        ([SENT], DISPATCHED),
        ([SENT, ActionRequeued("job", "a", 1)], replace(QUEUED, attempt=1)),
        (
            [SENT, ActionCancelRequested("job", "a", "no more")],
            replace(DISPATCHED, cancel_reason="no more"),
        ),
        (
            [SENT, ActionFinished("job", "a", "failed", b"outcome", 20.0)],
            replace(DISPATCHED, state="failed", spec=b"", finished_at=20.0, outcome_bytes=7),
        ),
        (
            [ActionFinished("job", "a", "expired", b"", 20.0)],
            replace(QUEUED, state="expired", spec=b"", finished_at=20.0),
        ),
    ],
    ids=["submitted", "dispatched", "requeued", "cancel requested", "failed", "expired"],
)
def test_an_action_comes_back_in_its_last_state(
    place: JournalPlace, records: list[Record], expected: RecoveredAction, together: bool
) -> None:
    every = [OPENED, submitted("a"), *records]
    batches = [every] if together else [[record] for record in every]
    assert recovered_after(place, *batches).actions == (expected,)


def test_actions_come_back_in_the_order_of_their_first_commit(place: JournalPlace) -> None:
    names = ["z", "b", "y", "a"]
    with place.begun() as journal:
        journal.commit([OPENED, JobOpened("other", b""), submitted("z"), submitted("b", "other")])
        journal.commit([submitted("y"), ActionDispatched("job", "z", 1, 1, 1, "manager", "process")])
    with place.begun() as journal:
        journal.commit([submitted("a", "other")])
        assert [action.action_id for action in journal.load().actions] == names


def test_the_same_action_id_in_two_jobs_is_two_actions(place: JournalPlace) -> None:
    with place.begun() as journal:
        journal.commit([OPENED, JobOpened("other", b""), submitted("a"), submitted("a", "other")])
        journal.commit([ActionFinished("other", "a", "succeeded", b"result", 1.0)])
        assert [action.state for action in journal.load().actions] == ["queued", "succeeded"]
        assert journal.outcome("job", "a") is None
        assert journal.outcome("other", "a") == b"result"


def test_ids_may_have_any_length_and_any_script(place: JournalPlace) -> None:
    action_id = "Σ'\"%s;🎬" * 32
    recovered = recovered_after(place, [JobOpened("jöb %(x)s", b""), submitted(action_id, "jöb %(x)s")])
    assert recovered.actions[0].action_id == action_id
    assert recovered.jobs[0].job_id == "jöb %(x)s"


def test_an_outcome_is_there_after_its_commit_and_after_a_restart(place: JournalPlace) -> None:
    outcome = bytes(range(256)) * 300
    with place.begun() as journal:
        journal.commit([OPENED, submitted("a"), submitted("b")])
        assert journal.outcome("job", "a") is None
        journal.commit([ActionFinished("job", "a", "succeeded", outcome, 1.0)])
        assert journal.outcome("job", "a") == outcome
    with place.begun() as journal:
        assert journal.outcome("job", "a") == outcome
        assert journal.outcome("job", "b") is None
        assert journal.outcome("job", "unknown") is None
        assert journal.outcome("unknown", "a") is None


def test_outcomes_are_read_by_other_threads_while_commits_go_on(place: JournalPlace) -> None:
    seen: list[bytes | None] = []
    with place.begun() as journal:
        journal.commit([OPENED, submitted("a"), ActionFinished("job", "a", "succeeded", b"result", 1.0)])
        threads = [
            threading.Thread(target=lambda: seen.extend(journal.outcome("job", "a") for _ in range(20)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for number in range(50):
            journal.commit([submitted(f"b{number}")])
        for thread in threads:
            thread.join()
    assert seen == [b"result"] * 80


@pytest.mark.parametrize(
    "records",
    [
        [ActionFinished("job", "a", "failed", b"second", 2.0)],
        [ActionDispatched("job", "a", 2, 1, 2, "manager", "process")],
        [ActionFinished("job", "unknown", "failed", b"", 2.0)],
        [ActionDispatched("job", "unknown", 1, 1, 1, "manager", "process")],
        [TrajectoryClosed("job", "unknown", "abandoned", "why", 4.0)],
        [submitted("b", "unknown")],
        [TrajectoryOpened("unknown", "t", b"", 0, 1.0)],
        [OPENED],
        [submitted("b"), submitted("b")],
        [submitted("b"), ActionFinished("job", "b", "failed", b"", 1.0), ActionRequeued("job", "b", 1)],
    ],
    ids=repr,
)
def test_a_record_that_cannot_be_fails_its_commit_as_a_whole(place: JournalPlace, records: list[Record]) -> None:
    with place.begun() as journal:
        journal.commit([OPENED, submitted("a"), ActionFinished("job", "a", "succeeded", b"first", 1.0)])
        with pytest.raises(InconsistentRecordError):
            journal.commit([submitted("bystander"), *records])
    with place.begun() as journal:
        assert [action.action_id for action in journal.load().actions] == ["a"]
        assert journal.outcome("job", "a") == b"first"


def test_a_closed_job_is_forgotten_and_its_id_free(place: JournalPlace) -> None:
    with place.begun() as journal:
        journal.commit([OPENED, TrajectoryOpened("job", "t", b"", 0, 1.0), submitted("a"), submitted("b")])
        journal.commit([ActionFinished("job", "a", "succeeded", b"result", 1.0)])
        journal.commit([ActionFinished("job", "b", "cancelled", b"", 1.0), JobClosed("job")])
        assert journal.load() == Recovered()
        assert journal.outcome("job", "a") is None
        journal.commit([JobOpened("job", b"again"), submitted("a")])
        journal.purge(100)
        assert [action.state for action in journal.load().actions] == ["queued"]


def test_a_job_that_opens_closes_and_opens_in_one_commit(place: JournalPlace) -> None:
    records: list[Record] = [
        OPENED,
        submitted("a"),
        JobClosed("job"),
        JobOpened("job", b"again"),
        submitted("b"),
        JobClosed("never"),
    ]
    recovered = recovered_after(place, records)
    assert recovered.jobs == (RecoveredJob("job", b"again"),)
    assert [action.action_id for action in recovered.actions] == ["b"]


def test_late_changes_under_a_closed_job_mean_nothing(place: JournalPlace) -> None:
    late: list[Record] = [
        ActionFinished("job", "a", "cancelled", b"", 1.0),
        TrajectoryClosed("job", "t", "abandoned", "why", 4.0),
        PolicyVersionPublished("job", 9),
    ]
    opening: list[Record] = [OPENED, submitted("a")]
    assert recovered_after(place, opening, [JobClosed("job")], late) == Recovered()
    assert recovered_after(place, [*opening, JobClosed("job"), *late]) == Recovered()


def test_rows_of_a_closed_job_are_purged_in_parts_and_after_a_restart(place: JournalPlace) -> None:
    with place.begun() as journal:
        actions = [submitted(f"a{number}") for number in range(25)]
        journal.commit([OPENED, JobOpened("other", b""), TrajectoryOpened("job", "t", b"", 0, 1.0), *actions])
        journal.commit([submitted("kept", "other"), JobClosed("job")])
        journal.purge(10)
        assert journal.has_garbage
    assert place.count("actions") == 16
    with place.begun() as journal:
        while journal.has_garbage:
            journal.purge(10)
        assert [action.action_id for action in journal.load().actions] == ["kept"]
    assert [place.count(table) for table in ("actions", "trajectories", "closed_jobs")] == [1, 0, 0]


def test_a_newer_epoch_shuts_out_the_old_scheduler(place: JournalPlace) -> None:
    with place.begun() as journal:
        journal.commit([OPENED])
        with place.outside() as connection:
            connection.execute("UPDATE scheduler SET epoch = epoch + 1")
        with pytest.raises(StaleEpochError, match="epoch is 1 and the journal's is 2"):
            journal.commit([submitted("a")])
        with pytest.raises(StaleEpochError):
            journal.load()
    with place.begun() as journal:
        assert journal.epoch == 3
        assert journal.load().actions == ()


def test_a_commit_waits_for_an_epoch_that_is_just_beginning(place: JournalPlace) -> None:
    errors: list[Exception] = []

    def commit() -> None:
        try:
            journal.commit([submitted("a")])
        except StaleEpochError as error:
            errors.append(error)

    with place.begun() as journal:
        journal.commit([OPENED])
        with place.outside() as connection:
            connection.execute("UPDATE scheduler SET epoch = epoch + 1")
            thread = threading.Thread(target=commit)
            thread.start()
            # It cannot end yet; if it could, this is ample time to be caught at it.
            thread.join(0.2)
        thread.join()
    assert len(errors) == 1
    assert place.count("actions") == 0


def test_a_second_scheduler_is_refused_and_told_who_has_the_directory(place: JournalPlace) -> None:
    with place.begun():
        # The lock is between processes, and so is the test.
        program = (
            f"from tests.support.journals import *; JournalPlace(Path({str(place.data_dir)!r}), {place.url!r}).open()"
        )
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
        )
        assert "DataDirectoryLockedError" in result.stderr
        with pytest.raises(DataDirectoryLockedError, match=f"process id {os.getpid()}"):
            place.open()
    place.open().close()


def test_a_second_scheduler_on_another_machine_is_refused_by_the_database(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    place = JournalPlace(tmp_path / "here", postgres.new_database())
    elsewhere = JournalPlace(tmp_path / "elsewhere", place.url)
    with place.begun():
        with pytest.raises(DatabaseLockedError, match=f"callsheet-scheduler .* pid {os.getpid()}"):
            elsewhere.open_impatiently()
        with pytest.raises(DatabaseLockedError):
            elsewhere.open_impatiently()
    elsewhere.open().close()


def test_misuse_is_refused(place: JournalPlace) -> None:
    journal = place.open()
    with pytest.raises(RuntimeError, match="begin_epoch"):
        journal.commit([OPENED])
    journal.close()
    journal.close()
    with pytest.raises(RuntimeError, match="closed"):
        journal.begin_epoch()


def test_other_databases_are_refused(place: JournalPlace) -> None:
    with pytest.raises(ValueError, match="must start with 'postgresql://'"):
        JournalPlace(place.data_dir, "mysql://host/name").open()
    place.open().close()


def test_no_text_ends_the_journal(place: JournalPlace) -> None:
    nul = "a\0b"
    found = recovered_after(
        place,
        [
            OPENED,
            TrajectoryOpened("job", "trajectory", b"spec", 0, 1.0),
            TrajectoryPlaced("job", "trajectory", nul, "manager", {}, ()),
            TrajectoryClosed("job", "trajectory", "abandoned", nul, 4.0),
            submitted("a"),
            SENT,
            ActionCancelRequested("job", "a", nul),
        ],
    )
    (trajectory,), (action,) = found.trajectories, found.actions
    assert trajectory.sandbox_id == trajectory.reason == action.cancel_reason == "a\N{REPLACEMENT CHARACTER}b"
