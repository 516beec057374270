"""Finds the known name that a user may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# To compare with more would let a flood of wrong names hold up the core.
MAX_COMPARED = 256


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a refusal that names the known name nearest to a wrong one; empty if none is near.

    Args:
        name: The wrong name.
        known: Names there are; of many the first in alphabetical order are compared.
    """
    by_lower = {each.lower(): each for each in sorted(known)[:MAX_COMPARED]}
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[nearest[0]]!r}?" if nearest else ""
