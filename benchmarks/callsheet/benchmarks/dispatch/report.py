"""What the dispatch benchmark found, and whether it reaches its targets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from callsheet.benchmarks.measuring.statistics import ratio, rounded, significant

_DIGITS = 4


@dataclass(frozen=True, slots=True)
class CallsheetFigures:
    """No-op actions, client → scheduler → manager and back, each in its own process, journal on.

    Attributes:
        actions_per_s: Outcomes per second with `in_flight` actions under way; median of the repetitions.
        in_flight: That many.
        actions_per_repetition: Actions in one repetition.
        mean_batch_items: Actions per message that the client's stream carried meanwhile.
        action_bytes: Size of one submit on the wire.
        cpu_us_per_action: CPU microseconds of an action in each process, "client", "scheduler" and "manager", while
            `in_flight` are under way: what the rate comes from, and hardly changed by what else the machine does.
        idle_p50_us: Microseconds from submit to outcome with one action under way, median.
        idle_p99_us: The same, 99th percentile.
        idle_samples: Actions behind these two.
        burst_actions: Actions submitted at once.
        burst_refused: Those that were refused.
        burst_s: Seconds until the last one's outcome.
    """

    actions_per_s: float
    in_flight: int
    actions_per_repetition: int
    mean_batch_items: float
    action_bytes: int
    cpu_us_per_action: dict[str, float]
    idle_p50_us: float
    idle_p99_us: float
    idle_samples: int
    burst_actions: int
    burst_refused: int
    burst_s: float


@dataclass(frozen=True, slots=True)
class RawFigures:
    """What grpc.aio alone does with messages of the same size.

    Attributes:
        raw_stream_items_per_s: Items per second echoed on one stream, as many in a message as Callsheet's client had.
        raw_batch_items: That many.
        raw_two_hops_p50_us: Microseconds client → relay → echo and back, one message under way, median.
        raw_two_hops_p99_us: The same, 99th percentile.
    """

    raw_stream_items_per_s: float
    raw_batch_items: int
    raw_two_hops_p50_us: float
    raw_two_hops_p99_us: float


@dataclass(frozen=True, slots=True)
class RayFigures:
    """No-op work through Ray.

    Attributes:
        ray_tasks_per_s: Tasks, median of the repetitions at the best window.
        ray_actor_calls_per_s: Calls of one async actor, likewise.
        ray_tasks_window: Tasks under way.
        ray_actor_window: Calls under way.
        ray_version: Ray's.
    """

    ray_tasks_per_s: float
    ray_actor_calls_per_s: float
    ray_tasks_window: int
    ray_actor_window: int
    ray_version: str


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure to reach.

    Attributes:
        name: What is compared.
        value: What was measured.
        bound: What it must be, at least or at most.
        at_most: Which of the two.
    """

    name: str
    value: float
    bound: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Whether it is reached."""
        return self.value <= self.bound if self.at_most else self.value >= self.bound


@dataclass(frozen=True, slots=True)
class DispatchReport:
    """One run of the benchmark."""

    callsheet: CallsheetFigures
    raw: RawFigures
    ray: RayFigures
    machine: dict[str, Any]
    seed: int
    repetitions: int
    wall_s: float

    def targets(self) -> list[Goal]:
        """The figures to reach, with what was measured."""
        ours = self.callsheet
        return [
            Goal("actions/s over Ray tasks/s", ratio(ours.actions_per_s, self.ray.ray_tasks_per_s), 10),
            Goal(
                "actions/s over Ray async actor calls/s", ratio(ours.actions_per_s, self.ray.ray_actor_calls_per_s), 4
            ),
            Goal(
                "idle p50 over two raw stream round trips",
                ratio(ours.idle_p50_us, self.raw.raw_two_hops_p50_us),
                2,
                at_most=True,
            ),
            Goal("refused in the burst", ours.burst_refused, 0, at_most=True),
        ]

    def as_json(self) -> dict[str, Any]:
        """The report as one flat JSON object."""
        ours = self.callsheet
        ratios = {
            "ratio_ray_tasks": ratio(ours.actions_per_s, self.ray.ray_tasks_per_s),
            "ratio_ray_actor_calls": ratio(ours.actions_per_s, self.ray.ray_actor_calls_per_s),
            "ratio_idle_two_hops": ratio(ours.idle_p50_us, self.raw.raw_two_hops_p50_us),
            "ratio_raw_stream": ratio(ours.actions_per_s, self.raw.raw_stream_items_per_s),
        }
        figures = {**asdict(ours), **asdict(self.raw), **asdict(self.ray), **ratios}
        return {
            **rounded(figures, _DIGITS),
            "targets_met": {target.name: target.met for target in self.targets()},
            "seed": self.seed,
            "repetitions": self.repetitions,
            "wall_s": significant(self.wall_s, _DIGITS),
            "machine": self.machine,
        }
