"""Pure arithmetic of the benchmarks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def percentile(samples: Sequence[float], percent: float) -> float:
    """The value below which `percent` of at least one sample lie, linear between neighbours, as numpy has it."""
    return float(np.percentile(samples, percent))


def ratio(value: float, reference: float) -> float:
    """`value / reference`; infinity if the reference is 0."""
    return value / reference if reference else math.inf
