"""How soon a wide command has fewer cores once another one needs some, seen from outside of both."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import anyio
import anyio.to_thread
import psutil
from callsheet.client import ActionHandle, Command, CommandResult, Demand, Elastic, EnvStep, Trajectory

_Found = TypeVar("_Found")

_POLL_S = 0.0002
_CHANGE_S = 10.0
_DEADLINE_S = 60.0
# Longer than it is looked for: what lasts milliseconds may be over before this process has its turn to look.
_SHORT = EnvStep(Command.argv("sleep", f"{2 * _CHANGE_S:g}"))


class NotNarrowedError(Exception):
    """A wide command did not give way, or did not get its cores back."""


async def giving_way_s(wide: Trajectory, short: Trajectory, cores: int, times: int) -> list[float]:
    """Seconds from the submit of a command that waits until the wide one's processes are on fewer cores.

    Args:
        wide: Runs a command of one to `cores` cores meanwhile.
        short: Runs the others, each until the wide one has given way.
        cores: All there are, at least 2.
        times: How often.

    Raises:
        NotNarrowedError: That did not happen.
        TimeoutError: A command had no outcome.
        ProcessLookupError: The wide command ended.
    """
    took = []
    mark = _unlike_any_other()
    running = await wide.submit(EnvStep(_wide(mark)), demand=Demand(cpu=Elastic(1, cores)))
    try:
        process = await _seen(lambda: _find(mark), "is not to be seen")
        for _ in range(times):
            await _seen(lambda: _now_if(_cores_of(process) == cores), "does not get its cores back")
            began = time.perf_counter()
            action = await short.submit(_SHORT, demand=Demand(cpu=1))
            try:
                took.append(await _seen(lambda: _now_if(_cores_of(process) < cores), "does not give way") - began)
            finally:
                await _end(action)
    finally:
        await _end(running)
    return took


def _wide(mark: str) -> Command:
    """Two processes that use all they get, and one to know them by."""
    return Command.shell(f"for _ in 1 2; do while :; do :; done & done; sleep {mark}")


def _unlike_any_other() -> str:
    """Returns seconds to sleep that no other command on this machine names: other benchmarks may run here."""
    return f"86400.{secrets.randbelow(10**9):09d}"


async def _end(action: ActionHandle[CommandResult]) -> None:
    with anyio.fail_after(_DEADLINE_S):
        await action.cancel()
        await action.outcome()


def _find(mark: str) -> int | None:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cmdline() == ["sleep", mark]:
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
