"""Parts of the simulation: virtual time, links that break, and what is asked for."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

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
