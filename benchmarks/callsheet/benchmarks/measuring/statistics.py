"""Pure arithmetic of the benchmark: percentiles, medians over repetitions, rates."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(samples: Sequence[float], fraction: float) -> float:
    """The nearest-rank percentile: the smallest sample that at least `fraction` of the samples do not exceed.

    Args:
        samples: At least one, in any order.
        fraction: Above 0, at most 1.

    Raises:
        ValueError: There is no sample, or `fraction` is out of range.
    """
    if not samples:
        raise ValueError("samples: empty; a percentile needs at least one sample")
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction: {fraction}; must be above 0 and at most 1")
    return sorted(samples)[math.ceil(fraction * len(samples)) - 1]


def median(samples: Sequence[float]) -> float:
    """The lower median, so that the result is always one of the samples."""
    return percentile(samples, 0.5)


def ratio(value: float, reference: float) -> float:
    """`value / reference`; infinity if the reference is 0."""
    return value / reference if reference else math.inf
