"""Distributions given by what they yield at a standard normal score.

A score z stands for the quantile Phi(z). Two draws correlate by correlating their scores: siblings of a group share a
part of theirs, and so the tasks' share of the variance holds for every distribution (a Gaussian copula).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import NormalDist
from typing import Protocol

from callsheet.benchmarks.simulator.input_table import InputError, InputTable, number

_STANDARD = NormalDist()


class Distribution(Protocol):
    """Something that can be drawn."""

    def at(self, score: float) -> float:
        """The value at the quantile Phi(score)."""


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the same value."""

    value: float

    def at(self, score: float) -> float:
        """The value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform between low and high."""

    low: float
    high: float

    def at(self, score: float) -> float:
        """The value at the quantile Phi(score)."""
        return self.low + (self.high - self.low) * _below(score)


@dataclass(frozen=True, slots=True)
class Normal:
    """Normal, clipped to [low, high]."""

    mean: float
    sd: float
    low: float = 0.0
    high: float = math.inf

    def at(self, score: float) -> float:
        """The value at the quantile Phi(score)."""
        return min(max(self.mean + self.sd * score, self.low), self.high)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """The logarithm is normal with mean mu and standard deviation sd; clipped to [low, high]."""

    mu: float
    sd: float
    low: float = 0.0
    high: float = math.inf

    def at(self, score: float) -> float:
        """The value at the quantile Phi(score)."""
        return min(max(math.exp(self.mu + self.sd * score), self.low), self.high)


@dataclass(frozen=True, slots=True)
class Geometric:
    """Trials until the first success: 1, 2, ... with the given mean before it is clipped at high."""

    mean: float
    high: float = math.inf

    def at(self, score: float) -> float:
        """The value at the quantile Phi(score)."""
        if self.mean == 1.0:
            return 1.0
        above = max(1.0 - _below(score), 1e-12)
        return min(max(1.0, math.ceil(math.log(above) / math.log(1.0 - 1.0 / self.mean))), self.high)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Given by quantiles (probability, value): log-normal between two of them, constant beyond the ends."""

    points: tuple[tuple[float, float], ...]
    _scores: tuple[float, ...] = field(init=False, repr=False, compare=False)
    _logs: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_scores", tuple(_STANDARD.inv_cdf(probability) for probability, _ in self.points))
        object.__setattr__(self, "_logs", tuple(math.log(value) for _, value in self.points))

    def at(self, score: float) -> float:
        """The value at the quantile Phi(score)."""
        right = bisect_right(self._scores, score)
        if right == 0:
            return self.points[0][1]
        if right == len(self._scores):
            return self.points[-1][1]
        start, end = self._scores[right - 1], self._scores[right]
        part = (score - start) / (end - start)
        return math.exp(self._logs[right - 1] + part * (self._logs[right] - self._logs[right - 1]))


def read_distribution(table: InputTable, name: str, default: Distribution | None = None) -> Distribution:
    """The distribution in field `name`: a number, or a table with one of the keys of `_FORMS`.

    Raises:
        InputError: It is neither, or a parameter is out of its range.
    """
    found = table.value(name, default)
    if found is default and default is not None:
        return default
    if not isinstance(found, dict):
        return Constant(number(found, table.where(name), 0.0, math.inf))
    form = next((form for form in _FORMS if form in found), None)
    if form is None:
        raise InputError(table.where(name), found, f"must be a number or a table with one of {', '.join(_FORMS)}")
    with InputTable(found, table.where(name)) as inner:
        return _FORMS[form](inner)


def _below(score: float) -> float:
    return 0.5 * math.erfc(-score / math.sqrt(2.0))


def _read_pair(table: InputTable, name: str, first_low: float) -> tuple[float, float]:
    found = table.value(name)
    if not isinstance(found, list) or len(found) != 2:
        raise InputError(table.where(name), found, "must be a list of two numbers")
    first = number(found[0], table.where(f"{name}[0]"), first_low, math.inf)
    return first, number(found[1], table.where(f"{name}[1]"), 0.0, math.inf)


def _read_bounds(table: InputTable) -> tuple[float, float]:
    low = table.number("low", 0.0)
    return low, table.number("high", math.inf, low=low)


def _read_uniform(table: InputTable) -> Distribution:
    low, high = _read_pair(table, "uniform", 0.0)
    if low > high:
        raise InputError(table.where("uniform"), [low, high], "the first must not exceed the second")
    return Uniform(low, high)


def _read_normal(table: InputTable) -> Distribution:
    return Normal(*_read_pair(table, "normal", -math.inf), *_read_bounds(table))


def _read_log_normal(table: InputTable) -> Distribution:
    return LogNormal(*_read_pair(table, "log_normal", -math.inf), *_read_bounds(table))


def _read_geometric(table: InputTable) -> Distribution:
    return Geometric(table.number("geometric", low=1.0), table.number("high", math.inf, low=1.0))


def _read_quantiles(table: InputTable) -> Distribution:
    found = table.value("quantiles")
    where = table.where("quantiles")
    if not isinstance(found, list) or len(found) < 2 or not all(isinstance(p, list) and len(p) == 2 for p in found):
        raise InputError(where, found, "must be a list of at least two pairs [probability, value]")
    points = tuple((number(p, where, 1e-6, 1 - 1e-6), number(v, where, 1e-9, math.inf)) for p, v in found)
    if any(left[0] >= right[0] or left[1] > right[1] for left, right in pairwise(points)):
        raise InputError(where, found, "probabilities must rise and values must not fall")
    return Quantiles(points)


_FORMS: dict[str, Callable[[InputTable], Distribution]] = {
    "log_normal": _read_log_normal,
    "normal": _read_normal,
    "uniform": _read_uniform,
    "geometric": _read_geometric,
    "quantiles": _read_quantiles,
}
