"""A comparison as data: the policies' figures, and what follows from them, asserted ranges among it.

A range file holds the arguments of the runs it was recorded with, and ranges by policy and figure. Its comments tell
the figures of the trial runs behind a range and the margin that was left. A report of other arguments is not compared.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final

from callsheet.benchmarks.measuring.statistics import rounded, significant
from callsheet.benchmarks.runner import Bar, BenchmarkReport, Column, cell, figures_table, new_table
from callsheet.benchmarks.simulator.best_case import Load
from callsheet.benchmarks.simulator.comparison.figures import (
    NO_ACTIONS,
    Figures,
    JobFigures,
    PolicyResult,
    Ratio,
    paired_ratio,
)
from callsheet.benchmarks.simulator.comparison.settings import ComparisonSettings, ScenarioSource
from callsheet.benchmarks.simulator.scenario import Mode, ScenarioJob
from callsheet.benchmarks.simulator.validation import NOTHING_ELSE, InputError, validated
from pydantic import Field
from rich.console import RenderableType
from rich.table import Table

OURS: Final = "callsheet"
_COLUMNS: Final[tuple[Column, ...]] = (
    ("ACT with start", "act_with_start_mean_s", ".3f"),
    ("ACT mean", "act_mean_s", ".3f"),
    ("p50", "act_p50_s", ".3f"),
    ("p99", "act_p99_s", ".2f"),
    ("p99.9", "act_p999_s", ".1f"),
    ("longest wait", "wait_max_s", ".1f"),
    ("start wait", "start_wait_mean_s", ".1f"),
    ("step", "step_s", ".0f"),
    ("trajectories/h", "trajectories_per_hour", ".0f"),
    ("held", "held", ".1%"),
    ("used", "used", ".1%"),
    ("GPUs held", "gpu_held", ".1%"),
    ("GPUs used", "gpu_used", ".1%"),
)
_SPAN_KEYS: Final = {Mode.ONESHOT: "step_s", Mode.SUSTAINED: "trajectories_per_hour"}
DIRECTORY: Final = Path(__file__).with_name("ranges")


@dataclass(slots=True)
class ComparisonReport(BenchmarkReport):
    """One run of `callsheet bench sim`.

    Attributes:
        jobs: Of the scenario.
        results: By policy, in the order asked for.
        recorded: The external actions of a trace as they were when it was recorded, by kind, where it tells that.
        bars: Ranges that the figures are held to.
        wall_s: Real seconds that everything took.
    """

    settings: ComparisonSettings
    load: Load
    cores: int
    jobs: tuple[ScenarioJob, ...]
    results: Mapping[str, PolicyResult]
    recorded: Mapping[str, JobFigures] = field(default_factory=dict)
    bars: Sequence[Bar] = ()
    wall_s: float = 0.0

    @property
    def span_key(self) -> str:
        """The figure of the whole run that the mode has."""
        return _SPAN_KEYS[self.settings.source.mode]

    def ratios(self) -> dict[str, dict[str, Ratio]]:
        """Every policy's figure over callsheet's, by policy and figure, by pairs of runs of one seed."""
        ours = self.results.get(OURS)
        if ours is None:
            return {}
        compared: dict[str, dict[str, Ratio]] = {}
        for name, result in self.results.items():
            if name == OURS:
                continue
            by_figure = {
                key: paired_ratio(result, ours, key)
                for key in ("act_mean_s", "act_p99_s", "act_p999_s", "wait_max_s", self.span_key)
            }
            compared[name] = {key: ratio for key, ratio in by_figure.items() if ratio is not None}
        return compared

    def as_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        source = self.settings.source
        report: dict[str, Any] = {
            "workload": source.workload,
            "mode": source.mode.value,
            "rho": significant(self.load.rho),
            "load": rounded(asdict(self.load)),
            "cores": self.cores,
            "gb_per_core": source.gb_per_core,
            "gpus": source.gpus,
            "trajectories": self.load.live,
            "seeds": list(self.settings.seeds),
            "jobs": {job.name: {"weight": job.weight, "priority": job.priority.name.lower()} for job in self.jobs},
            "trace": str(source.trace) if source.trace is not None else None,
            "generation_scale": source.generation_scale,
            "policies": {name: self._policy(result) for name, result in self.results.items()},
            "ratios_over_callsheet": {
                name: {key: rounded(asdict(ratio)) for key, ratio in by_figure.items()}
                for name, by_figure in self.ratios().items()
            },
            "wall_s": significant(self.wall_s),
        }
        if self.recorded:
            report["recorded"] = _by_name(self.recorded)
        return report

    def tables(self) -> Iterator[RenderableType]:
        """The policies, and what else was run."""
        source, seeds = self.settings.source, ", ".join(map(str, self.settings.seeds))
        what = (
            f"{source.workload}, {source.mode.value}: {self.load.live} trajectories, {self.cores} cores, "
            f"rho {self.load.rho:.2f}, seeds {seeds} (times in s, means over seeds)"
        )
        yield _table(what, self.results)
        if len(self.jobs) > 1:
            yield self._table_by_job()
        if self.recorded:
            yield self._table_by_kind()
        yield f"simulated in {self.wall_s:.0f} s"

    def _table_by_job(self) -> Table:
        headings = (f">{job.name} ({job.priority.name.lower()}, weight {job.weight:g})" for job in self.jobs)
        table = new_table("ACT by job: mean / p99", "policy", *headings)
        for name, result in self.results.items():
            figures = result.jobs()
            cells = [figures.get(job.name, NO_ACTIONS) for job in self.jobs]
            table.add_row(name, *(f"{cell(each.act_mean_s, '.3f')} / {cell(each.act_p99_s, '.2f')}" for each in cells))
        return table

    def _table_by_kind(self) -> Table:
        """What was recorded, and what each policy makes of it."""
        table = new_table(
            "Mean ACT by kind, as recorded and as simulated", "policy", *(f">{kind}" for kind in self.recorded)
        )
        rows = {"recorded": self.recorded} | {name: result.kinds() for name, result in self.results.items()}
        for name, kinds in rows.items():
            table.add_row(name, *(cell(kinds.get(kind, NO_ACTIONS).act_mean_s, ".3f") for kind in self.recorded))
        return table

    def _policy(self, result: PolicyResult) -> dict[str, Any]:
        per_seed = [
            {"seed": run.seed, **self._figures(run.figures), "jobs": _by_name(run.jobs)} for run in result.by_seed
        ]
        return {
            **self._figures(result.mean()),
            "jobs": _by_name(result.jobs()),
            "kinds": _by_name(result.kinds()),
            "per_seed": per_seed,
        }

    def _figures(self, figures: Figures) -> dict[str, float | int | None]:
        return figures.as_json(self.span_key)


def _table(title: str, results: Mapping[str, PolicyResult]) -> Table:
    """The policies' mean figures, without columns that none has."""
    means = {name: result.mean() for name, result in results.items()}
    shown = [column for column in _COLUMNS if any(getattr(each, column[1]) is not None for each in means.values())]
    return figures_table(title, "policy", shown, means.items())


def _by_name(figures: Mapping[str, JobFigures]) -> dict[str, dict[str, float | int | None]]:
    return {name: each.as_json() for name, each in figures.items()}


@dataclass(frozen=True, slots=True)
class FigureRange:
    """What a figure, or its ratio to the same figure of another policy, must lie within.

    Attributes:
        policy: A policy's name.
        figure: One of the report's, for instance "act_mean_s".
        over: The policy whose figure it is divided by; empty for the figure itself.
        at_least: Lower bound; None for none.
        at_most: Upper bound; None for none.
    """

    __pydantic_config__ = NOTHING_ELSE
    policy: str
    figure: str
    over: str = ""
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if self.at_least is None and self.at_most is None:
            raise ValueError("must have at_least or at_most")


@dataclass(frozen=True, slots=True)
class RangeFile:
    """Ranges, and what a report must say of its own run to be compared with them, for instance its seeds."""

    __pydantic_config__ = NOTHING_ELSE
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    ranges: Annotated[tuple[FigureRange, ...], Field(alias="range")] = ()

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies whose figures it names, in the order of its ranges."""
        names = (name for each in self.ranges for name in (each.policy, each.over))
        return tuple(dict.fromkeys(name for name in names if name))

    def recorded_with(self, source: ScenarioSource, seeds: tuple[int, ...]) -> tuple[ScenarioSource, tuple[int, ...]]:
        """Fills in what it was recorded with, where that is not given: where it is as it is by default."""
        unset = ScenarioSource("coding", Mode.ONESHOT)
        names = [each.name for each in fields(source) if getattr(source, each.name) == getattr(unset, each.name)]
        given = {name: self.arguments[name] for name in names if name in self.arguments}
        if "mode" in given:
            given["mode"] = Mode(given["mode"])
        return replace(source, **given), tuple(self.arguments.get("seeds", seeds)) if seeds == (1,) else seeds


def load_ranges(name: str) -> RangeFile:
    """Reads a range file: one that comes with Callsheet by its name, for instance "coding", or any by its path.

    Raises:
        ValueError: There is neither, it is not TOML, or something in it is unknown or missing.
        OSError: It cannot be read.
    """
    packaged = DIRECTORY / f"{name}.toml"
    path = packaged if packaged.is_file() else Path(name)
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in DIRECTORY.glob("*.toml")))
        raise ValueError(f"--check: {name!r} must be a file, or one of {known}")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(path.name, "...", f"must be TOML: {error}") from error
    return validated(RangeFile, {"name": path.name, **content}, path.name)


def check(ranges: RangeFile, report: Mapping[str, Any]) -> Iterator[Bar]:
    """Compares a report, as JSON, with the ranges. A figure that is not there is not within its range.

    Raises:
        ValueError: The report is of a run with other arguments.
    """
    for name, value in ranges.arguments.items():
        if report.get(name) != value:
            raise ValueError(f"{ranges.name}: arguments.{name} is {value!r}, the report has {report.get(name)!r}")
    for expected in ranges.ranges:
        name, value = f"{expected.policy} {expected.figure}", _figure(report, expected.policy, expected.figure)
        if expected.over:
            below = _figure(report, expected.over, expected.figure)
            name, value = f"{name} / {expected.over}", value / below if value is not None and below else None
        yield Bar(name, value, expected.at_least, expected.at_most)


def _figure(report: Mapping[str, Any], policy: str, figure: str) -> float | None:
    figures = report["policies"].get(policy)
    value = figures.get(figure) if figures else None
    return float(value) if value is not None else None
