"""How long to wait before another try. Pure: the random number is a parameter."""

from __future__ import annotations


def backoff_s(
    failures: int, initial_s: float, longest_s: float, *, multiplier: float = 2.0, random: float = 1.0
) -> float:
    """Returns seconds to wait: exponential backoff with equal jitter.

    Args:
        failures: Tries that failed in a row, at least 1.
        initial_s: Ceiling of the first wait.
        longest_s: Highest ceiling.
        multiplier: How much a ceiling grows with each further failure.
        random: From 0 to 1: the wait is half of the ceiling and this share of the other half. Chance spreads the tries
            of processes that failed together; without it the wait is the ceiling.
    """
    try:
        ceiling_s = min(longest_s, initial_s * multiplier ** (failures - 1))
    except OverflowError:
        ceiling_s = longest_s if initial_s else 0.0
    return ceiling_s * (0.5 + 0.5 * random)
