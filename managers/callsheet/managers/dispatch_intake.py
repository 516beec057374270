"""Decides what becomes of a dispatch: run it, run it on the spot, refuse it, or repeat what is known already."""

from __future__ import annotations

from time import monotonic

import structlog
from callsheet.managers.attempt_runner import AttemptRunner
from callsheet.managers.ends import Spent, StopOrder, StopReport, infra_failure, refusal
from callsheet.managers.executor import AttemptResult, Broken, Executor
from callsheet.managers.fencing import DispatchVerdict, Fence, Token
from callsheet.managers.live_attempt import describe_for_log
from callsheet.managers.reports import Reports
from callsheet.managers.sandbox_memory import SandboxMemory, runs_in_sandbox
from callsheet.v1 import manager_service_pb2
from callsheet.v1.contract import unknown_field
from structlog.typing import FilteringBoundLogger

log: FilteringBoundLogger = structlog.get_logger()


class DispatchIntake:
    """Takes dispatches.

    Args:
        executor: Asked first whether it can run an attempt on the spot.
        runner: Where attempts run.
        reports: Where refusals go.
        memory: What has run in live sandboxes.
        max_attempts: Attempts at once.
    """

    def __init__(
        self, *, executor: Executor, runner: AttemptRunner, reports: Reports, memory: SandboxMemory, max_attempts: int
    ) -> None:
        self._executor = executor
        self._runner = runner
        self._reports = reports
        self._memory = memory
        self._max_attempts = max_attempts
        self._fence = Fence()
        self._draining = False

    def enter_epoch(self, epoch: int) -> None:
        """Notes the epoch of the scheduler; dispatches of earlier ones are stale from now on."""
        self._fence.enter_epoch(epoch)

    def drain(self) -> None:
        """Refuses everything from now on."""
        self._draining = True

    def dispatch(self, dispatch: manager_service_pb2.Dispatch) -> None:
        """Takes a dispatch, to whatever end."""
        token = Token.of(dispatch.grant.token)
        if self._runner.find(token) is not None or self._reports.end_repeated(token):
            return
        verdict = self._fence.judge((dispatch.action.job_id, dispatch.action.action_id), token)
        if verdict is DispatchVerdict.STALE:
            self._refuse(dispatch, "stale_token", "its fencing token is older than one that came before")
        elif verdict is DispatchVerdict.RUN:
            self._admit(dispatch)

    def _admit(self, dispatch: manager_service_pb2.Dispatch) -> None:
        if runs_in_sandbox(dispatch.action):
            if self._has_run(dispatch):
                return
        else:
            self._supersede(dispatch)
        if self._draining:
            self._refuse(dispatch, "manager_draining", "the manager is leaving")
        elif len(self._runner) >= self._max_attempts or self._reports.full(len(self._runner)):
            self._refuse(dispatch, "manager_overloaded", "the manager runs, or has yet to deliver, too many attempts")
        elif (unknown := unknown_field(dispatch.action)) is not None:
            self._refuse(dispatch, "manager_outdated", f"the manager does not know {unknown}: upgrade it")
        elif not self._run_inline(dispatch):
            self._runner.start(dispatch)

    def _has_run(self, dispatch: manager_service_pb2.Dispatch) -> bool:
        """Keeps an action from running twice in a sandbox: repeats its end, or goes on with it under the new token."""
        end = self._memory.recall(dispatch)
        if end is not None:
            log.warning("not_run_twice", **describe_for_log(dispatch.grant, dispatch.action))
            self._reports.ended(end)
            return True
        live = self._runner.find_action((dispatch.action.job_id, dispatch.action.action_id))
        if live is None or live.attempt.grant.sandbox_id != dispatch.grant.sandbox_id:
            return False
        log.warning("adopted_by_new_token", **describe_for_log(dispatch.grant, dispatch.action))
        grant = manager_service_pb2.Grant()
        grant.CopyFrom(dispatch.grant)
        self._runner.adopt(live, grant)
        return True

    def _supersede(self, dispatch: manager_service_pb2.Dispatch) -> None:
        """Stops an older attempt at the same action, whose end nobody wants any more."""
        live = self._runner.find_action((dispatch.action.job_id, dispatch.action.action_id))
        if live is not None:
            self._runner.stop(live, StopOrder(StopReport.CANCELLED, "a newer attempt took its place"))

    def _run_inline(self, dispatch: manager_service_pb2.Dispatch) -> bool:
        began = monotonic()
        result: AttemptResult | None
        try:
            result = self._executor.run_inline(dispatch)
        except Exception as error:
            log.error("executor_error", exc_info=error, **describe_for_log(dispatch.grant, dispatch.action))
            result = Broken(infra_failure("executor_error", type(error).__name__))
        if result is None:
            return False
        took_s = monotonic() - began
        held = {resource: units * took_s for resource, units in dispatch.grant.resources.items()}
        self._runner.report_end((dispatch.grant, dispatch.action), result, None, Spent(took_s, held))
        return True

    def _refuse(self, dispatch: manager_service_pb2.Dispatch, reason: str, message: str) -> None:
        log.info("dispatch_refused", reason=reason, **describe_for_log(dispatch.grant, dispatch.action))
        self._reports.refused(refusal(dispatch.grant, reason, message))
