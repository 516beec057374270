"""A simulated manager: real in its protocol, imaginary in its work."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import MEMORY, ActionKey, ActionKind, FailureKind, Token
from callsheet.scheduler.core.words.registration import (
    NodeDescription,
    QuotaDescription,
    RunningAttempt,
    SandboxRef,
    ServiceDescription,
)

from tests.sim.sim_parts import Link, Timeline

if TYPE_CHECKING:
    from tests.sim.sim_world import World

HEARTBEAT = 3.0
REQUESTS = "requests"
QUOTA = QuotaDescription(per_second=5.0, burst=4)


@dataclass(eq=False)
class SimManager:
    """Runs attempts for a random while. `starts` counts what really began, over all incarnations."""

    world: World
    manager_id: str
    kinds: frozenset[ActionKind]
    cores: int
    starts: Counter[ActionKey]
    shared: dict[str, int]
    incarnation: str = ""
    alive: bool = False
    link: Link | None = None
    greeted: bool = False
    running: dict[Token, commands.Dispatch] = field(default_factory=dict)
    ends: dict[Token, events.AttemptEnded] = field(default_factory=dict)
    sandboxes: dict[tuple[str, str], str] = field(default_factory=dict)
    cancelled: set[Token] = field(default_factory=set)

    @property
    def time(self) -> Timeline:
        """The world's time."""
        return self.world.time

    def start(self) -> None:
        """Starts a new process with nothing left of the old one."""
        self.alive = True
        self.incarnation = uuid.UUID(int=self.time.random.getrandbits(128)).hex
        self.running, self.ends, self.sandboxes, self.cancelled = {}, {}, {}, set()
        self.connect()
        self._beat(self.incarnation)

    def kill(self) -> None:
        """The process dies with all it ran and held."""
        self.alive = False
        self.cut()

    def cut(self) -> None:
        """Its stream breaks."""
        if self.link is not None:
            self.link.up = False
            self.world.manager_link_lost(self.manager_id, self.link)
        self.link = None

    def connect(self) -> None:
        """Dials until the scheduler is there."""
        if not self.alive or self.link is not None:
            return
        if not self.world.scheduler_up:
            self.time.after(0.5, self.connect)
            return
        self.link = Link(self.time, self.world.slowness, self.manager_id)
        self.greeted = False
        running = tuple(
            RunningAttempt(token, run.request.key, run.attempt, True, run.resources, run.cores, run.request.body_hash)
            for token, run in self.running.items()
        )
        sandboxes = tuple(SandboxRef(*key, sandbox_id) for key, sandbox_id in self.sandboxes.items())
        service = ServiceDescription("work", self.kinds, 0, {}, shared=self.shared)
        cores = tuple(range(self.cores))
        node = NodeDescription(f"node-{self.manager_id}", {MEMORY: 4096}, (cores,), {REQUESTS: QUOTA})
        joined = events.ManagerJoined(
            self.link, self.manager_id, self.incarnation, node, (service,), running, sandboxes
        )
        self.world.to_scheduler(self.link, joined)

    def registered(self) -> None:
        """Ends that were kept go first; the heartbeat after them says so."""
        self.greeted = True
        for end in self.ends.values():
            self._say(end)
        self._say(events.ManagerHeartbeat(self.manager_id))

    def _say(self, event: events.Event) -> None:
        if self.link is not None:
            self.world.to_scheduler(self.link, event)

    def _beat(self, incarnation: str) -> None:
        if self.alive and self.incarnation == incarnation:
            if self.greeted:
                self._say(events.ManagerHeartbeat(self.manager_id))
            self.time.after(HEARTBEAT, lambda: self._beat(incarnation))

    def dispatch(self, command: commands.Dispatch) -> None:
        """Begins an attempt."""
        key = command.request.key
        self.starts[key] += 1
        self.running[command.token] = command
        self._say(events.AttemptStarted(self.manager_id, command.token))
        duration = self.time.random.expovariate(1.0)
        self.time.after(duration, self._if_running(command, lambda: self._finish(command)))

    def _if_running(self, command: commands.Dispatch, what: Callable[[], None]) -> Callable[[], None]:
        incarnation = self.incarnation

        def run() -> None:
            if self.alive and self.incarnation == incarnation and command.token in self.running:
                what()

        return run

    def _finish(self, command: commands.Dispatch) -> None:
        del self.running[command.token]
        request = command.request
        result: events.AttemptResult = events.AttemptSucceeded(b"")
        place = (request.key.job_id, request.trajectory_id)
        if command.token in self.cancelled:
            result = events.AttemptCancelled()
        elif self.time.random.random() < self.world.failure_rate:
            result = events.AttemptFailed(FailureKind.INFRA, "simulated")
        elif request.kind is ActionKind.ENV_RESET:
            sandbox_id = f"{self.incarnation[:6]}-{command.token.epoch}-{command.token.sequence}"
            self.sandboxes[place] = sandbox_id
            result = events.AttemptSucceeded(b"", sandbox_id, request.trajectory_id)
        elif request.needs_sandbox and self.sandboxes.get(place) != command.sandbox_id:
            result = events.AttemptFailed(FailureKind.INFRA, "state_lost")
        end = events.AttemptEnded(
            self.manager_id, command.token, request.key, command.attempt, result, True, 0.1, request.body_hash
        )
        self.ends[command.token] = end
        self._say(end)

    def cancel(self, token: Token) -> None:
        """Ends an attempt soon."""
        run = self.running.get(token)
        if run is not None:
            self.cancelled.add(token)
            self.time.after(0.1, self._if_running(run, lambda: self._finish(run)))

    def release(self, ref: SandboxRef) -> None:
        """Destroys a sandbox."""
        if self.sandboxes.get((ref.job_id, ref.trajectory_id)) == ref.sandbox_id:
            del self.sandboxes[ref.job_id, ref.trajectory_id]
