"""Gives up what takes long once an attempt is to stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from callsheet.managers.sandbox.errors import StoppedError

_Result = TypeVar("_Result")


async def unless_stopped(
    stop: anyio.Event,
    function: Callable[[], Awaitable[_Result]],
    undo: Callable[[_Result], Awaitable[None]] | None = None,
) -> _Result:
    """Returns what a function returns; cancels it once `stop` is set.

    Args:
        stop: Set when the attempt is to end.
        function: What takes long; cancelling it leaves nothing behind.
        undo: Takes back a result that came too late to be returned, because the caller is cancelled; None for nothing.

    Raises:
        StoppedError: `stop` was set before there was a result.
        Exception: What the function raised.
    """
    results: list[_Result] = []
    problems: list[Exception] = []

    async def work() -> None:
        try:
            results.append(await function())
        except Exception as error:
            problems.append(error)
        tasks.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await stop.wait()
            tasks.cancel_scope.cancel()
    except BaseException:
        with anyio.CancelScope(shield=True):
            if results and undo is not None:
                await undo(results[0])
        raise
    if problems:
        raise problems[0]
    if not results:
        raise StoppedError
    return results[0]
