"""A launched server as its manager has it: through the watchdog that starts and ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import IO

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.inference.driver import EngineFailedError
from callsheet.managers.inference.http_engine.client import EngineUnreachableError
from callsheet.managers.inference.launching import watchdog
from callsheet.managers.inference.launching.command import HOST
from callsheet.managers.inference.launching.family import send_to_group
from callsheet.managers.inference.launching.standing import (
    ServerPhase,
    ServerStanding,
    Silence,
    after_silent_look,
    describe,
    is_hung,
)
from callsheet.managers.inference.launching.wire import (
    LaunchOrder,
    decode_standing,
    encode_hung,
    encode_order,
    encode_serving,
)

log = structlog.get_logger(__name__)

STOP_TIMEOUT_S = 8.0
"""The longest wait for all of a server to end. What takes longer its watchdog still sees to."""
_CHUNK = 65_536


class LaunchedServer:
    """A server and the watchdog above it, which outlives this process for as long as it takes to end the server.

    Args:
        order: What to start.
    """

    def __init__(self, order: LaunchOrder) -> None:
        self.log_path = order.log_path
        self._process = start_watchdog()
        self._standing = ServerStanding()
        self._rule = order.rule
        self._silence: Silence | None = None
        self._heard = b""
        self._gone = False
        os.set_blocking(self._reports.fileno(), False)
        self._say(encode_order(order))

    @property
    def standing(self) -> ServerStanding:
        """The newest that the watchdog told; never blocks."""
        while not self._gone:
            try:
                content = os.read(self._reports.fileno(), _CHUNK)
            except BlockingIOError:
                break
            if not content:
                self._lose_watchdog()
            *lines, self._heard = (self._heard + content).split(b"\n")
            for line in lines:
                self._note(decode_standing(line))
        return self._standing

    @property
    def starts(self) -> int:
        """How often it was started: what was proved of an earlier start is not of this one."""
        return self.standing.starts

    @property
    def url(self) -> str:
        """Where it is.

        Raises:
            EngineUnreachableError: It does not run now.
            EngineFailedError: It never will again.
        """
        if failure := self.failure:
            raise EngineFailedError(failure)
        if self.standing.phase is ServerPhase.WAITING:
            raise EngineUnreachableError(self.problem, refused=True)
        return f"http://{HOST}:{self.standing.port}"

    @property
    def problem(self) -> str:
        """Why it does not serve, as a sentence for people; empty if it does as far as is known."""
        return describe(self.standing, time.monotonic(), self.log_path)

    @property
    def failure(self) -> str:
        """Why it will never serve again; empty if it may."""
        if self.standing.phase is ServerPhase.GIVEN_UP:
            return self.problem
        return f"the watchdog of its server was killed; its log is {self.log_path}" if self._gone else ""

    def note_serving(self, start: int) -> None:
        """Tells the watchdog that a start of it was found to serve."""
        standing, self._silence = self.standing, None
        if standing.phase is ServerPhase.STARTING and standing.starts == start:
            self._say(encode_serving(start))

    def note_silent(self, start: int) -> None:
        """Takes note that a start of it did not serve when it was looked at; one that goes on so is started again."""
        now = time.monotonic()
        self._silence = after_silent_look(self._silence, start, now)
        if is_hung(self.standing, self._silence, now, self._rule):
            log.warning("engine's server hangs", start=start, seconds=self._rule.hung_after_s, log=self.log_path)
            self._silence = None
            self._say(encode_hung(start))

    async def stop(self) -> None:
        """Ends it and all that it started; may be called more than once."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.stop_and_wait)

    def stop_and_wait(self) -> None:
        """The same, for callers without an event loop."""
        if self._orders.closed:
            return
        self._orders.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            log.warning("engine's server is slow to end", log=self.log_path)
        self._gone = True  # First: whoever asks for its standing meanwhile must not read what is closed.
        self._reports.close()

    @property
    def _orders(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _reports(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _say(self, line: bytes) -> None:
        try:
            self._orders.write(line)
            self._orders.flush()
        except (BrokenPipeError, ValueError):
            return  # What it told last, or that it tells nothing any longer, says why.

    def _note(self, standing: ServerStanding) -> None:
        self._standing = standing
        told = {"start": standing.starts, "port": standing.port, "log": self.log_path}
        if standing.phase in (ServerPhase.WAITING, ServerPhase.GIVEN_UP):
            log.warning("engine's server ended", reason=standing.why, failures=standing.failures, **told)
        else:
            log.info("engine's server", phase=standing.phase.value, **told)

    def _lose_watchdog(self) -> None:
        """It has given up, or was killed, and the server with it. Here the rest of the server's group is killed."""
        self._gone = True
        if self._standing.pid:
            send_to_group(self._standing.pid, signal.SIGKILL)


def start_watchdog() -> subprocess.Popen[bytes]:
    """Starts a watchdog, in a session of its own: Ctrl-C in a terminal is for the manager."""
    return subprocess.Popen(
        [sys.executable, "-m", watchdog.__name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
