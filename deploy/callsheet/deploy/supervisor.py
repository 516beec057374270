"""Keeps one process of a stack running."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import anyio.abc
import structlog
from callsheet.deploy.processes import ChildProcess, ProcessFailedError, ProcessSpec, describe_exit, run_process
from callsheet.deploy.roles import Role
from callsheet.deploy.stack_settings import RestartPolicy
from callsheet.timing.backoff import backoff_s

_log = structlog.get_logger(__name__)


class Supervisor:
    """Starts one process, and starts it again when it ends by itself, until it is cancelled.

    Attributes:
        role: The process's role.
        process: The process that serves now; None between two of them.
    """

    def __init__(self, role: str, spec: Callable[[], ProcessSpec], policy: RestartPolicy, grace_s: float) -> None:
        self.role = role
        self.process: ChildProcess | None = None
        self._spec = spec
        self._policy = policy
        self._grace_s = grace_s
        self._scope = anyio.CancelScope()
        self._changed = anyio.Event()
        self._start_requested = anyio.Event()
        self._expected_end = False
        self._ended: anyio.Event | None = None

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Runs until `stop`; shielded once the process serves, so that the owner decides the order in which they stop.

        Raises:
            ProcessFailedError: The first start failed, or there were too many failures in a row.
        """

        def ready() -> None:
            # Not before: who waits for the start, and is cancelled, waits for the end of this as well.
            self._scope.shield = True
            task_status.started()

        self._ended = anyio.Event()
        try:
            await self._run(ready)
        finally:
            self._ended.set()

    async def _run(self, ready: Callable[[], None]) -> None:
        with self._scope:
            left = await self._serve(ready)
            failures = 0
            while True:
                failures = await self._wait_to_start(failures, left)
                began = time.monotonic()
                try:
                    left = await self._serve(lambda: None)
                except ProcessFailedError as error:
                    left = False
                    _log.warning("process did not start", role=self.role, error=str(error))
                if time.monotonic() - began >= self._policy.healthy_after_s:
                    failures = 0

    def stop(self) -> None:
        """Ends the process (SIGTERM, then SIGKILL) and the supervision; `run` returns when it is gone."""
        self._scope.cancel()

    async def wait_ended(self) -> None:
        """Returns once `run` has returned, which takes the grace of the process after a `stop` at most."""
        if self._ended is not None:
            await self._ended.wait()

    def kill(self) -> None:
        """Sends SIGKILL to the process; such an end is not counted as a failure.

        Raises:
            ProcessFailedError: It does not run now.
        """
        if self.process is None:
            raise ProcessFailedError(f"{self.role} does not run now")
        self._expected_end = True
        self.process.kill()

    def request_start(self) -> None:
        """Starts the process again at once if it has ended."""
        self._start_requested.set()

    async def wait_for(self, condition: Callable[[ChildProcess | None], bool]) -> None:
        """Returns once the condition holds for the process that serves (None between two of them)."""
        while not condition(self.process):
            await self._changed.wait()

    async def _serve(self, ready: Callable[[], None]) -> bool:
        """Runs the process to its end; returns whether it left by itself in good order, as a drained manager does."""
        async with run_process(self._spec(), self._grace_s) as process:
            self._set(process)
            ready()
            try:
                await process.wait()
            finally:
                self._set(None)
        _log.warning("process ended", role=self.role, pid=process.pid, how=describe_exit(process))
        return process.returncode == 0 and self.role != Role.SCHEDULER

    async def _wait_to_start(self, failures: int, left: bool) -> int:
        """Waits as the policy says; returns the failures in a row, this one counted."""
        if left or self._expected_end:
            self._expected_end = False
        else:
            failures += 1
        if failures > self._policy.max_failures:
            raise ProcessFailedError(f"{self.role} failed {failures} times in a row; its log says why")
        if self._policy.enabled and not left:
            policy = self._policy
            wait_s = backoff_s(max(1, failures), policy.initial_backoff_s, policy.max_backoff_s)
            with anyio.move_on_after(wait_s):
                await self._start_requested.wait()
        else:
            await self._start_requested.wait()
        self._start_requested = anyio.Event()
        return failures

    def _set(self, process: ChildProcess | None) -> None:
        self.process = process
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
