"""Asserted ranges: what figures of a comparison must lie within, in files beside this one.

A range file holds the arguments of the runs it was recorded with, and ranges by policy and figure. Its comments tell
the figures of the trial runs behind a range and the margin that was left. A report of other arguments is not compared.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Final

from callsheet.benchmarks.runner import Bar
from callsheet.benchmarks.simulator.comparison.settings import ScenarioSource
from callsheet.benchmarks.simulator.scenario import Mode
from callsheet.benchmarks.simulator.validation import NOTHING_ELSE, InputError, validated
from pydantic import Field

DIRECTORY: Final = Path(__file__).with_name("ranges")


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
        return tuple(dict.fromkeys(name for name in names if name and name != "bounds"))

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
    figures = report["bounds"] if policy == "bounds" else report["policies"].get(policy)
    value = figures.get(figure) if figures else None
    return float(value) if value is not None else None
