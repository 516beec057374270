"""Results of the dispatch benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from callsheet.benchmarks.measuring.statistics import ratio, rounded, significant
from callsheet.benchmarks.runner import Bar, BenchmarkReport, Column, cell, figures_table, new_table
from rich.console import RenderableType

_DIGITS = 4
_COLUMNS: tuple[Column, ...] = (
    ("actions/s", "actions_per_s", ",.1f"),
    ("p50 ms", "p50_ms", ".1f"),
    ("p99 ms", "p99_ms", ".1f"),
    ("overhead p99", "overhead_p99_ms", ".1f"),
    ("messages", "messages", ".1f"),
    ("left out", "left_out", "d"),
    ("load", "load_1m", ".1f"),
)

_PROCESSES = ("scheduler", "manager", "client", "gateway", "rest")


@dataclass(frozen=True, slots=True)
class LoopFigures:
    """Actions of one load. What is by process is of an action, and for "rest" of all processes below the manager.

    Attributes:
        loop: "closed" or "open".
        size: Actions under way, or arrivals a second.
        actions: Those that ended meanwhile.
        actions_per_s: The same by the second.
        p50_ms: Milliseconds from when an action was due to its outcome, median.
        p99_ms: The same, 99th percentile.
        overhead_p99_ms: Of `Timeline.overhead_s`, which a chat has none of.
        cpu_ms: CPU milliseconds by process.
        cores: CPU seconds a second by process.
        messages: gRPC messages that the scheduler read or wrote.
        wake_ups: Voluntary changes of context by process.
        system_calls: System calls by process; the report says which.
        left_out: Arrivals that found a second's worth of them under way; with any, latencies say little.
        load_1m: The machine's load before.
    """

    loop: str
    size: int
    actions: int
    actions_per_s: float
    p50_ms: float
    p99_ms: float
    overhead_p99_ms: float
    cpu_ms: Mapping[str, float]
    cores: Mapping[str, float]
    messages: float
    wake_ups: Mapping[str, float]
    system_calls: Mapping[str, float]
    left_out: int
    load_1m: float

    @property
    def name(self) -> str:
        """The load in words."""
        return f"{self.size:,} in flight" if self.loop == "closed" else f"{self.size:,} a second"


@dataclass(frozen=True, slots=True)
class CallsheetFigures:
    """No-op actions, client → scheduler → manager and back, each in its own process, journal on.

    Attributes:
        actions_per_s: Outcomes per second with `in_flight` actions under way; median of the repetitions.
        in_flight: That many.
        actions_per_repetition: Actions in one repetition.
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
    """Figures of plain grpc.aio with messages of the same size.

    Attributes:
        raw_two_hops_p50_us: Microseconds client → relay → echo and back, one message under way, median.
        raw_two_hops_p99_us: The same, 99th percentile.
    """

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
class Beside:
    """No-ops, and what else does nothing as often.

    Attributes:
        callsheet: Callsheet's figures.
        raw: Those of bare streams.
        ray: Those of Ray.
        repetitions: How often each was measured.
        journal: Of the journal's disk: file system, and microseconds of an `fsync`.
    """

    callsheet: CallsheetFigures
    raw: RawFigures
    ray: RayFigures
    repetitions: int
    journal: Mapping[str, Any]

    def ratios(self) -> dict[str, float]:
        """Callsheet's figures by those of Ray and of raw streams."""
        ours = self.callsheet
        return {
            "ratio_ray_tasks": ratio(ours.actions_per_s, self.ray.ray_tasks_per_s),
            "ratio_ray_actor_calls": ratio(ours.actions_per_s, self.ray.ray_actor_calls_per_s),
            "ratio_idle_two_hops": ratio(ours.idle_p50_us, self.raw.raw_two_hops_p50_us),
        }

    def as_json(self) -> dict[str, Any]:
        """All figures as one flat object."""
        figures = {**asdict(self.callsheet), **asdict(self.raw), **asdict(self.ray), **self.ratios()}
        return {**rounded(figures, _DIGITS), "repetitions": self.repetitions, "journal": dict(self.journal)}

    def tables(self) -> Iterator[RenderableType]:
        """The figures for people."""
        ours, raw, ray, by = self.callsheet, self.raw, self.ray, self.ratios()
        cpu = ", ".join(f"{name} {used:.0f} µs" for name, used in ours.cpu_us_per_action.items())
        rows = (
            ("Callsheet", f"{ours.actions_per_s:,.0f} actions/s", f"{ours.in_flight:,} in flight", ""),
            ("Callsheet, CPU", f"{sum(ours.cpu_us_per_action.values()):.0f} µs/action", cpu, ""),
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
        told = f"fsync {self.journal['fsync_p50_us']:.0f} µs"
        yield f"Ray {ray.ray_version}; the journal is on {self.journal['filesystem']} ({told})"


@dataclass(frozen=True, slots=True)
class DispatchReport(BenchmarkReport):
    """One run of the benchmark.

    Attributes:
        kind: Of the actions.
        managers: Those that served them.
        loops: What each load came to.
        comparison: No-ops beside others; None where they did not run.
        counted: Which system calls were counted.
        machine: What it ran on.
        seed: Of ids and arrivals.
        wall_s: Seconds of the whole run.
    """

    kind: str
    managers: int
    loops: Sequence[LoopFigures]
    comparison: Beside | None
    counted: str
    machine: Mapping[str, Any]
    seed: int
    wall_s: float

    @property
    def bars(self) -> Sequence[Bar]:
        """Nothing may be refused. How fast it should be depends on the machine, so rates are no bars."""
        if self.comparison is None:
            return []
        return [Bar("refused in the burst", self.comparison.callsheet.burst_refused, at_most=0)]

    def as_json(self) -> dict[str, Any]:
        """The report as one JSON object, each loop with the machine."""
        on = self._machine()
        return {
            "kind": self.kind,
            "managers": self.managers,
            "loops": [{**rounded(asdict(each), _DIGITS), "machine": on} for each in self.loops],
            "system_calls_counted": self.counted,
            **(self.comparison.as_json() if self.comparison is not None else {}),
            "seed": self.seed,
            "wall_s": significant(self.wall_s, _DIGITS),
            "machine": dict(self.machine),
        }

    def tables(self) -> Iterator[RenderableType]:
        """The figures, and what they were measured on."""
        if self.loops:
            names = [name for name in _PROCESSES if name in self.loops[0].cpu_ms]
            yield figures_table(f"{self.kind}, managers: {self.managers}", "load", _COLUMNS, self._rows())
            yield self._by_process("CPU of an action, ms", names, "cpu_ms", ".2f")
            yield self._by_process("Cores in use", names, "cores", ".2f")
            yield self._by_process("Wake-ups of an action", names, "wake_ups", ".1f")
            yield self._by_process(f"System calls of an action ({self.counted})", names, "system_calls", ".1f")
        if self.comparison is not None:
            yield from self.comparison.tables()
        yield f"{self._machine()}; seed {self.seed}, {self.wall_s:.0f} s in all"

    def _rows(self) -> Iterator[tuple[str, LoopFigures]]:
        return ((each.name, each) for each in self.loops)

    def _by_process(self, title: str, names: Sequence[str], figure: str, form: str) -> RenderableType:
        table = new_table(title, "load", *(f">{name}" for name in names), ">all")
        for row in self.loops:
            used: Mapping[str, float] = getattr(row, figure)
            table.add_row(row.name, *(cell(used.get(name), form) for name in names), cell(sum(used.values()), form))
        return table

    def _machine(self) -> str:
        return f"{self.machine['cores']} cores, {self.machine['processor']}, Python {self.machine['python']}"
