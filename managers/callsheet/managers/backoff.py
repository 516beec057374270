"""How long to wait before trying again: pure, the random number is a parameter."""

from __future__ import annotations


def retry_delay(failures: int, initial_s: float, max_s: float, random: float) -> float:
    """Returns seconds to wait after `failures` (1 or more) in a row.

    Doubles from `initial_s` up to `max_s`, then takes between half of it and all of it by `random` in [0, 1), so that
    those who failed together do not try again together.
    """
    ceiling = min(max_s, initial_s * 2.0 ** min(failures - 1, 60))
    return ceiling * (0.5 + 0.5 * random)
