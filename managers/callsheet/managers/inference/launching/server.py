"""A launched server as its manager has it: supervised, behind a guard that ends it with its manager."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.inference.driver import EngineFailedError
from callsheet.managers.inference.http_engine.client import EngineUnreachableError
from callsheet.managers.inference.launching.command import HOST, LaunchOrder, fill_in
from callsheet.managers.supervision import guard
from callsheet.managers.supervision.processes import ProcessFailedError, ProcessSpec
from callsheet.managers.supervision.standing import ProcessPhase, ProcessStanding
from callsheet.managers.supervision.supervisor import Supervisor

log = structlog.get_logger(__name__)

STOP_TIMEOUT_S = 8.0
"""The longest wait for all of a server to end. What takes longer its guard still sees to."""
_GUARD_GRACE_S = 60.0
"""The longest that a guard may take to end a server and what is left of it."""


class LaunchedServer:
    """A server and its supervisor, which has an event loop of its own: managers wait for their servers without one.

    Args:
        order: What to start.
    """

    def __init__(self, order: LaunchOrder) -> None:
        self.log_path = order.log_path
        self._order = order
        self._port = 0
        self._silent: tuple[int, float] | None = None
        begun = threading.Event()
        # A daemon, so that a server that is slow to end does not keep its manager; the guard goes on.
        self._thread = threading.Thread(target=anyio.run, args=(self._supervise, begun), daemon=True)
        self._thread.start()
        begun.wait()

    @property
    def standing(self) -> ProcessStanding:
        """Returns the standing of the server's process."""
        return self._supervisor.standing

    @property
    def starts(self) -> int:
        """Returns how often the server was started: a proof of an earlier start does not hold for this one."""
        return self.standing.starts

    @property
    def url(self) -> str:
        """Returns the address of the server.

        Raises:
            EngineUnreachableError: The server does not run now.
            EngineFailedError: It never will run again.
        """
        if failure := self.failure:
            raise EngineFailedError(failure)
        if self.standing.phase is ProcessPhase.WAITING:
            raise EngineUnreachableError(self.problem, refused=True)
        return f"http://{HOST}:{self._port}"

    @property
    def problem(self) -> str:
        """Returns why the server does not serve, as a sentence for people; empty if it does as far as is known."""
        return describe(self.standing, time.monotonic(), self.log_path)

    @property
    def failure(self) -> str:
        """Returns why the server will never serve again; empty if it may."""
        return self.problem if self.standing.phase is ProcessPhase.GIVEN_UP else ""

    def note_serving(self, start: int) -> None:
        """Takes note that a start of it was found to serve."""
        self._silent = None
        if self.standing.phase is ProcessPhase.STARTING:
            self._loop.call_soon_threadsafe(self._supervisor.note_serving, start)

    def note_silent(self, start: int) -> None:
        """Takes note that a start of it did not serve when it was looked at; one that goes on so is started again."""
        now = time.monotonic()
        if self._silent is None or self._silent[0] != start:
            self._silent = (start, now)
        standing, limit_s = self.standing, self._order.hung_after_s
        served = standing.phase is ProcessPhase.SERVING and standing.starts == start
        if served and now - self._silent[1] >= limit_s:
            log.warning("engine's server hangs", start=start, seconds=limit_s, log=self.log_path)
            self._silent = None
            self._loop.call_soon_threadsafe(self._supervisor.interrupt, start, f"it did not serve for {limit_s:g} s")

    async def stop(self) -> None:
        """Ends it and all that it started; may be called more than once."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.stop_and_wait)

    def stop_and_wait(self) -> None:
        """The same, for callers without an event loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._supervisor.stop)
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            log.warning("engine's server is slow to end", log=self.log_path)

    async def _supervise(self, begun: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._supervisor = Supervisor(self._order.name, self._spec, self._order.rule, _GUARD_GRACE_S)
        begun.set()
        try:
            await self._supervisor.run()
        except ProcessFailedError as error:
            log.warning("engine's server is given up", reason=str(error), log=self.log_path)

    def _spec(self) -> ProcessSpec:
        """Returns the process of a start, on a new port because another process may have taken the former one."""
        order = self._order
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self._port = probe.getsockname()[1]
        guarded = guard.GuardOrder(
            command=tuple(fill_in(order.command, port=self._port, name=order.name)),
            stop_command=tuple(fill_in(order.stop_command, port=self._port, name=order.name)),
            grace_s=order.stop_grace_s,
        )
        return ProcessSpec(
            name=order.name,
            module=guard.__name__,
            arguments=(guarded.encode(),),
            environment=order.environment,
            log_path=Path(order.log_path),
            ready_timeout_s=order.start_timeout_s,
            is_own=False,
        )


def describe(standing: ProcessStanding, now: float, log_path: str) -> str:
    """Returns why a server does not serve, as a sentence for people; empty if it does."""
    if standing.phase is ProcessPhase.SERVING:
        return ""
    before = f", after it ended {_times(standing.failures)} ({standing.why})" if standing.failures else ""
    if standing.phase is ProcessPhase.STARTING:
        return f"its server is starting for {now - standing.since:.0f} s{before}; its log is {log_path}"
    if standing.phase is ProcessPhase.GIVEN_UP:
        return f"its server ended {_times(standing.failures)} and never served: {standing.why}; its log is {log_path}"
    if not standing.failures:
        return f"its server is about to be started; its log is {log_path}"
    wait_s = max(standing.next_start - now, 0.0)
    row = f"its server ended {_times(standing.failures)} in a row ({standing.why})"
    return f"{row} and is started again in {wait_s:.0f} s; its log is {log_path}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
