"""Pure arithmetic of the benchmarks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def percentile(samples: Sequence[float], percent: float) -> float:
    """The value below which `percent` of at least one sample lie, linear between neighbours, as numpy has it."""
    return float(np.percentile(samples, percent))


def ratio(value: float, reference: float) -> float:
    """`value / reference`; infinity if the reference is 0."""
    return value / reference if reference else math.inf


def significant(value: Any, digits: int = 6) -> Any:
    """A float with so many significant digits, None where JSON has no such number; anything else unchanged."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def rounded(values: Mapping[str, Any], digits: int = 6) -> dict[str, Any]:
    """Every value, those of dictionaries within too, with so many significant digits."""
    return {
        name: rounded(value, digits) if isinstance(value, Mapping) else significant(value, digits)
        for name, value in values.items()
    }
