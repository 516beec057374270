"""The core in virtual time, with a job whose trajectories have drawn lengths, slots to run them, and a trainer."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass

from callsheet.scheduler.core.machine import next_deadline
from callsheet.scheduler.core.state.entities import Job
from callsheet.scheduler.core.state.scheduler_state import CoreSettings
from callsheet.scheduler.core.words.commands import CancelAttempt, Dispatch
from callsheet.scheduler.core.words.events import AttemptCancelled, TimerFired
from callsheet.scheduler.core.words.model import ActionKind, Timeouts, Token
from callsheet.scheduler.core.words.staleness import StalenessPolicy
from callsheet.scheduler.planner.first_come import FirstComePlanner

from tests.support.core_clients import Taker
from tests.support.core_invariants import check_invariants
from tests.support.core_requests import JOB, action_request, job_request, trajectory_request
from tests.support.core_world import CoreWorld, service

MINUTE_S = 60.0
SLOTS = 128
TRAIN_S = 2 * MINUTE_S
SHORTEST_S, LONGEST_S = MINUTE_S, 60 * MINUTE_S
_EVER = 1e9
_LONG = Timeouts(schedule_to_start=_EVER, start_to_close=_EVER, schedule_to_close=_EVER)


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """How a trainer takes batches, each some seconds after the one before at the earliest."""

    at_least: int = 32
    at_most: int = 32
    every_s: float = 0.0


EACH_QUARTER = Trainer(at_least=1, at_most=2048, every_s=15 * MINUTE_S)
"""A version each quarter of an hour, with all that is ready."""


class StalenessWorld:
    """Trajectories begin as slots are free; the trainer takes a batch, trains on it, publishes, and takes the next.

    Attributes:
        version: The newest that was published.
        waited_s: How long the trainer waited for batches.
    """

    def __init__(self, policy: StalenessPolicy, seed: int, trainer: Trainer) -> None:
        settings = CoreSettings(manager_lease=_EVER, finished_actions_s=_EVER)
        self.version = 0
        self._trainer = trainer
        self.waited_s = 0.0
        planner = FirstComePlanner(hold_after=_EVER)
        self._world = CoreWorld(settings=settings, planner=planner, now=0.0, checked=False)
        self._world.job(job_request(max_staleness=policy.evict_beyond or 0, staleness=policy))
        self._manager = self._world.manager("m", service("work", {ActionKind.TOOL_CALL}, slots=SLOTS))
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self._ends: list[tuple[float, Token]] = []
        self._running: dict[Token, Dispatch] = {}
        self._taker = Taker()
        self._asked_at = 0.0
        self._asks_at = float("inf")
        self._trained_at = float("inf")

    @property
    def job(self) -> Job:
        """What the core has of the job."""
        return self._world.state.jobs[JOB]

    def run(self, hours: float) -> None:
        """Runs for so many virtual hours; the core's invariants hold in the end."""
        self._ask()
        while True:
            self._refill()
            self._look()
            until = min(self._ends[0][0] if self._ends else float("inf"), self._trained_at, self._asks_at)
            if until > hours * 60 * MINUTE_S:
                break
            self._world.now = until
            if until == self._trained_at:
                self._train()
            elif until == self._asks_at:
                self._ask()
            else:
                self._end(heapq.heappop(self._ends)[1])
            deadline = next_deadline(self._world.state)
            if deadline is not None and deadline <= until:
                self._world.handle(TimerFired())
        check_invariants(self._world.state)

    def _ask(self) -> None:
        self._asked_at, self._asks_at = self._world.now, float("inf")
        of = self._trainer
        self._taker = self._world.take(f"batch {self.version}", of.at_least, of.at_most, lease_s=_EVER)

    def _look(self) -> None:
        """Begins to train if a batch has come."""
        if self._taker.given and self._trained_at == float("inf"):
            self.waited_s += self._world.now - self._asked_at
            self._trained_at = self._world.now + TRAIN_S

    def _train(self) -> None:
        """The step is over: the version is published first, so that what begins now counts from it."""
        batch = f"batch {self.version}"
        self.version += 1
        self._trained_at = float("inf")
        self._world.publish(self.version)
        self._world.settle(batch)
        self._taker = Taker()
        self._asks_at = self._asked_at + self._trainer.every_s
        if self._asks_at <= self._world.now:
            self._ask()

    def _refill(self) -> None:
        """Opens trajectories for all slots, and lets begin what may."""
        while len(self.job.trajectories) < SLOTS:
            name = f"t{next(self._numbers):07d}"
            self._world.trajectory(trajectory_request(name, idle_timeout=_EVER))
            self._world.submit(action_request(name, ActionKind.TOOL_CALL, name, timeouts=_LONG, wait=True))
        self._world.plan()
        sent, self._manager.stream.sent = self._manager.stream.sent, []
        for command in sent:
            match command:
                case Dispatch(token=token):
                    length_s = SHORTEST_S * (LONGEST_S / SHORTEST_S) ** self._random.random()
                    self._running[token] = command
                    heapq.heappush(self._ends, (self._world.now + length_s, token))
                case CancelAttempt(token=token):
                    heapq.heappush(self._ends, (self._world.now, token))

    def _end(self, token: Token) -> None:
        """An action ends, and its trajectory with it; those of evicted ones were cancelled before."""
        dispatch = self._running.pop(token, None)
        if dispatch is None:
            return
        name = dispatch.request.key.action_id
        if name in self.job.trajectories:
            self._manager.end(dispatch)
            self._world.finish(name)
        else:
            self._manager.end(dispatch, AttemptCancelled())
