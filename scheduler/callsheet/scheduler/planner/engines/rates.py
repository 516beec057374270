"""How fast an engine is, learned from the generations that ended on it.

A generation of u prompt tokens that were not cached and n new ones in a batch of b takes about
``u / prefill_rate + n * (step + b * step_per_sequence)``. That is linear in three unknown times, so each engine keeps
the normal equations of a least-squares fit of relative errors, in which old observations fade (Gelman and Hill, Data
Analysis Using Regression, 2007, for weighting; Haykin, Adaptive Filter Theory, for fading). No time can be below 0:
of all subsets of the three the best fit without a negative one counts. What all engines of a service showed stands in
for what this one has not shown yet.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from callsheet.scheduler.planner.engines.price import EngineRates
from callsheet.scheduler.planner.question.instance import Floats

# Of a small model on an ordinary GPU; a few observations make it irrelevant.
FIRST_RATES = EngineRates(prefill_tokens_per_s=8192.0, step_s=0.01, step_per_sequence_s=0.0005)
# Weight that an observation keeps when the next one comes: about 200 of them count.
FADING = 0.995
# Observations that what is known beforehand counts as, before there is another one. It is divided by their number: what
# they show counts alone soon, and what they do not show stays.
TRUST = 0.1
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
        self._matrix = np.zeros((3, 3))
        self._vector = np.zeros(3)

    def observe(self, run: ObservedGeneration) -> None:
        """Takes a generation into account."""
        seconds = max(run.execution_s, LEAST_OBSERVED_S)
        row = _features(run.prefilled_tokens, run.new_tokens, run.batch) / seconds
        self._matrix = FADING * self._matrix + np.outer(row, row)
        self._vector = FADING * self._vector + row
        self.observations += 1

    def rates(self, beforehand: EngineRates = FIRST_RATES) -> EngineRates:
        """The rates that fit best, and what was known beforehand where too little was seen."""
        if not self.observations:
            return beforehand
        times = np.array([1.0 / beforehand.prefill_tokens_per_s, beforehand.step_s, beforehand.step_per_sequence_s])
        matrix, vector = self._matrix.copy(), self._vector.copy()
        trust = TRUST / self.observations
        for typical in (_features(1024, 0, 1.0), _features(0, 256, 1.0), _features(0, 256, 16.0)):
            row = typical / max(float(typical @ times), LEAST_S)
            matrix += trust * np.outer(row, row)
            vector += trust * row
        prefill_s, step_s, step_per_sequence_s = np.maximum(_least_squares(matrix, vector), LEAST_S).tolist()
        return EngineRates(1.0 / prefill_s, step_s, step_per_sequence_s)


def _features(prefilled: int, new: int, batch: float) -> Floats:
    return np.array([float(prefilled), float(new), new * batch])


def _least_squares(matrix: Floats, vector: Floats) -> Floats:
    """The minimum of x'Ax - 2b'x without negative entries, by trying which are above 0: there are three."""
    best, best_value = np.zeros(3), 0.0
    for support in _SUPPORTS:
        chosen = list(support)
        try:
            part = np.linalg.solve(matrix[np.ix_(chosen, chosen)], vector[chosen])
        except np.linalg.LinAlgError:
            continue
        if (part < 0.0).any():
            continue
        value = float(-vector[chosen] @ part)
        if value < best_value:
            best, best_value = np.zeros(3), value
            best[chosen] = part
    return best
