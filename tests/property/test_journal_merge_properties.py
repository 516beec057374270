"""However records are split into commits, the journal recovers the same: what a naive reading of them says."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

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
    RolloutBegun,
    RolloutChanged,
    TrajectoryBegan,
    TrajectoryClosed,
    TrajectoryCommandTimeout,
    TrajectoryOpened,
    TrajectoryPlaced,
)
from callsheet.scheduler.core.words.recovered import (
    Recovered,
    RecoveredAction,
    RecoveredJob,
    RecoveredRollout,
    RecoveredTrajectory,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.journals import JournalPlace
from tests.support.samples import examples

JOBS = ("a", "b")
NAMES = ("1", "2", "3", "4")

Key = TypeVar("Key")
Row = TypeVar("Row")


@dataclass
class Model:
    """What records mean, one at a time, without any cleverness."""

    jobs: dict[str, RecoveredJob] = field(default_factory=dict)
    trajectories: dict[tuple[str, str], RecoveredTrajectory] = field(default_factory=dict)
    actions: dict[tuple[str, str], RecoveredAction] = field(default_factory=dict)
    outcomes: dict[tuple[str, str], bytes] = field(default_factory=dict)
    rollouts: dict[str, RecoveredRollout] = field(default_factory=dict)

    def recovered(self) -> Recovered:
        """What a restart finds."""
        return Recovered(
            tuple(self.jobs.values()),
            tuple(self.trajectories.values()),
            tuple(self.actions.values()),
            rollouts=tuple(self.rollouts[service] for service in sorted(self.rollouts)),
        )

    def apply(self, record: Record) -> bool:
        """Applies a record; False if it cannot follow those before it."""
        match record:
            case JobOpened(job_id, spec):
                return _add(self.jobs, job_id, RecoveredJob(job_id, spec))
            case JobClosed(job_id):
                return self._close_job(job_id)
            case JobLease(job_id, expired, left) if job_id in self.jobs:
                self.jobs[job_id] = replace(self.jobs[job_id], expired=expired, left=left)
            case PolicyVersionPublished(job_id, version) if job_id in self.jobs:
                self.jobs[job_id] = replace(self.jobs[job_id], policy_version=version)
            case RolloutBegun(job_id, service, version, epoch, sequence, plan) if job_id in self.jobs:
                if self._publishes_for_another(job_id, service):
                    return False
                self.rollouts[service] = RecoveredRollout(job_id, service, version, epoch, sequence, plan)
            case RolloutChanged(job_id, service, reference, begun) if service in self.rollouts:
                if self._publishes_for_another(job_id, service):
                    return False
                self.rollouts[service] = replace(self.rollouts[service], reference=reference, begun=begun)
            case TrajectoryOpened(job_id, name, spec, version, opened_at) if job_id in self.jobs:
                opened = RecoveredTrajectory(job_id, name, spec, version, opened_at)
                return _add(self.trajectories, (job_id, name), opened)
            case TrajectoryBegan(job_id, name, version) if (job_id, name) in self.trajectories:
                began = replace(self.trajectories[job_id, name], policy_version=version, began=True)
                self.trajectories[job_id, name] = began
            case TrajectoryPlaced(job_id, name, sandbox, manager, held, cores, died) if (
                job_id,
                name,
            ) in self.trajectories:
                placed = replace(self.trajectories[job_id, name], sandbox_id=sandbox, manager_id=manager)
                placed = replace(placed, had_sandbox=True, died=died)
                self.trajectories[job_id, name] = replace(placed, held=held, held_cores=cores)
            case TrajectoryClosed(job_id, name, end, reason, at) if (job_id, name) in self.trajectories:
                closed = replace(self.trajectories[job_id, name], end=end, reason=reason, closed_at=at)
                self.trajectories[job_id, name] = closed
            case TrajectoryCommandTimeout(job_id, name, timeout) if (job_id, name) in self.trajectories:
                self.trajectories[job_id, name] = replace(self.trajectories[job_id, name], command_timeout=timeout)
            case GroupCancelled(job_id, name) if (job_id, name) in self.trajectories:
                self.trajectories[job_id, name] = replace(self.trajectories[job_id, name], group_cancelled=True)
            case ActionSubmitted(job_id, name, trajectory, body_hash, spec, at, copies) if job_id in self.jobs:
                row = RecoveredAction(job_id, name, trajectory, body_hash, spec, at, copies)
                return _add(self.actions, (job_id, name), row)
            case ActionDispatched() | ActionCancelRequested() | ActionRequeued() | ActionFinished():
                return self._apply_to_action(record)
            case _:
                return False
        return True

    def _publishes_for_another(self, job_id: str, service: str) -> bool:
        return service in self.rollouts and self.rollouts[service].job_id != job_id

    def _close_job(self, job_id: str) -> bool:
        if self.jobs.pop(job_id, None) is None:
            return False
        of_job: tuple[dict[tuple[str, str], Any], ...] = (self.trajectories, self.actions, self.outcomes)
        self.rollouts = {name: each for name, each in self.rollouts.items() if each.job_id != job_id}
        for rows in of_job:
            for key in [key for key in rows if key[0] == job_id]:
                del rows[key]
        return True

    def _apply_to_action(
        self, record: ActionDispatched | ActionCancelRequested | ActionRequeued | ActionFinished
    ) -> bool:
        key = (record.job_id, record.action_id)
        action = self.actions.get(key)
        if action is None or key in self.outcomes:
            return False
        match record:
            case ActionDispatched(_, _, attempt, epoch, sequence, manager, incarnation):
                token = replace(action, attempt=attempt, epoch=epoch, sequence=sequence)
                self.actions[key] = replace(token, state="dispatched", manager_id=manager, incarnation=incarnation)
            case ActionCancelRequested(_, _, reason):
                self.actions[key] = replace(action, cancel_reason=reason)
            case ActionRequeued(_, _, attempt):
                self.actions[key] = replace(
                    action, state="queued", attempt=attempt, epoch=0, sequence=0, manager_id="", incarnation=""
                )
            case ActionFinished(_, _, state, outcome, at):
                ended = replace(action, state=state, spec=b"", finished_at=at, outcome_bytes=len(outcome))
                self.actions[key] = ended
                self.outcomes[key] = outcome
        return True


def _add(rows: dict[Key, Row], key: Key, row: Row) -> bool:
    if key in rows:
        return False
    rows[key] = row
    return True


jobs = st.sampled_from(JOBS)
names = st.sampled_from(NAMES)
small = st.integers(0, 9)
bodies = st.binary(max_size=4)
times = st.floats(0, 1e9)
held = st.dictionaries(st.sampled_from(["cpu", "memory"]), small)
states = st.sampled_from(["succeeded", "failed", "cancelled", "expired"])

any_record: st.SearchStrategy[Record] = st.one_of(
    st.builds(JobOpened, jobs, bodies),
    st.builds(JobClosed, jobs),
    st.builds(JobLease, jobs, st.booleans(), st.none() | times),
    st.builds(PolicyVersionPublished, jobs, small),
    st.builds(RolloutBegun, jobs, names, small, small, small, bodies),
    st.builds(RolloutChanged, jobs, names, bodies, st.booleans()),
    st.builds(TrajectoryCommandTimeout, jobs, names, times),
    st.builds(GroupCancelled, jobs, names),
    st.builds(TrajectoryOpened, jobs, names, bodies, small, times),
    st.builds(TrajectoryBegan, jobs, names, small),
    st.builds(TrajectoryPlaced, jobs, names, names, names, held, st.lists(small, max_size=3).map(tuple), st.booleans()),
    st.builds(TrajectoryClosed, jobs, names, st.sampled_from(["completed", "abandoned"]), names, st.just(7.0)),
    st.builds(ActionSubmitted, jobs, names, names, bodies, bodies, times),
    st.builds(ActionDispatched, jobs, names, small, small, small, names, names),
    st.builds(ActionCancelRequested, jobs, names, names),
    st.builds(ActionRequeued, jobs, names, small),
    st.builds(ActionFinished, jobs, names, states, bodies, times),
)


@st.composite
def batches_of_records(draw: st.DrawFn) -> list[list[Record]]:
    """Records of which each may follow those before it, split anywhere."""
    model = Model()
    batches: list[list[Record]] = [[]]
    # Two open jobs to begin with, or most of what follows would be about nothing.
    for record in [JobOpened("a", b""), JobOpened("b", b""), *draw(st.lists(any_record, max_size=60))]:
        if model.apply(record):
            if draw(st.booleans()):
                batches.append([])
            batches[-1].append(record)
    return batches


def recover(batches: list[list[Record]]) -> tuple[Recovered, dict[tuple[str, str], bytes]]:
    """What the journal has after a restart: all it recovers, and all outcomes."""
    with tempfile.TemporaryDirectory() as directory:
        place = JournalPlace(Path(directory), None)
        with place.begun() as journal:
            for batch in batches:
                journal.commit(batch)
                journal.purge(1)
        with place.begun() as journal:
            recovered = journal.load()
            outcomes = {
                (action.job_id, action.action_id): outcome
                for action in recovered.actions
                if (outcome := journal.outcome(action.job_id, action.action_id)) is not None
            }
            return recovered, outcomes


@settings(max_examples=examples(20))
@given(batches_of_records())
def test_any_split_into_commits_recovers_the_same(batches: list[list[Record]]) -> None:
    model = Model()
    records = [record for batch in batches for record in batch]
    for record in records:
        assert model.apply(record)
    expected = (model.recovered(), model.outcomes)
    assert recover(batches) == expected
    assert recover([[record] for record in records]) == expected
    assert recover([records]) == expected
