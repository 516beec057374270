"""Resizes, pauses and resumes running attempts without ever keeping a queue of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic

import anyio
import structlog
from anyio.abc import TaskGroup
from callsheet.managers.cancellation import cancellation_requested
from callsheet.managers.executor import Attempt, Executor
from callsheet.managers.live_attempt import LiveAttempt
from structlog.typing import FilteringBoundLogger

log: FilteringBoundLogger = structlog.get_logger()


class Steering:
    """Brings an executor to what the scheduler wants of each attempt last.

    Args:
        executor: What is resized, paused and resumed.
        tasks: The task group that this happens in.
        timeout_s: How long one call of the executor may take.
        on_clock_resumed: Called when an attempt's clock goes on.
    """

    def __init__(
        self,
        executor: Executor,
        tasks: TaskGroup,
        timeout_s: float,
        on_clock_resumed: Callable[[LiveAttempt], None],
    ) -> None:
        self._executor = executor
        self._tasks = tasks
        self._timeout_s = timeout_s
        self._on_clock_resumed = on_clock_resumed

    def steer(self, live: LiveAttempt) -> None:
        """Sees to it that what is wanted of an attempt happens, after what is happening to it now."""
        if not live.steering:
            live.steering = True
            self._tasks.start_soon(self._steer, live)

    async def _steer(self, live: LiveAttempt) -> None:
        try:
            while not live.ended and (live.resize_wanted or live.pause_wanted != live.pause_applied):
                await self._next_step(live)
        finally:
            live.steering = False
        if not live.ended and not live.pause_wanted and live.clock.paused:
            live.clock.resume(monotonic())
            self._on_clock_resumed(live)

    async def _next_step(self, live: LiveAttempt) -> None:
        if live.resize_wanted:
            live.resize_wanted = False
            await self._call("resize", self._executor.resize, live)
            return
        live.pause_applied = live.pause_wanted
        if live.pause_wanted:
            await self._call("pause", self._executor.pause, live)
        else:
            await self._call("resume", self._executor.resume, live)

    async def _call(self, verb: str, call: Callable[[Attempt], Awaitable[None]], live: LiveAttempt) -> None:
        try:
            with anyio.fail_after(self._timeout_s):
                await call(live.attempt)
        except (Exception, anyio.get_cancelled_exc_class()) as error:
            if cancellation_requested():
                raise
            log.error("executor_control_failed", verb=verb, exc_info=error, **live.log_context())
