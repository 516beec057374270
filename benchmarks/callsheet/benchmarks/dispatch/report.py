"""What the dispatch benchmark found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from callsheet.benchmarks.measuring.statistics import ratio, rounded, significant
from callsheet.benchmarks.runner import Bar, BenchmarkReport, new_table
from rich.console import RenderableType

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
class DispatchReport(BenchmarkReport):
    """One run of the benchmark."""

    callsheet: CallsheetFigures
    raw: RawFigures
    ray: RayFigures
    machine: dict[str, Any]
    seed: int
    repetitions: int
    wall_s: float

    @property
    def bars(self) -> Sequence[Bar]:
        """Nothing may be refused. How fast it should be depends on the machine, so rates are no bars."""
        return [Bar("refused in the burst", self.callsheet.burst_refused, at_most=0)]

    def ratios(self) -> dict[str, float]:
        """Callsheet's figures by those of Ray and of raw streams."""
        ours = self.callsheet
        return {
            "ratio_ray_tasks": ratio(ours.actions_per_s, self.ray.ray_tasks_per_s),
            "ratio_ray_actor_calls": ratio(ours.actions_per_s, self.ray.ray_actor_calls_per_s),
            "ratio_idle_two_hops": ratio(ours.idle_p50_us, self.raw.raw_two_hops_p50_us),
            "ratio_raw_stream": ratio(ours.actions_per_s, self.raw.raw_stream_items_per_s),
        }

    def as_json(self) -> dict[str, Any]:
        """The report as one flat JSON object."""
        figures = {**asdict(self.callsheet), **asdict(self.raw), **asdict(self.ray), **self.ratios()}
        return {
            **rounded(figures, _DIGITS),
            "seed": self.seed,
            "repetitions": self.repetitions,
            "wall_s": significant(self.wall_s, _DIGITS),
            "machine": self.machine,
        }

    def tables(self) -> Iterator[RenderableType]:
        """The figures, and what they were measured on."""
        ours, raw, ray, by = self.callsheet, self.raw, self.ray, self.ratios()
        cpu = ", ".join(f"{name} {used:.0f} µs" for name, used in ours.cpu_us_per_action.items())
        rows = (
            ("Callsheet", f"{ours.actions_per_s:,.0f} actions/s", f"{ours.in_flight:,} in flight", ""),
            ("Callsheet, CPU", f"{sum(ours.cpu_us_per_action.values()):.0f} µs/action", cpu, ""),
            (
                "raw gRPC stream",
                f"{raw.raw_stream_items_per_s:,.0f} items/s",
                f"one hop, {raw.raw_batch_items} a message",
                f"{by['ratio_raw_stream']:.2f}",
            ),
            (
                "Ray tasks",
                f"{ray.ray_tasks_per_s:,.0f} /s",
                f"{ray.ray_tasks_window:,} in flight",
                f"{by['ratio_ray_tasks']:.2f}",
            ),
            (
                "Ray async actor calls",
                f"{ray.ray_actor_calls_per_s:,.0f} /s",
                f"{ray.ray_actor_window:,} in flight",
                f"{by['ratio_ray_actor_calls']:.2f}",
            ),
            (
                "Callsheet, idle",
                f"{ours.idle_p50_us:,.0f} µs p50, {ours.idle_p99_us:,.0f} µs p99",
                f"one at a time, {ours.idle_samples:,} samples",
                "",
            ),
            (
                "two raw round trips, idle",
                f"{raw.raw_two_hops_p50_us:,.0f} µs p50, {raw.raw_two_hops_p99_us:,.0f} µs p99",
                "one at a time",
                f"{by['ratio_idle_two_hops']:.2f}",
            ),
            ("Callsheet, burst", f"{ours.burst_s:.2f} s", f"{ours.burst_actions:,} actions at once", ""),
        )
        table = new_table(f"No-op dispatch, medians of {self.repetitions}", "what", ">value", "how", ">Callsheet by it")
        for row in rows:
            table.add_row(*row)
        yield table
        machine = self.machine
        yield (
            f"{machine['cores']} cores, {machine['processor']}, Python {machine['python']}, Ray {ray.ray_version}, "
            f"journal on {machine['journal_filesystem']} (fsync {machine['fsync_p50_us']:.0f} µs); "
            f"seed {self.seed}, {self.wall_s:.0f} s in all"
        )
