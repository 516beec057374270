"""Finds the value of one parameter that makes one figure come out right."""

from __future__ import annotations

from collections.abc import Callable


def bisect(figure: Callable[[float], float], target: float, low: float, high: float, steps: int = 10) -> float:
    """The value in [low, high] at which a monotonous figure is nearest to the target; an end where it never gets there.

    Args:
        figure: The figure at a value of the parameter; rising or falling.
        target: What it should be.
        low: Least value of the parameter.
        high: Greatest one.
        steps: Halvings.
    """
    at_low, at_high = figure(low), figure(high)
    rising = at_high >= at_low
    if not min(at_low, at_high) < target < max(at_low, at_high):
        return low if abs(at_low - target) < abs(at_high - target) else high
    for _ in range(steps):
        middle = (low + high) / 2.0
        if (figure(middle) < target) == rising:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0
