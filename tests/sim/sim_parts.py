"""Parts of the simulation: virtual time, a journal that can lose what it has not committed, links that break."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from callsheet.scheduler.core.words import records, recovered
from callsheet.scheduler.core.words.commands import OutcomeFacts
from callsheet.scheduler.core.words.engine_weights import WeightsOffer
from callsheet.scheduler.core.words.model import (
    CPU,
    MEMORY,
    ActionKey,
    ActionKind,
    ActionRequest,
    Demand,
    JobRequest,
    PriorityClass,
    ResourceDemand,
    RetryPolicy,
    SpeedUp,
    Timeouts,
    TrajectoryRequest,
)


class Timeline:
    """Virtual time: things happen in order of their time, ties in order of their planning."""

    def __init__(self, seed: int) -> None:
        self.now = 1_000_000.0
        self.random = random.Random(seed)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0

    def after(self, delay: float, what: Callable[[], None]) -> None:
        """Plans something `delay` seconds from now."""
        self._planned += 1
        heapq.heappush(self._queue, (self.now + delay, self._planned, what))

    def run(self, until: float, done: Callable[[], bool]) -> None:
        """Lets time pass until nothing is left to wait for or the end is reached."""
        while self._queue and self._queue[0][0] <= until and not done():
            self.now, _, what = heapq.heappop(self._queue)
            what()


@dataclass(eq=False)
class Link:
    """One stream between two parties: messages keep their order, and all that is in flight is lost when it breaks."""

    time: Timeline
    slowness: float
    manager_id: str = ""
    up: bool = True
    _last: dict[str, float] = field(default_factory=dict)

    def send(self, direction: str, deliver: Callable[[], None]) -> None:
        """Delivers something at the other end, after everything sent before in the same direction."""
        arrival = max(self.time.now + self.time.random.expovariate(1.0 / self.slowness), self._last.get(direction, 0.0))
        self._last[direction] = arrival
        self.time.after(arrival - self.time.now, lambda: deliver() if self.up else None)


def no_weights(plan: bytes) -> WeightsOffer:
    """Nothing in this simulation publishes weights."""
    raise AssertionError(f"nobody published {plan!r}")


def encode_outcome(facts: OutcomeFacts) -> bytes:
    """Outcomes of the simulation are the action's key, its state and its result."""
    return f"{'/'.join(facts.key)} {facts.state.value} {facts.result!r} after {facts.attempts}".encode()


@dataclass
class SimJournal:
    """What survives a crash of the scheduler: committed records, kept as the real journal keeps them."""

    epoch: int = 0
    jobs: dict[str, recovered.RecoveredJob] = field(default_factory=dict)
    trajectories: dict[tuple[str, str], recovered.RecoveredTrajectory] = field(default_factory=dict)
    actions: dict[ActionKey, recovered.RecoveredAction] = field(default_factory=dict)
    outcomes: dict[ActionKey, bytes] = field(default_factory=dict)
    forgotten: list[tuple[str, bytes]] = field(default_factory=list)
    alive_at: float | None = None
    away: list[tuple[float, float]] = field(default_factory=list)

    def commit(self, batch: Sequence[records.Record]) -> None:
        """Applies records in order."""
        for record in batch:
            self._apply(record)

    def _apply(self, record: records.Record) -> None:
        match record:
            case records.JobOpened(job_id, spec, epoch, sequence):
                self.jobs[job_id] = recovered.RecoveredJob(job_id, spec, 0, begun_epoch=epoch, begun_sequence=sequence)
            case records.TrajectoryOpened(job_id, trajectory_id, spec, version, opened):
                self.trajectories[job_id, trajectory_id] = recovered.RecoveredTrajectory(
                    job_id, trajectory_id, spec, version, opened, "", "", {}, (), ""
                )
            case records.TrajectoryPlaced() as placed:
                self._replace_trajectory(
                    (placed.job_id, placed.trajectory_id),
                    sandbox_id=placed.sandbox_id,
                    manager_id=placed.manager_id,
                    held=placed.held,
                    held_cores=placed.held_cores,
                    had_sandbox=True,
                    died=placed.died,
                )
            case records.TrajectoryClosed(job_id, trajectory_id, end, reason, closed_at):
                self._replace_trajectory((job_id, trajectory_id), end=end, reason=reason, closed_at=closed_at)
            case records.JobLease(job_id, expired, left):
                self.jobs[job_id] = replace(self.jobs[job_id], expired=expired, left=left)
            case records.ActionSubmitted() as new:
                self.actions[ActionKey(new.job_id, new.action_id)] = recovered.RecoveredAction(
                    new.job_id,
                    new.action_id,
                    new.trajectory_id,
                    new.body_hash,
                    new.spec,
                    "queued",
                    0,
                    0,
                    0,
                    "",
                    new.submitted_at,
                    copies_sandbox=new.copies_sandbox,
                )
            case records.ActionDispatched(job_id, action_id, attempt, epoch, sequence, manager_id):
                self._replace_action(
                    ActionKey(job_id, action_id),
                    state="dispatched",
                    attempt=attempt,
                    epoch=epoch,
                    sequence=sequence,
                    manager_id=manager_id,
                )
            case records.ActionCancelRequested(job_id, action_id, reason):
                self._replace_action(ActionKey(job_id, action_id), cancel_reason=reason)
            case records.ActionRequeued(job_id, action_id, attempt):
                self._replace_action(ActionKey(job_id, action_id), state="queued", attempt=attempt)
            case records.ActionFinished(job_id, action_id, state, outcome, finished_at):
                key = ActionKey(job_id, action_id)
                assert key not in self.outcomes, f"{key} has a second outcome: {outcome!r} after {self.outcomes[key]!r}"
                self.outcomes[key] = outcome
                self._replace_action(key, state=state, finished_at=finished_at, outcome_bytes=len(outcome))
            case records.WorkForgotten(job_id, action_ids, entries, trajectory_ids):
                self.forgotten.append((job_id, entries))
                for trajectory_id in trajectory_ids:
                    del self.trajectories[job_id, trajectory_id]
                for action_id in action_ids:
                    del self.actions[ActionKey(job_id, action_id)], self.outcomes[ActionKey(job_id, action_id)]
            case records.SchedulerAway(_, since, until, forgotten):
                self.away = [each for each in self.away if each[1] > forgotten] + [(since, until)]
            case records.JobClosed() | records.PolicyVersionPublished():
                raise AssertionError(f"the simulated client never does what makes {record}")

    def _replace_action(self, key: ActionKey, **changes: object) -> None:
        row = self.actions[key]
        values = {name: getattr(row, name) for name in row.__slots__}
        self.actions[key] = recovered.RecoveredAction(**{**values, **changes})

    def _replace_trajectory(self, key: tuple[str, str], **changes: object) -> None:
        row = self.trajectories[key]
        values = {name: getattr(row, name) for name in row.__slots__}
        self.trajectories[key] = recovered.RecoveredTrajectory(**{**values, **changes})

    def recovered(self) -> recovered.Recovered:
        """What a restarted scheduler continues from."""
        return recovered.Recovered(
            tuple(self.jobs.values()),
            tuple(self.trajectories.values()),
            tuple(self.actions.values()),
            forgotten=tuple(self.forgotten),
            alive_at=self.alive_at,
            away=tuple(self.away),
        )


JOB_GRACE = 20.0
_DEMANDS = {
    ActionKind.GENERATE: Demand((ResourceDemand("requests", 1, 2),)),
    ActionKind.ENV_RESET: Demand((ResourceDemand(CPU, 1, 1), ResourceDemand(MEMORY, 64, 64, SpeedUp(), True))),
    ActionKind.ENV_STEP: Demand((ResourceDemand(CPU, 1, 2),)),
    ActionKind.REWARD: Demand((ResourceDemand(CPU, 1, 4, SpeedUp(0.9)),)),
}


def job_request(spec: bytes) -> JobRequest:
    """A job whose spec is its id."""
    return JobRequest(spec.decode(), 1.0, PriorityClass.TRAIN, 0, 0, spec, grace=JOB_GRACE)


def trajectory_request(spec: bytes) -> TrajectoryRequest:
    """A trajectory whose spec is "job/trajectory"."""
    job_id, trajectory_id = spec.decode().split("/")
    return TrajectoryRequest(job_id, trajectory_id, None, 3600.0, spec)


def action_request(spec: bytes) -> ActionRequest:
    """An action whose spec is "job/trajectory/action/KIND"."""
    job_id, trajectory_id, action_id, kind_name = spec.decode().split("/")
    kind = ActionKind[kind_name]
    return ActionRequest(
        key=ActionKey(job_id, action_id),
        kind=kind,
        trajectory_id=trajectory_id,
        service="",
        demand=_DEMANDS[kind],
        timeouts=Timeouts(600.0, 60.0, 900.0),
        retry=RetryPolicy(max_attempts=4),
        weight=1.0,
        wait_if_unservable=True,
        in_sandbox=kind in (ActionKind.ENV_RESET, ActionKind.ENV_STEP),
        expected_duration=0.0,
        body_hash=spec,
        spec=spec,
    )
