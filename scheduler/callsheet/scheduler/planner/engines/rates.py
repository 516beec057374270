"""The speed of an engine, learned from the generations that ended on it.

A generation of u prompt tokens that were not cached and n new ones in a batch of b takes about
``u / prefill_rate + n * (step + b * step_per_sequence)``. That is linear in three unknown times. So each engine keeps
the normal equations of a least-squares fit of relative errors, in which old observations fade (Gelman and Hill, Data
Analysis Using Regression, 2007, for weighting; Haykin, Adaptive Filter Theory, for fading). No time can be below 0, so
the best fit without a negative time counts, out of the fits to all subsets of the three. Until an engine has shown a
time itself, the observations of all engines of its service stand in for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from callsheet.scheduler.planner.engines.generation_prices import EngineRates

# Of a small model on an ordinary GPU; a few observations make it irrelevant.
FIRST_RATES = EngineRates(prefill_tokens_per_s=8192.0, step_s=0.01, step_per_sequence_s=0.0005)
# Weight that an observation keeps when the next one comes: about 200 of them count.
RATES_FADING = 0.995
# Observations that what is known beforehand counts as, before there is another one. It is divided by their number: what
# they show counts alone soon, and what they do not show stays.
TRUST = 0.1
# A first guess that is further off than that, by what was seen, is not believed.
FAR_OFF = 4.0
LEAST_S = 1e-9
LEAST_OBSERVED_S = 1e-4
_SUPPORTS = tuple(subset for size in (3, 2, 1) for subset in itertools.combinations(range(3), size))


class ObservedGeneration(NamedTuple):
    """A generation that ended.

    Attributes:
        prefilled_tokens: Tokens of its prompt that were not cached.
        new_tokens: Tokens it wrote.
        batch: Sequences it was with on average, itself included.
        execution_s: What it took.
    """

    prefilled_tokens: int
    new_tokens: int
    batch: float
    execution_s: float


class RateFit:
    """A fit of an engine's rates; see the module's docstring."""

    def __init__(self) -> None:
        """Starts with nothing seen."""
        self.observations = 0
        self._matrix = [[0.0] * 3 for _ in range(3)]
        self._vector = [0.0] * 3
        self._shown = [0.0] * 3
        self._shown_s = 0.0

    def observe(self, run: ObservedGeneration) -> None:
        """Takes a generation into account."""
        seconds = max(run.execution_s, LEAST_OBSERVED_S)
        features = _features(run.prefilled_tokens, run.new_tokens, run.batch)
        _add(self._matrix, self._vector, [each / seconds for each in features], RATES_FADING, 1.0)
        self._shown = [RATES_FADING * old + new for old, new in zip(self._shown, features, strict=True)]
        self._shown_s = RATES_FADING * self._shown_s + seconds
        self.observations += 1

    def rates(self, beforehand: EngineRates | None = None) -> EngineRates:
        """The rates that fit best, and what was known beforehand where too little was seen.

        Args:
            beforehand: What alike engines showed; without, a guess.
        """
        if not self.observations:
            return beforehand or FIRST_RATES
        times = _times(beforehand) if beforehand is not None else self._guessed()
        matrix, vector = [list(row) for row in self._matrix], list(self._vector)
        trust = TRUST / self.observations
        for typical in _TYPICAL:
            seconds = max(sum(each * time for each, time in zip(typical, times, strict=True)), LEAST_S)
            _add(matrix, vector, [each / seconds for each in typical], 1.0, trust)
        prefill_s, step_s, step_per_sequence_s = (max(each, LEAST_S) for each in _least_squares(matrix, vector))
        return EngineRates(1.0 / prefill_s, step_s, step_per_sequence_s)

    def _guessed(self) -> list[float]:
        """The first guess, brought near to what was seen where it is far off.

        Otherwise a guess for a much faster engine outweighs dozens of observations, as its relative errors are large.
        """
        times = _times(FIRST_RATES)
        guessed_s = sum(each * time for each, time in zip(self._shown, times, strict=True))
        slower = self._shown_s / max(guessed_s, LEAST_S)
        beyond = slower / min(max(slower, 1.0 / FAR_OFF), FAR_OFF)
        return [beyond * each for each in times]


_Row = Sequence[float]


def _features(prefilled: int, new: int, batch: float) -> tuple[float, float, float]:
    return (float(prefilled), float(new), new * batch)


def _times(rates: EngineRates) -> list[float]:
    return [1.0 / rates.prefill_tokens_per_s, rates.step_s, rates.step_per_sequence_s]


_TYPICAL = (_features(1024, 0, 1.0), _features(0, 256, 1.0), _features(0, 256, 16.0))


def _add(matrix: list[list[float]], vector: list[float], row: _Row, memory: float, weight: float) -> None:
    """Adds an observation to normal equations, in place. Plain lists: there are three unknowns, and many engines."""
    for index, left in enumerate(row):
        mine = matrix[index]
        for other, right in enumerate(row):
            mine[other] = memory * mine[other] + weight * left * right
        vector[index] = memory * vector[index] + weight * left


def _least_squares(matrix: Sequence[_Row], vector: _Row) -> list[float]:
    """The minimum of x'Ax - 2b'x without negative entries, by trying which are above 0: there are three."""
    best, best_value = [0.0] * 3, 0.0
    for chosen in _SUPPORTS:
        part = _solved([[*(matrix[row][column] for column in chosen), vector[row]] for row in chosen])
        if part is None or min(part) < 0.0:
            continue
        value = -sum(vector[row] * each for row, each in zip(chosen, part, strict=True))
        if value < best_value:
            best, best_value = [0.0] * 3, value
            for row, each in zip(chosen, part, strict=True):
                best[row] = each
    return best


def _solved(rows: list[list[float]]) -> list[float] | None:
    """Solves equations, each with its right side at its end, by elimination; None where they have no one solution."""
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(rows[row][column]))
        if rows[pivot][column] == 0.0:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        head = rows[column]
        for row in rows[column + 1 :]:
            factor = row[column] / head[column]
            for place in range(column, size + 1):
                row[place] -= factor * head[place]
    found = [0.0] * size
    for index in reversed(range(size)):
        known = sum(rows[index][place] * found[place] for place in range(index + 1, size))
        found[index] = (rows[index][size] - known) / rows[index][index]
    return found
