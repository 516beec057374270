"""Whether a model that came back is still itself: its answer to a fixed input, against the first one. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Relative to the value, or absolute for small ones. The input, the batch and the kernels are the same each time.
TOLERANCE = 1e-4
# A server may choose other kernels, and compute with other requests in its batch.
SERVER_TOLERANCE = 2e-2


def same_canary(stored: Sequence[float] | None, now: Sequence[float], tolerance: float = TOLERANCE) -> bool:
    """Whether an answer is what it should be; without a stored one, whether it can be a model's at all.

    Args:
        stored: Answer of the weights as they were first read from their source; None if this is that answer.
        now: The answer to judge.
        tolerance: How far a value may be off, relative to it, or absolute for small ones.
    """
    if not now or not all(map(math.isfinite, now)):
        return False
    if stored is None:
        return True
    return len(stored) == len(now) and all(
        abs(one - other) <= tolerance * max(1.0, abs(one)) for one, other in zip(stored, now, strict=True)
    )
