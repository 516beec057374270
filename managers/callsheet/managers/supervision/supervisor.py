"""Keeps one process running."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import anyio
import anyio.abc
import structlog
from callsheet.managers.supervision.processes import (
    ChildProcess,
    ProcessFailedError,
    ProcessSpec,
    describe_exit,
    run_process,
)
from callsheet.managers.supervision.standing import ProcessPhase, ProcessStanding, RestartRule, begun, ended, now_serves

_log = structlog.get_logger(__name__)


class Supervisor:
    """Starts one process, and starts it again when it ends by itself, until it is stopped.

    A process that says ready itself serves from then on. Any other one serves once `note_serving` says so.

    Attributes:
        name: The process's name, for messages.
        standing: What has become of it.
        process: The process that runs now; None between two of them.
    """

    def __init__(
        self,
        name: str,
        spec: Callable[[], ProcessSpec],
        rule: RestartRule,
        grace_s: float,
        *,
        may_leave: bool = False,
    ) -> None:
        """Starts nothing yet.

        Args:
            name: Of the process.
            spec: Gives what to run, asked for with each start.
            rule: When it is started again.
            grace_s: Seconds between SIGTERM and SIGKILL.
            may_leave: Whether one that ends with exit code 0 stays away, as a manager that was drained does.
        """
        self.name = name
        self.standing = ProcessStanding()
        self.process: ChildProcess | None = None
        self._spec = spec
        self._rule = rule
        self._grace_s = grace_s
        self._may_leave = may_leave
        self._scope = anyio.CancelScope()
        self._run_scope = anyio.CancelScope()
        self._interrupted = ""
        self._changed = anyio.Event()
        self._away = anyio.CancelScope()
        self._expected_end = False
        self._ended: anyio.Event | None = None

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Runs until `stop`; shielded once the process serves, so that the owner decides the order in which they stop.

        Raises:
            ProcessFailedError: There were more failures than the rule allows.
        """

        def ready() -> None:
            if not self._scope.shield:
                # Not before: who waits for the start, and is cancelled, waits for the end of this as well.
                self._scope.shield = True
                task_status.started()

        self._ended = anyio.Event()
        try:
            with self._scope:
                while True:
                    await self._run_once(ready)
        finally:
            self._ended.set()

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
            raise ProcessFailedError(f"{self.name} does not run now")
        self._expected_end = True
        self.process.kill()

    def note_serving(self, start: int) -> None:
        """Takes note that a start of it was found to serve."""
        if self.standing.phase is ProcessPhase.STARTING and self.standing.starts == start:
            self.standing = now_serves(self.standing, time.monotonic())
            self._run_scope.deadline = math.inf
            _log.info("process serves", name=self.name, start=start)

    def interrupt(self, start: int, why: str) -> None:
        """Ends a start of it that serves no longer, which counts as a failure."""
        if self.standing.phase is ProcessPhase.SERVING and self.standing.starts == start:
            self._interrupted = why
            self._run_scope.cancel()

    async def wait_for(self, condition: Callable[[ChildProcess | None], bool]) -> None:
        """Returns once the condition holds for the process that runs (None between two of them)."""
        while not condition(self.process):
            await self._changed.wait()

    async def _run_once(self, ready: Callable[[], None]) -> None:
        """Runs the process to its end, and waits as long as it is to stay away."""
        spec = self._spec()
        self.standing = begun(self.standing, time.monotonic())
        left, failure = False, None
        self._interrupted = ""
        try:
            async with run_process(spec, self._grace_s) as process:
                self._set(process)
                try:
                    await self._until_over(spec, process, ready)
                finally:
                    self._set(None)
            why = self._interrupted or describe_exit(process)
            left = self._may_leave and process.returncode == 0 and not self._interrupted
        except ProcessFailedError as error:
            why, failure = str(error), error
        expected, self._expected_end = self._expected_end or left, False
        self.standing = ended(self.standing, why, time.monotonic(), self._rule, expected=expected)
        _log.warning("process ended", name=self.name, reason=why, failures=self.standing.failures)
        if self.standing.phase is ProcessPhase.GIVEN_UP:
            rule = f"{self.name} failed {self.standing.failures} times in a row; its log says why"
            raise failure if failure is not None and not self.standing.served else ProcessFailedError(rule)
        await self._wait_to_start(left=left)

    async def _until_over(self, spec: ProcessSpec, process: ChildProcess, ready: Callable[[], None]) -> None:
        """Returns when it has ended, serves no longer, or did not serve in time."""
        with anyio.move_on_after(spec.ready_timeout_s) as self._run_scope:
            if self._interrupted:
                # While the process was being started.
                self._run_scope.cancel()
            if spec.is_own:
                self.note_serving(self.standing.starts)
                ready()
            await process.wait()
        if self._run_scope.cancelled_caught and not self._interrupted:
            self._interrupted = f"it was not ready within {spec.ready_timeout_s:g} s"

    async def _wait_to_start(self, *, left: bool) -> None:
        wait_s = max(0.0, self.standing.next_start - time.monotonic()) if self._rule.enabled and not left else math.inf
        with anyio.move_on_after(wait_s) as self._away:
            await anyio.sleep_forever()

    def _set(self, process: ChildProcess | None) -> None:
        self.process = process
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
