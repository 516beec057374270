"""Seconds that things take."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio

Progress = Callable[[str], None]
"""Told, as a sentence, what is being measured."""

_DEADLINE_S = 120.0


@contextmanager
def timed(into: list[float]) -> Iterator[None]:
    """Appends the seconds that a block takes, unless it fails."""
    began = time.perf_counter()
    yield
    into.append(time.perf_counter() - began)


async def latencies_s(one: Callable[[], Awaitable[object]], samples: int, warm_up: int) -> list[float]:
    """Seconds of so many calls, one after another, after some that do not count.

    Raises:
        TimeoutError: All together took more than two minutes.
    """
    latencies: list[float] = []
    with anyio.fail_after(_DEADLINE_S):
        for _ in range(warm_up + samples):
            with timed(latencies):
                await one()
    return latencies[warm_up:]
