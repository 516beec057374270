"""A simulated trainer: trajectories that go on action by action, and a client that resends what it must."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionKey, ActionKind, Opened, TrajectoryEnd
from callsheet.scheduler.core.words.refusals import RefusedError

from tests.sim.sim_parts import JOB_GRACE, Link, Timeline, action_request, job_request, trajectory_request

if TYPE_CHECKING:
    from tests.sim.sim_world import World

JOB = "job"


@dataclass(eq=False)
class ClientLink(Link):
    """The client's stream: a session and a watcher of the core."""

    client: SimClient = field(kw_only=True)

    @property
    def gone(self) -> bool:
        """See `Watcher`."""
        return not self.up

    def put_result(self, sequence: int, refusal: RefusedError | None) -> None:
        """See `ClientSession`."""
        self.send("down", lambda: self.client.answered(sequence, refusal))

    def put_opened(self, sequence: int, opened: Opened) -> None:
        """See `ClientSession`."""
        self.put_result(sequence, None)

    def miss_outcome(self) -> None:
        """See `Watcher`: the stream ends, and what is submitted again is refused."""
        if self.up:
            self.client.cut()

    def put_outcome(self, outcome: bytes) -> None:
        """See `Watcher`."""
        key = ActionKey(*outcome.decode().partition(" ")[0].split("/"))
        self.send("down", lambda: self.client.outcome(key, outcome))


Request = Callable[[events.ReplyTo], events.Event]


@dataclass(eq=False)
class SimClient:
    """One client process. It never gives up: what is not acknowledged or has no outcome is sent again."""

    world: World
    trajectories: int
    steps: int
    link: ClientLink | None = None
    unanswered: dict[int, Request] = field(default_factory=dict)
    then: dict[int, Callable[[], None]] = field(default_factory=dict)
    acknowledged: set[ActionKey] = field(default_factory=set)
    waiting: dict[ActionKey, tuple[bytes, Callable[[], None]]] = field(default_factory=dict)
    outcomes: dict[ActionKey, bytes] = field(default_factory=dict)
    specs: dict[ActionKey, bytes] = field(default_factory=dict)
    forgotten: set[ActionKey] = field(default_factory=set)
    refusals: list[str] = field(default_factory=list)
    completed: int = 0
    away_until: float = 0.0
    _sequence: int = 0

    @property
    def time(self) -> Timeline:
        """The world's time."""
        return self.world.time

    def start(self) -> None:
        """Opens the job and sets its trajectories going."""
        self.connect()
        self.ask(lambda reply: events.JobOpenRequested(reply, job_request(JOB.encode())), self._open_trajectories)

    def _open_trajectories(self) -> None:
        for number in range(self.trajectories):
            spec = f"{JOB}/t{number}".encode()
            self.ask(
                lambda reply, spec=spec: events.TrajectoryOpenRequested(reply, trajectory_request(spec)),  # type: ignore[misc]
                lambda number=number: self._act(number, 0),  # type: ignore[misc]
            )

    def _act(self, number: int, step: int) -> None:
        """The next action of a trajectory: reset, then generate and step in turn, then a reward."""
        last = 2 * self.steps + 1
        if step > last:
            spec = f"t{number}"
            self.ask(
                lambda reply: events.TrajectoryCloseRequested(reply, JOB, spec, TrajectoryEnd.COMPLETED), self._complete
            )
            return
        kinds = {0: ActionKind.ENV_RESET, last: ActionKind.REWARD}
        kind = kinds.get(step, ActionKind.GENERATE if step % 2 else ActionKind.ENV_STEP)
        spec_bytes = f"{JOB}/t{number}/a{number}-{step}/{kind.name}".encode()
        self.submit(spec_bytes, lambda: self.time.after(0.05, lambda: self._act(number, step + 1)))

    def _complete(self) -> None:
        self.completed += 1

    def submit(self, spec: bytes, then: Callable[[], None]) -> None:
        """Submits an action and goes on once its outcome is there."""
        request = action_request(spec)
        self.waiting[request.key] = (spec, then)
        self.specs[request.key] = spec
        self.ask(
            lambda reply: events.SubmitRequested(reply, action_request(spec), self.link),
            lambda: self.acknowledged.add(request.key),
        )

    def cancel_something(self) -> None:
        """Cancels an action that was acknowledged; what it gets then is its outcome as any other."""
        candidates = sorted(key for key in self.waiting if key in self.acknowledged)
        if candidates:
            key = self.time.random.choice(candidates)
            self.ask(lambda reply: events.CancelRequested(reply, key, "no longer wanted"), lambda: None)

    def resubmit_something(self) -> None:
        """Submits an action again that has its outcome: it gets the same one, or is refused as forgotten."""
        candidates = sorted(key for key in self.outcomes if key not in self.waiting and key in self.specs)
        if candidates:
            self.submit(self.specs[self.time.random.choice(candidates)], lambda: None)

    def ask(self, request: Request, then: Callable[[], None]) -> None:
        """Sends a request until it is answered."""
        self._sequence += 1
        self.unanswered[self._sequence], self.then[self._sequence] = request, then
        self._send(self._sequence)

    def _send(self, sequence: int) -> None:
        if self.link is not None:
            reply_to = events.ReplyTo(self.link, sequence, holds=True)
            self.world.to_scheduler(self.link, self.unanswered[sequence](reply_to))

    def cut(self, away_s: float = 0.3) -> None:
        """Its stream breaks; it dials again after a while."""
        if self.link is not None:
            self.link.up = False
            self.world.client_link_lost(self.link)
        self.link = None
        self.away_until = max(self.away_until, self.time.now + away_s)
        self.time.after(away_s, self.connect)

    def leave(self) -> None:
        """The trainer is gone for so long that its job may expire, and comes back."""
        self.cut(self.time.random.uniform(0.5, 4.0) * JOB_GRACE)

    def connect(self) -> None:
        """Dials until the scheduler is there; then sends again what has no answer, and attaches to its actions."""
        if self.link is not None or self.time.now < self.away_until:
            return
        if not self.world.scheduler_up:
            self.time.after(0.5, self.connect)
            return
        self.link = ClientLink(self.time, self.world.slowness, client=self)
        for sequence in sorted(self.unanswered):
            self._send(sequence)
        for key in [key for key in self.waiting if key in self.acknowledged]:
            spec, then = self.waiting[key]
            self.submit(spec, then)

    def answered(self, sequence: int, refusal: RefusedError | None) -> None:
        """Takes an acknowledgement or a refusal; a trajectory goes on after either."""
        request = self.unanswered.pop(sequence, None)
        then = self.then.pop(sequence, None)
        if refusal is not None and request is not None:
            self.refusals.append(str(refusal))
            assert self.link is not None, "an answer came over no stream"
            event = request(events.ReplyTo(self.link, sequence))
            if refusal.forgotten and isinstance(event, events.SubmitRequested):
                self.forgotten.add(event.request.key)
            if isinstance(event, events.SubmitRequested) and event.request.key in self.waiting:
                self.waiting.pop(event.request.key)[1]()
                return
        if then is not None:
            then()

    def outcome(self, key: ActionKey, message: bytes) -> None:
        """Takes an outcome; a repeated one must be the same."""
        known = self.outcomes.setdefault(key, message)
        assert known == message, f"{key} has two outcomes: {known!r} and {message!r}"
        waiting = self.waiting.pop(key, None)
        if waiting is not None:
            waiting[1]()
