"""Waiting for the states of other programs, which no event tells."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

# On a machine that is emulated all takes longer.
WAIT_S = float(os.environ.get("CALLSHEET_TEST_ANSWER_S", "100"))

Answer = TypeVar("Answer")

# Some states of engines last for a few milliseconds.
_POLL_S = 0.001


async def until(condition: Callable[[], object], every_s: float = _POLL_S) -> None:
    """Waits until a condition holds, and looks at it every so many seconds.

    Raises:
        TimeoutError: It did not hold within `WAIT_S`.
    """
    with anyio.fail_after(WAIT_S):
        while not condition():  # noqa: ASYNC110 - other programs signal nothing
            await anyio.sleep(every_s)


async def until_so(
    ask: Callable[[], Awaitable[Answer]], so: Callable[[Answer], object] = bool, every_s: float = 0.01
) -> Answer:
    """Asks every so many seconds until an answer is as it should be; returns that answer.

    Raises:
        TimeoutError: None was within `WAIT_S`.
    """
    with anyio.fail_after(WAIT_S):
        while not so(answer := await ask()):  # noqa: ASYNC110 - other programs signal nothing
            await anyio.sleep(every_s)
    return answer


def block_until(condition: Callable[[], bool]) -> None:
    """Waits as `until` does, and blocks the thread meanwhile."""
    ends = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError
        time.sleep(_POLL_S)
