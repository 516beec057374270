"""Settings of the garbage collector for a process with a core.

Almost all objects there live as long as their action.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# How the garbage collector is set where a core runs: almost all objects there live as long as their action.
# Young objects are examined once each, however many at a time; few at a time keep the pauses short (see
# docs/lab/2026-11-planner-rounds.md). What stays is examined once more, twenty thousand at a time (some 20 ms), and
# all of it once in fifty million: more often only costs time.
THRESHOLDS = (2_000, 10, 2_500)


@contextmanager
def short_pauses() -> Iterator[None]:
    """Sets the collector of this process for the length of the block."""
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
