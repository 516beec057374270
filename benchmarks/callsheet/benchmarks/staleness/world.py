"""The real core in virtual time: trajectories of drawn lengths, slots to run them, and a trainer."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field, replace

from callsheet.benchmarks.staleness.settings import StalenessBenchSettings
from callsheet.scheduler.core import commands, events
from callsheet.scheduler.core.commands import CoreCommand, OutcomeFacts
from callsheet.scheduler.core.entities import Job
from callsheet.scheduler.core.machine import handle, next_deadline
from callsheet.scheduler.core.model import (
    ActionKey,
    ActionKind,
    ActionRequest,
    Demand,
    JobRequest,
    Opened,
    PriorityClass,
    RetryPolicy,
    Timeouts,
    Token,
    TrajectoryEnd,
    TrajectoryRequest,
    TrajectoryResult,
)
from callsheet.scheduler.core.refusals import RefusedError
from callsheet.scheduler.core.registration import NodeDescription, ServiceDescription
from callsheet.scheduler.core.staleness import StalenessPolicy
from callsheet.scheduler.core.state import CoreSettings, SchedulerState
from callsheet.scheduler.planner.first_come import FirstComePlanner

JOB = "job"
MINUTE = 60.0
_EVER = 1e9
_LONG = Timeouts(schedule_to_start=_EVER, start_to_close=_EVER, schedule_to_close=_EVER)


@dataclass(eq=False)
class Peer:
    """The other end of every stream; it notes nothing."""

    manager_id: str = "m"

    def put_result(self, sequence: int, refusal: RefusedError | None) -> None:
        """Fails where something was refused."""
        if refusal is not None:
            raise refusal

    def put_opened(self, sequence: int, opened: Opened) -> None:
        """Nothing to note."""


@dataclass(eq=False)
class Trainer:
    """Takes batches, one after another.

    Attributes:
        gone: It never is.
        has: The batch that it trains on; empty while it waits for one.
        version: The newest that it published.
        waited_s: How long it waited for batches.
    """

    gone: bool = False
    has: str = ""
    version: int = 0
    waited_s: float = 0.0
    _waits_since: float = 0.0

    def put_batch(self, job_id: str, batch_id: str) -> None:
        """See `BatchTaker`."""
        self.has = batch_id


@dataclass(slots=True)
class VirtualRun:
    """One run: `lived` counts the trajectories that began."""

    job: Job
    trainer: Trainer
    lived: int = 0


@dataclass(eq=False)
class StalenessWorld:
    """A scheduler's core with a job, a manager of slots and a trainer, in virtual seconds."""

    settings: StalenessBenchSettings
    policy: StalenessPolicy
    now: float = 0.0
    trainer: Trainer = field(default_factory=Trainer)

    def __post_init__(self) -> None:
        settings = CoreSettings(manager_lease=_EVER, finished_actions_s=_EVER)
        self.state = SchedulerState(1, _encode, settings)
        self._planner = FirstComePlanner(hold_after=_EVER)
        self._random = random.Random(self.settings.seed)
        self._due: list[tuple[float, int, events.Event | str]] = []
        self._order = itertools.count()
        self._numbers = itertools.count()
        self._peer = Peer()
        self._running: dict[Token, commands.Dispatch] = {}
        self._begun = 0

    def run(self) -> VirtualRun:
        """Runs for as long as the settings say."""
        self._begin()
        ends = self.settings.hours * 60.0 * MINUTE
        while self._due and self._due[0][0] <= ends:
            self.now, _, what = heapq.heappop(self._due)
            if isinstance(what, str):
                self._train_on(what)
            else:
                self._end(what)
            self._refill()
        return VirtualRun(self._job, self.trainer, self._begun)

    @property
    def _job(self) -> Job:
        return self.state.jobs[JOB]

    def _reply(self) -> events.ReplyTo:
        return events.ReplyTo(self._peer, 0)

    def _begin(self) -> None:
        policy = self.policy
        request = JobRequest(
            JOB,
            1.0,
            PriorityClass.TRAIN,
            0,
            policy.evict_beyond or 0,
            b"",
            detached=True,
            admit_within=policy.admit_within,
            select_within=policy.select_within,
        )
        node = NodeDescription("n", {}, ((0,),))
        slots = ServiceDescription("work", frozenset({ActionKind.TOOL_CALL}), self.settings.slots, {})
        self._handle(
            events.JobOpenRequested(self._reply(), request),
            events.ManagerJoined(self._peer, "m", "first", node, (slots,)),
            events.ManagerHeartbeat("m", self._peer),
        )
        self._take()
        self._refill()

    def _take(self) -> None:
        name = f"batch {self.trainer.version}"
        self.trainer._waits_since = self.now
        batch = events.BatchRequested(self._reply(), JOB, name, self.settings.batch, _EVER, self.trainer)
        self._handle(batch)

    def _refill(self) -> None:
        """Opens trajectories for all slots, and lets begin what may."""
        while len(self._job.trajectories) < self.settings.slots:
            self._open()
        while True:
            plan = self._planner.plan(self.state, self.now)
            before = self._job.live_trajectories, self._begun
            self._handle(events.PlanReady(plan))
            if (self._job.live_trajectories, self._begun) == before:
                return

    def _open(self) -> None:
        name = f"t{next(self._numbers):07d}"
        spec = name.encode()
        request = TrajectoryRequest(JOB, name, None, _EVER, spec)
        action = ActionRequest(
            ActionKey(JOB, name),
            ActionKind.TOOL_CALL,
            name,
            "",
            Demand(),
            _LONG,
            RetryPolicy(),
            1.0,
            wait_if_unservable=True,
            in_sandbox=False,
            expected_duration=0.0,
            body_hash=spec,
            spec=spec,
        )
        self._handle(
            events.TrajectoryOpenRequested(self._reply(), request),
            events.SubmitRequested(self._reply(), replace(action), None),
        )

    def _handle(self, *happened: events.Event) -> None:
        for command in handle(self.state, happened, self.now):
            self._carry_out(command)
        due = next_deadline(self.state)
        if due is not None and due <= self.now:
            self._handle(events.TimerFired())

    def _carry_out(self, command: CoreCommand) -> None:
        match command:
            case commands.Dispatch():
                length = self._length()
                self._running[command.token] = command
                self._begun += 1
                self._at(self.now + length, _ended(command, events.AttemptSucceeded(b"")))
            case commands.CancelAttempt():
                self._at(self.now, _ended(self._running[command.token], events.AttemptCancelled()))
            case commands.Refuse(refusal=refusal):
                raise refusal
            case commands.GiveBatch(taker=taker, job_id=job_id, batch_id=batch_id):
                taker.put_batch(job_id, batch_id)
                self.trainer.waited_s += self.now - self.trainer._waits_since
                self._at(self.now + self.settings.train * MINUTE, batch_id)
            case _:
                pass

    def _length(self) -> float:
        low, high = self.settings.shortest * MINUTE, self.settings.longest * MINUTE
        return float(low * (high / low) ** self._random.random())

    def _at(self, when: float, what: events.Event | str) -> None:
        heapq.heappush(self._due, (when, next(self._order), what))

    def _end(self, what: events.Event) -> None:
        assert isinstance(what, events.AttemptEnded)
        if self._running.pop(what.token, None) is None:
            return
        name = what.key.action_id
        self._handle(what)
        if name in self._job.trajectories:
            result = TrajectoryResult(b"r")
            closed = events.TrajectoryCloseRequested(self._reply(), JOB, name, TrajectoryEnd.COMPLETED, result)
            self._handle(closed)

    def _train_on(self, batch_id: str) -> None:
        """The step is over: the version is published first, so that what begins now counts from it."""
        self.trainer.version += 1
        self.trainer.has = ""
        self._handle(events.PolicyPublished(self._reply(), JOB, self.trainer.version))
        acknowledged = events.BatchSettled(self._reply(), JOB, batch_id, events.Settlement.ACKNOWLEDGE)
        self._handle(acknowledged)
        self._take()


def _encode(facts: OutcomeFacts) -> bytes:
    return b""


def _ended(grant: commands.Dispatch, result: events.AttemptResult) -> events.AttemptEnded:
    request = grant.request
    return events.AttemptEnded("m", grant.token, request.key, grant.attempt, result, True, 0.0, request.body_hash)
