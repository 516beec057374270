"""Waiting for the states of other programs, which no event tells."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import anyio

# On a machine that is emulated all takes longer.
WAIT_S = float(os.environ.get("CALLSHEET_TEST_ANSWER_S", "100"))

# Some states of engines last for a few milliseconds.
_POLL_S = 0.001


async def until(condition: Callable[[], bool]) -> None:
    """Waits until a condition holds.

    Raises:
        TimeoutError: It did not hold within `WAIT_S`.
    """
    with anyio.fail_after(WAIT_S):
        while not condition():  # noqa: ASYNC110 - other programs signal nothing
            await anyio.sleep(_POLL_S)


def block_until(condition: Callable[[], bool]) -> None:
    """Waits as `until` does, and blocks the thread meanwhile."""
    ends = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError
        time.sleep(_POLL_S)
