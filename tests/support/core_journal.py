"""A journal for tests of the core: records applied one by one to rows, and the state a restart continues from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, TypeVar

from callsheet.scheduler.core.recovery import RequestDecoder
from callsheet.scheduler.core.words import records
from callsheet.scheduler.core.words.costs import Cost
from callsheet.scheduler.core.words.engine_weights import WeightsOffer
from callsheet.scheduler.core.words.model import ActionRequest, JobRequest, TrajectoryRequest, TrajectoryResult
from callsheet.scheduler.core.words.recovered import (
    Recovered,
    RecoveredAction,
    RecoveredBatch,
    RecoveredJob,
    RecoveredRollout,
    RecoveredTrajectory,
)

Row = tuple[str, str]


class CoreJournal:
    """What survives the core. Requests are kept beside their specs, so that "decoding" is looking them up."""

    def __init__(self) -> None:
        self.epoch = 0
        self.jobs: dict[str, RecoveredJob] = {}
        self.closed_jobs: dict[tuple[str, float], Cost] = {}
        self.trajectories: dict[Row, RecoveredTrajectory] = {}
        self.actions: dict[Row, RecoveredAction] = {}
        self.outcomes: dict[Row, bytes] = {}
        self.finished: dict[Row, records.ActionSummary] = {}
        self.closed: list[records.ClosedAction] = []
        self.forgotten: dict[str, list[bytes]] = {}
        self.alive_at: float | None = None
        self.away: list[tuple[float, float]] = []
        self.rollouts: dict[str, RecoveredRollout] = {}
        self.buffered: dict[Row, records.TrajectoryBuffered] = {}
        self.batches: dict[Row, RecoveredBatch] = {}
        self.drains: dict[str, records.ManagerLeaves] = {}
        self._offers: dict[bytes, WeightsOffer] = {}
        self._results: dict[bytes, TrajectoryResult] = {}
        self._job_requests: dict[bytes, JobRequest] = {}
        self._trajectory_requests: dict[bytes, TrajectoryRequest] = {}
        self._action_requests: dict[bytes, ActionRequest] = {}
        self.decoder = RequestDecoder(
            lambda spec: self._job_requests[spec],
            lambda spec: self._trajectory_requests[spec],
            lambda spec: self._action_requests[spec],
            lambda plan: self._offers[plan],
            lambda encoded: self._results[encoded],
        )

    def learn(self, request: JobRequest | TrajectoryRequest | ActionRequest | WeightsOffer | TrajectoryResult) -> None:
        """Remembers what a spec stands for."""
        match request:
            case TrajectoryResult():
                self._results[request.encoded] = request
            case WeightsOffer():
                self._offers[request.plan] = request
            case JobRequest():
                self._job_requests[request.spec] = request
            case TrajectoryRequest():
                self._trajectory_requests[request.spec] = request
            case ActionRequest():
                self._action_requests[request.spec] = request

    def commit(self, batch: Iterable[records.Record]) -> None:
        """Applies records in order; a second outcome of an action is an error."""
        for record in batch:
            self._apply(record)

    def _apply(self, record: records.Record) -> None:
        match record:
            case records.JobOpened(job_id, spec, epoch, sequence, opened):
                self.jobs[job_id] = RecoveredJob(job_id, spec, epoch, sequence, opened)
            case records.JobClosed(job_id, _, opened, closed, cost):
                assert opened == self.jobs.pop(job_id).opened_at
                self.closed_jobs[job_id, closed] = cost
                self.forgotten.pop(job_id, None)
                self.rollouts = {name: each for name, each in self.rollouts.items() if each.job_id != job_id}
                kept = (self.trajectories, self.actions, self.outcomes, self.finished, self.buffered, self.batches)
                for rows in kept:
                    for key in [key for key in rows if key[0] == job_id]:
                        del rows[key]
            case records.ClosedJobGrew(job_id, closed, cost):
                assert (job_id, closed) in self.closed_jobs, f"{job_id} was not closed at {closed}"
                self.closed_jobs[job_id, closed] = cost
            case records.JobLease(job_id, expired, left):
                self.jobs[job_id] = replace(self.jobs[job_id], expired=expired, left=left)
            case records.PolicyVersionPublished(job_id, version):
                self.jobs[job_id] = replace(self.jobs[job_id], policy_version=version)
            case records.RolloutBegun(job_id, name, version, epoch, sequence, plan):
                self.rollouts[name] = RecoveredRollout(job_id, name, version, epoch, sequence, plan)
            case records.RolloutChanged(_, name, reference, begun):
                self.rollouts[name] = replace(self.rollouts[name], reference=reference, begun=begun)
            case records.CostGrown(job_id, of_job, of_trajectories):
                self.jobs[job_id] = replace(self.jobs[job_id], cost=of_job)
                for trajectory_id, account in of_trajectories.items():
                    self._change_trajectory(job_id, trajectory_id, cost=account)
            case records.WorkForgotten(job_id, action_ids, entries, trajectory_ids):
                self.forgotten.setdefault(job_id, []).append(entries)
                for trajectory_id in trajectory_ids:
                    del self.trajectories[job_id, trajectory_id]
                for key in [(job_id, action_id) for action_id in action_ids]:
                    del self.actions[key], self.outcomes[key], self.finished[key]
            case records.ManagerLeaves(manager_id, _, leaves_by):
                self.drains.pop(manager_id, None)
                if leaves_by is not None:
                    self.drains[manager_id] = record
            case records.SchedulerAway(_, since, until, forgotten):
                self.away = [each for each in self.away if each[1] > forgotten] + [(since, until)]
            case records.ClosedActionsKept(kept_actions, forgotten):
                self.closed = [each for each in (*self.closed, *kept_actions) if each.number > forgotten]
            case _:
                self._apply_to_trajectory(record)

    def _apply_to_trajectory(self, record: records.Record) -> None:
        match record:
            case records.TrajectoryOpened(job_id, trajectory_id, spec, version, opened):
                self.trajectories[job_id, trajectory_id] = RecoveredTrajectory(
                    job_id, trajectory_id, spec, version, opened
                )
            case records.TrajectoryBegan(job_id, trajectory_id, version):
                self._change_trajectory(job_id, trajectory_id, policy_version=version, began=True)
            case records.TrajectoryPlaced(job_id, trajectory_id, sandbox_id, manager_id, held, cores, died):
                self._change_trajectory(
                    job_id,
                    trajectory_id,
                    sandbox_id=sandbox_id,
                    manager_id=manager_id,
                    held=held,
                    held_cores=cores,
                    had_sandbox=True,
                    died=died,
                )
            case records.TrajectoryClosed(job_id, trajectory_id, end, reason, closed_at):
                self._change_trajectory(job_id, trajectory_id, end=end, reason=reason, closed_at=closed_at)
            case records.TrajectoryCommandTimeout(job_id, trajectory_id, timeout):
                self._change_trajectory(job_id, trajectory_id, command_timeout=timeout)
            case records.GroupCancelled(job_id, trajectory_id):
                self._change_trajectory(job_id, trajectory_id, group_cancelled=True)
            case _:
                self._apply_to_action(record)

    def _apply_to_buffer(self, record: records.Record) -> None:
        match record:
            case records.TrajectoryBuffered():
                key = (record.job_id, record.trajectory_id)
                assert key not in self.buffered, f"{key} finished twice"
                self.buffered[key] = record
            case records.BufferedTrajectoriesRemoved(job_id, trajectory_ids):
                for trajectory_id in trajectory_ids:
                    del self.buffered[job_id, trajectory_id]
            case records.BatchTaken(job_id, batch_id):
                assert (job_id, batch_id) not in self.batches, f"{batch_id} was taken twice"
                values = {each.name: getattr(record, each.name) for each in fields(records.BatchTaken)}
                self.batches[job_id, batch_id] = RecoveredBatch(**values)
            case records.BatchReturned(job_id, batch_id, forgotten):
                taken = self.batches.pop((job_id, batch_id))
                assert taken.trajectory_ids, f"{batch_id} went back, and was not leased"
                self.batches[job_id, batch_id] = replace(taken, size=0, trajectory_ids=())
                for each in forgotten:
                    del self.batches[job_id, each]
            case records.BatchAcknowledged(job_id, batch_id, trajectory_ids, forgotten, size):
                for trajectory_id in trajectory_ids:
                    del self.buffered[job_id, trajectory_id]
                taken = self.batches.pop((job_id, batch_id))
                self.batches[job_id, batch_id] = replace(taken, size=size, trajectory_ids=(), acknowledged=True)
                for each in forgotten:
                    del self.batches[job_id, each]
            case _:
                raise TypeError(f"{record!r} is no record")

    def _change_trajectory(self, job_id: str, trajectory_id: str, **changes: Any) -> None:
        self.trajectories[job_id, trajectory_id] = replace(self.trajectories[job_id, trajectory_id], **changes)

    def _apply_to_action(self, record: records.Record) -> None:
        match record:
            case records.ActionSubmitted(job_id, action_id, trajectory_id, body_hash, spec, submitted, copies):
                assert (job_id, action_id) not in self.actions, f"{action_id} was submitted twice"
                self.actions[job_id, action_id] = RecoveredAction(
                    job_id, action_id, trajectory_id, body_hash, spec, submitted, copies
                )
            case records.ActionDispatched(job_id, action_id, attempt, epoch, sequence, manager_id, incarnation):
                self.actions[job_id, action_id] = replace(
                    self._open_row(job_id, action_id),
                    state="dispatched",
                    attempt=attempt,
                    epoch=epoch,
                    sequence=sequence,
                    manager_id=manager_id,
                    incarnation=incarnation,
                )
            case records.ActionCancelRequested(job_id, action_id, reason):
                self.actions[job_id, action_id] = replace(self._open_row(job_id, action_id), cancel_reason=reason)
            case records.ActionRequeued(job_id, action_id, attempt):
                self.actions[job_id, action_id] = replace(
                    self._open_row(job_id, action_id), state="queued", attempt=attempt
                )
            case records.ActionFinished(job_id, action_id, state, outcome, finished_at, summary, keeps_spec):
                assert summary is not None
                kept = len(self.actions[job_id, action_id].spec) if keeps_spec else 0
                self.finished[job_id, action_id] = summary
                self.actions[job_id, action_id] = replace(
                    self._open_row(job_id, action_id),
                    state=state,
                    spec=b"",
                    finished_at=finished_at,
                    outcome_bytes=len(outcome) + kept,
                )
                self.outcomes[job_id, action_id] = outcome
            case _:
                self._apply_to_buffer(record)

    def _open_row(self, job_id: str, action_id: str) -> RecoveredAction:
        key = (job_id, action_id)
        assert key not in self.outcomes, f"{key} has its outcome already: {self.outcomes[key]!r}"
        return self.actions[key]

    def recovered(self) -> Recovered:
        """What a restarted scheduler continues from."""
        return Recovered(
            tuple(map(_apart, self.jobs.values())),
            tuple(map(_apart, self.trajectories.values())),
            tuple(self.actions.values()),
            tuple(self.finished.values()),
            tuple(self.closed),
            tuple((job_id, entries) for job_id, each in self.forgotten.items() for entries in each),
            self.alive_at,
            tuple(self.away),
            tuple(self.rollouts.values()),
            tuple(self.buffered.values()),
            tuple(self.batches.values()),
            tuple(self.drains.values()),
        )


_Accounted = TypeVar("_Accounted", RecoveredJob, RecoveredTrajectory)


def _apart(row: _Accounted) -> _Accounted:
    """A row whose account does not change with the core that takes it over."""
    return replace(row, cost=row.cost.copy()) if row.cost is not None else row
