"""How soon a wide command has fewer cores once another one needs some, seen from outside of both."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import anyio
import anyio.to_thread
import psutil
from callsheet.client import Command, Demand, Elastic, EnvStep, Trajectory

_Found = TypeVar("_Found")

_POLL_S = 0.0002
_CHANGE_S = 10.0
_DEADLINE_S = 60.0
# Unlike any other command on this machine; beside it, two processes that use all they get.
_MARK = "86400.015625"
_WIDE = Command.shell(f"for _ in 1 2; do while :; do :; done & done; sleep {_MARK}")
_SHORT = EnvStep(Command.argv("true"))


class NotNarrowedError(Exception):
    """A wide command did not give way, or did not get its cores back."""


async def giving_way_s(wide: Trajectory, short: Trajectory, cores: int, times: int) -> list[float]:
    """Seconds from the submit of a command that does nothing until the wide one's processes are on fewer cores.

    Args:
        wide: Runs a command of one to `cores` cores meanwhile.
        short: Runs the others.
        cores: All there are, at least 2.
        times: How often.

    Raises:
        NotNarrowedError: That did not happen.
        TimeoutError: A command had no outcome.
        ProcessLookupError: The wide command ended.
    """
    took = []
    running = await wide.submit(EnvStep(_WIDE), demand=Demand(cpu=Elastic(1, cores)))
    try:
        process = await _seen(_find, "is not to be seen")
        for _ in range(times):
            await _seen(lambda: _now_if(_cores_of(process) == cores), "does not get its cores back")
            began = time.perf_counter()
            action = await short.submit(_SHORT, demand=Demand(cpu=1))
            took.append(await _seen(lambda: _now_if(_cores_of(process) < cores), "does not give way") - began)
            with anyio.fail_after(_DEADLINE_S):
                await action.outcome()
    finally:
        await running.cancel()
        await running.outcome()
    return took


def _find() -> int | None:
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            if process.cmdline() == ["sleep", _MARK]:
                return process.pid
    return None


def _cores_of(process: int) -> int:
    return len(os.sched_getaffinity(process))


def _now_if(condition: bool) -> float | None:
    return time.perf_counter() if condition else None


async def _seen(look: Callable[[], _Found | None], otherwise: str) -> _Found:
    """Looks until there is something; what is looked for is no event in this process."""

    def poll() -> _Found:
        give_up_at = time.perf_counter() + _CHANGE_S
        while (found := look()) is None:
            if time.perf_counter() > give_up_at:
                raise NotNarrowedError(f"for {_CHANGE_S:g} s, a wide command {otherwise}")
            time.sleep(_POLL_S)
        return found

    return await anyio.to_thread.run_sync(poll)
