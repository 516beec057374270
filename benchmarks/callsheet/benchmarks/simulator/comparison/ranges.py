"""Asserted ranges: what figures of a comparison must lie within, in files beside this one.

A range file holds the arguments of the runs it was recorded with, and ranges by policy and figure. Its comments tell
the figures of the trial runs behind a range and the margin that was left. A report of other arguments is not compared.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from callsheet.benchmarks.runner import Bar
from callsheet.benchmarks.simulator.comparison.settings import ScenarioSource
from callsheet.benchmarks.simulator.scenario import Mode

DIRECTORY: Final = Path(__file__).with_name("ranges")


class RangeFileError(ValueError):
    """A range file is not valid; the message names file, field, value and rule."""


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

    policy: str
    figure: str
    over: str = ""
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class RangeFile:
    """Ranges, and what a report must say of its own run to be compared with them, for instance its seeds."""

    path: Path
    arguments: Mapping[str, Any]
    ranges: tuple[FigureRange, ...]

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
        RangeFileError: There is neither, it is not TOML, or something in it is unknown or missing.
        OSError: It cannot be read.
    """
    packaged = DIRECTORY / f"{name}.toml"
    path = packaged if packaged.is_file() else Path(name)
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in DIRECTORY.glob("*.toml")))
        raise RangeFileError(f"--check: {name!r} must be a file, or one of {known}")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise RangeFileError(f"{path.name}: {error}") from error
    unknown = set(content) - {"arguments", "range"}
    if unknown:
        raise RangeFileError(f"{path.name}: {min(unknown)!r} must be one of arguments, range")
    ranges = tuple(_range(path, index, entry) for index, entry in enumerate(content.get("range", [])))
    return RangeFile(path, content.get("arguments", {}), ranges)


def _range(path: Path, index: int, entry: Mapping[str, Any]) -> FigureRange:
    where = f"{path.name}: range[{index}]"
    unknown = set(entry) - {field.name for field in fields(FigureRange)}
    if unknown:
        raise RangeFileError(f"{where}.{min(unknown)} is not a field of a range")
    if not entry.get("policy") or not entry.get("figure"):
        raise RangeFileError(f"{where} must name a policy and a figure")
    bounds = [entry.get("at_least"), entry.get("at_most")]
    if all(bound is None for bound in bounds) or not all(isinstance(bound, int | float | None) for bound in bounds):
        raise RangeFileError(f"{where} must have a number as at_least or at_most, got {bounds}")
    return FigureRange(**entry)


def check(ranges: RangeFile, report: Mapping[str, Any]) -> Iterator[Bar]:
    """Compares a report, as JSON, with the ranges. A figure that is not there is not within its range.

    Raises:
        RangeFileError: The report is of a run with other arguments.
    """
    for name, value in ranges.arguments.items():
        if report.get(name) != value:
            raise RangeFileError(
                f"{ranges.path.name}: arguments.{name} is {value!r}, the report has {report.get(name)!r}"
            )
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
