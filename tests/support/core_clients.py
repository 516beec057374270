"""What clients and operators ask of the core in a test, each with its answer at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import inf

from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.commands import CoreCommand
from callsheet.scheduler.core.words.engine_weights import PublishRight, WeightsOffer
from callsheet.scheduler.core.words.model import (
    ActionKey,
    ActionKind,
    ActionRequest,
    GroupRequest,
    JobRequest,
    Opened,
    TrajectoryEnd,
    TrajectoryRequest,
    TrajectoryResult,
)
from callsheet.scheduler.core.words.peers import Watcher
from callsheet.scheduler.core.words.plan import CoreChange, Plan
from callsheet.scheduler.core.words.refusals import RefusedError

from tests.support.core_journal import CoreJournal
from tests.support.core_requests import JOB, action_request, job_request, key_of, trajectory_request
from tests.support.peers import Peer


@dataclass(eq=False)
class Taker:
    """Who waits for a batch, and what it was given."""

    gone: bool = False
    given: list[str] = field(default_factory=list)

    def put_batch(self, job_id: str, batch_id: str) -> None:
        """See `BatchTaker`."""
        self.given.append(batch_id)


class CoreClients(ABC):
    """The clients' side of a world: a refused request raises its refusal."""

    def __init__(self, journal: CoreJournal) -> None:
        self.journal = journal
        self.answers: dict[int, RefusedError | None] = {}
        self.opened: dict[int, Opened] = {}
        self.session: str | None = "client"
        self._sequence = 0

    def finish(self, trajectory_id: str, worth: str = "", *, job_id: str = JOB) -> None:
        """Finishes a trajectory with a result; what it is worth stands for its payload too."""
        payloads = (worth,) if worth else ()
        result = TrajectoryResult(f"{trajectory_id} {worth}".encode(), payloads)
        self.journal.learn(result)
        reply = self._reply()
        closed = events.TrajectoryCloseRequested(reply, job_id, trajectory_id, TrajectoryEnd.COMPLETED, result)
        self._ask(closed, reply)

    def take(
        self, batch_id: str, at_least: int = 1, at_most: int = 0, *, lease_s: float = 60.0, job_id: str = JOB
    ) -> Taker:
        """Asks for a batch, of no more than the least unless `at_most` says so."""
        reply, taker = self._reply(), Taker()
        self._ask(events.BatchRequested(reply, job_id, batch_id, at_least, at_most or at_least, lease_s, taker), reply)
        return taker

    def settle(
        self, batch_id: str, settlement: events.Settlement = events.Settlement.ACKNOWLEDGE, *, job_id: str = JOB
    ) -> None:
        """Acknowledges a batch, or what else is wanted with it."""
        reply = self._reply()
        self._ask(events.BatchSettled(reply, job_id, batch_id, settlement), reply)

    @abstractmethod
    def handle(self, *happened: events.Event) -> list[CoreCommand]:
        """Lets things happen to the core; what it answers is in `answers` then."""

    @abstractmethod
    def plan(self) -> Plan:
        """Asks the planner once and carries its proposal out."""

    def _reply(self) -> events.ReplyTo:
        """Where the next answer goes: to `session`, a client session, or to a unary rpc if that is None."""
        self._sequence += 1
        return events.ReplyTo(Peer(self.session or "unary"), self._sequence, holds=self.session is not None)

    def _ask(self, event: events.Event, reply: events.ReplyTo) -> None:
        self.handle(event)
        assert reply.sequence in self.answers, f"{event} was not answered"
        refusal = self.answers[reply.sequence]
        if refusal is not None:
            raise refusal

    def job(self, request: JobRequest | None = None) -> Opened:
        """Opens a job."""
        request = request or job_request()
        self.journal.learn(request)
        reply = self._reply()
        self._ask(events.JobOpenRequested(reply, request), reply)
        return self.opened[reply.sequence]

    def hold(self, job_id: str = JOB) -> None:
        """Holds a job."""
        reply = self._reply()
        self._ask(events.JobHoldRequested(reply, job_id), reply)

    def release(self, job_id: str = JOB) -> None:
        """Holds a job no longer."""
        reply = self._reply()
        self._ask(events.JobReleaseRequested(reply, job_id), reply)

    def end_session(self, session: str = "client") -> None:
        """A client session is over."""
        self.handle(events.SessionEnded(Peer(session)))

    def cancel_work(self, group_id: str = "", trajectory_id: str = "", *, reason: str = "", job_id: str = JOB) -> None:
        """Gives up what is unfinished."""
        reply = self._reply()
        self._ask(events.WorkCancelRequested(reply, job_id, group_id, trajectory_id, reason), reply)

    def close_job(self, job_id: str = JOB) -> None:
        """Closes a job."""
        reply = self._reply()
        self._ask(events.JobCloseRequested(reply, job_id), reply)

    def trajectory(self, request: str | TrajectoryRequest) -> Opened:
        """Opens a trajectory."""
        request = trajectory_request(request) if isinstance(request, str) else request
        self.journal.learn(request)
        reply = self._reply()
        self._ask(events.TrajectoryOpenRequested(reply, request), reply)
        return self.opened[reply.sequence]

    def trajectories(self, *trajectory_ids: str, group: GroupRequest | None = None) -> None:
        """Opens trajectories, of one group if there is one."""
        for trajectory_id in trajectory_ids:
            self.trajectory(trajectory_request(trajectory_id, group=group))

    def close_trajectory(
        self, trajectory_id: str, end: TrajectoryEnd = TrajectoryEnd.COMPLETED, *, job_id: str = JOB
    ) -> None:
        """Closes a trajectory."""
        reply = self._reply()
        self._ask(events.TrajectoryCloseRequested(reply, job_id, trajectory_id, end), reply)

    def submit(self, *requests: ActionRequest, watcher: str | Watcher | None = "client", plan: bool = False) -> None:
        """Submits actions one after another; `plan` asks the planner afterwards."""
        named = Peer(watcher) if isinstance(watcher, str) and not isinstance(watcher, Peer) else watcher
        for request in requests:
            self.journal.learn(request)
            reply = self._reply()
            self._ask(events.SubmitRequested(reply, request, named), reply)
        if plan:
            self.plan()

    def reset(self, action_id: str, trajectory_id: str = "t", *, plan: bool = False) -> None:
        """Submits an env_reset with the default demand."""
        self.submit(action_request(action_id, ActionKind.ENV_RESET, trajectory_id), plan=plan)

    def step(self, action_id: str, trajectory_id: str = "t", *, plan: bool = False) -> None:
        """Submits an env_step with the default demand."""
        self.submit(action_request(action_id, ActionKind.ENV_STEP, trajectory_id), plan=plan)

    def cancel(self, action: str | ActionKey, reason: str = "") -> None:
        """Cancels an action."""
        reply = self._reply()
        self._ask(events.CancelRequested(reply, key_of(action), reason), reply)

    def watch(self, action: str, watcher: str) -> None:
        """Attaches somebody to an action."""
        reply = self._reply()
        self._ask(events.OutcomeRequested(reply, key_of(action), Peer(watcher)), reply)

    def publish(
        self,
        version: int,
        job_id: str = JOB,
        offer: WeightsOffer | None = None,
        right: PublishRight | None = None,
    ) -> None:
        """Publishes a policy version, and weights if there is an offer; by a token of a right if there is one."""
        if offer is not None:
            self.journal.learn(offer)
        reply = self._reply()
        self._ask(events.PolicyPublished(reply, job_id, version, offer, right), reply)

    def resize(self, action: str | ActionKey, cores: int) -> None:
        """Has a plan change the cores of a running attempt."""
        self.handle(events.PlanReady(Plan(core_changes=(CoreChange(key_of(action), cores),))))

    def drain(self, manager_id: str, *, deadline: float = inf, dry_run: bool = False) -> None:
        """Takes a manager out of service."""
        reply = self._reply()
        self._ask(events.DrainRequested(reply, manager_id, deadline, dry_run), reply)

    def heal(self, manager_id: str) -> None:
        """Has the quarantined engines of a manager go back to their first weights."""
        reply = self._reply()
        self._ask(events.HealRequested(reply, manager_id), reply)
