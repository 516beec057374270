"""Distributions given by what they yield at a standard normal score.

A score z stands for the quantile Phi(z). Two draws correlate by correlating their scores: siblings of a group share a
part of theirs, and so the tasks' share of the variance holds for every distribution (a Gaussian copula).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Protocol

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


def _below(score: float) -> float:
    return 0.5 * math.erfc(-score / math.sqrt(2.0))


_FORMS: Mapping[str, Callable[..., Distribution]] = {
    "log_normal": LogNormal,
    "normal": Normal,
    "uniform": Uniform,
    "geometric": Geometric,
}


def read_distribution(found: Any) -> Distribution:
    """A distribution from a number, or a table with one of the forms and its bounds.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(found, int | float):
        return Constant(float(found))
    if "quantiles" in found:
        return Quantiles(tuple((float(probability), float(value)) for probability, value in found["quantiles"]))
    form = next((form for form in _FORMS if form in found), None)
    if form is None:
        raise ValueError(f"must be a number or a table with one of {', '.join((*_FORMS, 'quantiles'))}")
    values = found[form] if isinstance(found[form], list) else [found[form]]
    bounds = {name: float(value) for name, value in found.items() if name != form}
    return _FORMS[form](*map(float, values), **bounds)
