"""Runs attempts: from their start to the report of their end, with deadlines, resizes and stops between."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import inf
from time import monotonic

import anyio
import structlog
from anyio.abc import TaskGroup
from callsheet.managers.cancellation import cancellation_requested
from callsheet.managers.clock import GrantMeter, note_waits
from callsheet.managers.ends import Spent, StopOrder, StopReport, describe_end, infra_failure
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Executor, PayloadAccess, PayloadError, Stopped
from callsheet.managers.fencing import ActionId, Token
from callsheet.managers.live_attempt import LiveAttempt
from callsheet.managers.reports import Reports
from callsheet.managers.sandbox_memory import SandboxMemory, runs_in_sandbox
from callsheet.managers.settings import ManagerSettings
from callsheet.timing.deadlines import Deadlines
from callsheet.v1 import action_pb2, manager_service_pb2, outcome_pb2
from structlog.typing import FilteringBoundLogger

log: FilteringBoundLogger = structlog.get_logger()

PROGRESS_PER_HEARTBEAT = 3
CLOCK_TOLERANCE_S = 0.001
CLOCK_RECHECK_S = 0.05


class Due(Enum):
    """Duty that is due when a deadline of an attempt comes."""

    START_TO_CLOSE = "start_to_close"
    PROGRESS = "progress"
    STOP_GRACE = "stop_grace"


class AttemptRunner:
    """The attempts that run now.

    Args:
        executor: What runs them.
        payloads: What it reads and writes payloads with.
        reports: Where starts and ends are told.
        memory: What has run in live sandboxes.
        settings: Time limits.
        tasks: The task group attempts run in.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        payloads: PayloadAccess,
        reports: Reports,
        memory: SandboxMemory,
        settings: ManagerSettings,
        tasks: TaskGroup,
    ) -> None:
        self._executor = executor
        self._payloads = payloads
        self._reports = reports
        self._memory = memory
        self._settings = settings
        self._tasks = tasks
        self._live: dict[Token, LiveAttempt] = {}
        self._by_action: dict[ActionId, LiveAttempt] = {}
        self._deadlines: Deadlines[tuple[Due, LiveAttempt]] = Deadlines()
        self._deadline_moved = anyio.Event()
        # When `watch` looks next.
        self._looks_at = 0.0
        self._idle = anyio.Event()

    def __len__(self) -> int:
        return len(self._live)

    def find(self, token: Token) -> LiveAttempt | None:
        """Returns the running attempt with a token, if there is one."""
        return self._live.get(token)

    def find_action(self, action: ActionId) -> LiveAttempt | None:
        """Returns the newest running attempt at an action, if there is one."""
        return self._by_action.get(action)

    def describe_running(self) -> list[manager_service_pb2.RunningAttempt]:
        """Returns all running attempts as a registration lists them."""
        now = monotonic()
        return [_running_attempt(live, now) for live in self._live.values()]

    def start(self, dispatch: manager_service_pb2.Dispatch) -> None:
        """Starts an attempt: its clock runs, AttemptStarted is sent, and its executor is called."""
        # A copy, because a part of a received message keeps the memory of the whole batch.
        own = manager_service_pb2.Dispatch()
        own.CopyFrom(dispatch)
        now = monotonic()
        attempt = Attempt(own.grant, own.action, self._payloads)
        attempt.report_output = lambda chunk: self._reports.printed(Token.of(attempt.grant.token), chunk)
        live = LiveAttempt(attempt, now, GrantMeter(own.grant.resources, 0.0))
        # First what the action waits for: the report of its start would be written before it, and that can wait.
        self._tasks.start_soon(self._run, live)
        self._enter(live, now)

    def adopt(self, live: LiveAttempt, grant: manager_service_pb2.Grant) -> None:
        """Goes on with a running attempt under a newer grant, as its action must not run twice."""
        self._live.pop(live.token, None)
        self._change_grant(live, grant)
        self._enter(live, monotonic())

    def resize(self, resize: manager_service_pb2.Resize) -> None:
        """Changes what an attempt may use."""
        if (live := self._known("resize", resize.token)) is None:
            return
        grant = manager_service_pb2.Grant()
        grant.CopyFrom(live.attempt.grant)
        grant.ClearField("resources")
        grant.resources.update(resize.resources)
        grant.cores[:] = resize.cores
        self._change_grant(live, grant)

    def cancel(self, cancel: manager_service_pb2.CancelAttempt) -> None:
        """Has an attempt stop and end as cancelled."""
        if (live := self._known("cancel", cancel.token)) is None:
            return
        self.stop(live, StopOrder(StopReport.CANCELLED, cancel.reason))

    def stop(self, live: LiveAttempt, order: StopOrder) -> None:
        """Asks an attempt to stop; the first order counts."""
        if live.order is not None:
            return
        live.order = order
        live.attempt.stop_requested.set()
        self._deadlines.drop((Due.START_TO_CLOSE, live))
        self._set_deadline((Due.STOP_GRACE, live), monotonic() + self._settings.stop_grace_s)

    def stop_all(self, order: StopOrder) -> None:
        """Asks every attempt to stop."""
        for live in list(self._live.values()):
            self.stop(live, order)

    async def wait_idle(self) -> None:
        """Waits until nothing runs."""
        while self._live:
            self._idle = anyio.Event()
            await self._idle.wait()

    async def watch(self) -> None:
        """Enforces the deadlines of all attempts, for ever."""
        while True:
            self._deadline_moved = anyio.Event()
            for due, live in self._deadlines.pop_due(monotonic()):
                self._come_due(due, live)
            next_at = self._deadlines.next()
            self._looks_at = inf if next_at is None else next_at
            with anyio.move_on_after(None if next_at is None else max(0.0, next_at - monotonic())):
                await self._deadline_moved.wait()

    def report_end(
        self,
        dispatched: tuple[manager_service_pb2.Grant, action_pb2.ActionSpec],
        result: AttemptResult,
        order: StopOrder | None,
        spent: Spent,
    ) -> None:
        """Reports how an attempt ended, and remembers it where it must not run again."""
        grant, action = dispatched
        end = describe_end(grant, result, order, spent)
        self._reports.ended(end)
        if grant.sandbox_id and runs_in_sandbox(action):
            self._memory.remember(action, grant.sandbox_id, end)

    def _known(self, verb: str, token: manager_service_pb2.FencingToken) -> LiveAttempt | None:
        """Returns the running attempt that the scheduler wants something of; logs that there is none."""
        live = self._live.get(Token.of(token))
        if live is None:
            log.info("ignored_for_unknown_attempt", verb=verb, token=tuple(Token.of(token)))
        return live

    def _enter(self, live: LiveAttempt, now: float) -> None:
        token = live.token
        self._live[token] = live
        self._by_action[live.action_id] = live
        if live.order is None:
            self._watch_clock(live)
        self._watch_progress(live, now)
        self._reports.started(token)
        log.debug("attempt_started", **live.log_context())

    async def _run(self, live: LiveAttempt) -> None:
        note_waits(live.attempt.waits)
        try:
            with live.scope:
                self._end(live, await self._result_of(live))
        except anyio.get_cancelled_exc_class():
            if cancellation_requested():
                raise

    async def _result_of(self, live: LiveAttempt) -> AttemptResult:
        try:
            return await self._executor.run(live.attempt)
        except PayloadError as error:
            failed = outcome_pb2.Failed(kind=error.kind, reason=error.reason, message=str(error))
            log.warning("payload_failed", reason=error.reason, detail=str(error), **live.log_context())
            return Broken(failed)
        except anyio.get_cancelled_exc_class() as error:
            if cancellation_requested():
                raise
            return self._executor_error(live, error)
        except Exception as error:
            return self._executor_error(live, error)

    def _executor_error(self, live: LiveAttempt, error: BaseException) -> Broken:
        log.error("executor_error", exc_info=error, **live.log_context())
        return Broken(infra_failure("executor_error", type(error).__name__))

    def _end(self, live: LiveAttempt, result: AttemptResult) -> None:
        if live.ended:
            log.warning("attempt_returned_after_its_end", **live.log_context())
            return
        live.ended = True
        now = monotonic()
        self._live.pop(live.token, None)
        if self._by_action.get(live.action_id) is live:
            del self._by_action[live.action_id]
        for due in Due:
            self._deadlines.drop((due, live))
        executed_s = live.executed_s(now)
        attempt, units_s = live.attempt, live.meter.unit_seconds(executed_s)
        counted = attempt.sandbox_held_mib, attempt.rest_mib, attempt.thawed_mib, attempt.cpu_s
        spent = Spent(executed_s, units_s, live.waited_s(now), *counted)
        self.report_end((attempt.grant, attempt.action), result, live.order, spent)
        if isinstance(result, Broken):
            log.info("attempt_failed", reason=result.failed.reason, **live.log_context())
        else:
            log.debug("attempt_ended", result=type(result).__name__, **live.log_context())
        if not self._live:
            self._idle.set()

    def _come_due(self, due: Due, live: LiveAttempt) -> None:
        now = monotonic()
        if due is Due.PROGRESS:
            self._reports.progressed(live.token, live.execution_s(now))
            self._watch_progress(live, now)
        elif due is Due.START_TO_CLOSE:
            self._check_clock(live, now)
        else:
            log.error("attempt_stuck", grace_s=self._settings.stop_grace_s, **live.log_context())
            self._end(live, Stopped())
            live.scope.cancel()

    def _check_clock(self, live: LiveAttempt, now: float) -> None:
        limit_s = live.attempt.grant.start_to_close.ToTimedelta().total_seconds()
        execution_s = live.execution_s(now)
        if limit_s - execution_s > CLOCK_TOLERANCE_S:
            # Its clock went slower than time. The scheduler is told before it takes the attempt for stuck.
            self._reports.progressed(live.token, execution_s)
            self._set_deadline((Due.START_TO_CLOSE, live), now + max(limit_s - execution_s, CLOCK_RECHECK_S))
            return
        log.info("attempt_timed_out", limit_s=limit_s, **live.log_context())
        self.stop(live, StopOrder(StopReport.START_TO_CLOSE, f"it ran longer than its start_to_close of {limit_s:g} s"))

    def _watch_clock(self, live: LiveAttempt) -> None:
        grant = live.attempt.grant
        if grant.HasField("start_to_close"):
            limit_s = grant.start_to_close.ToTimedelta().total_seconds()
            self._set_deadline((Due.START_TO_CLOSE, live), live.began + limit_s)

    def _watch_progress(self, live: LiveAttempt, now: float) -> None:
        heartbeat_s = live.attempt.grant.heartbeat.ToTimedelta().total_seconds()
        if heartbeat_s > 0:
            self._set_deadline((Due.PROGRESS, live), now + heartbeat_s / PROGRESS_PER_HEARTBEAT)

    def _set_deadline(self, key: tuple[Due, LiveAttempt], at: float) -> None:
        self._deadlines.set(key, at)
        if at < self._looks_at:
            self._deadline_moved.set()

    def _change_grant(self, live: LiveAttempt, grant: manager_service_pb2.Grant) -> None:
        before = live.attempt.grant
        live.attempt.grant = grant
        if before.resources != grant.resources or before.cores != grant.cores:
            live.meter.change(grant.resources, live.executed_s(monotonic()))
            live.resize_wanted = True
            if not live.resizing:
                live.resizing = True
                self._tasks.start_soon(self._resize, live)

    async def _resize(self, live: LiveAttempt) -> None:
        """Has the executor apply the newest grant; one call at a time, so that no queue builds up."""
        try:
            while live.resize_wanted and not live.ended:
                live.resize_wanted = False
                await self._resize_once(live)
        finally:
            live.resizing = False

    async def _resize_once(self, live: LiveAttempt) -> None:
        try:
            with anyio.fail_after(self._settings.control_timeout_s):
                await self._executor.resize(live.attempt)
        except (Exception, anyio.get_cancelled_exc_class()) as error:
            if cancellation_requested():
                raise
            log.error("executor_control_failed", verb="resize", exc_info=error, **live.log_context())


def _running_attempt(live: LiveAttempt, now: float) -> manager_service_pb2.RunningAttempt:
    grant = live.attempt.grant
    resources: Mapping[str, int] = grant.resources
    return manager_service_pb2.RunningAttempt(
        token=grant.token,
        key=grant.key,
        attempt=grant.attempt,
        started=True,
        resources=resources,
        cores=grant.cores,
        body_hash=grant.body_hash,
        execution_s=live.execution_s(now),
    )
