"""Has the scheduler generate for a call: submits its action, opens its trajectory if it may, and reads the outcome."""

from __future__ import annotations

from typing import Final

import anyio
from callsheet.client import (
    AccessDeniedError,
    ActionHandle,
    Cancelled,
    Client,
    Expired,
    Failed,
    FailureKind,
    FinishReason,
    GenerateResult,
    NotFoundError,
    Outcome,
    RefusedError,
    Succeeded,
)
from callsheet.gateway.server.faults import aborted, of_error, of_outcome
from callsheet.gateway.server.retries import RunningCall
from callsheet.http_server.trace_context import CALLER_SPAN

_LABEL: Final = "gateway"
_CALLER_GONE: Final = "its caller is gone"


async def generate(
    client: Client, job_id: str, trajectory_id: str, running: RunningCall, *, may_open: bool
) -> GenerateResult:
    """Returns what an engine sampled for a call.

    Args:
        client: Of the scheduler.
        job_id: The job.
        trajectory_id: The trajectory; empty for none.
        running: The call. Where it is given up its action is cancelled.
        may_open: Whether its caller may open the trajectory.

    Raises:
        NoReplyError: Nothing was sampled, or the scheduler refused it for good.
        CallsheetError: What became of it is not known: it may have been accepted before, or may be the next time.
    """
    try:
        outcome = await _outcome(client, job_id, trajectory_id, running, may_open=may_open)
    except RefusedError as error:
        fault = of_error(error)
        if fault.is_passing or isinstance(error, AccessDeniedError):
            raise
        raise fault from error
    return _result_of(outcome)


async def _outcome(
    client: Client, job_id: str, trajectory_id: str, running: RunningCall, *, may_open: bool
) -> Outcome[GenerateResult]:
    job = client.job(job_id)
    trajectory = job.trajectory(trajectory_id) if trajectory_id else None
    for opens in (may_open and trajectory is not None, False):
        try:
            handle = await (trajectory or job).submit(
                running.action, action_id=running.row.action_id, label=_LABEL, traceparent=CALLER_SPAN.get()
            )
            return await _outcome_of(handle, running)
        except NotFoundError as error:
            if not opens or trajectory is None or error.field != "trajectory_id":
                raise
            # A trainer's token names a trajectory by its first call; a closed one is refused again. Other calls may
            # open it at the same time, so one that is given up leaves it open.
            await trajectory.open(close_if_cancelled=False)
    raise AssertionError("the second try returns or raises")


async def _outcome_of(handle: ActionHandle[GenerateResult], running: RunningCall) -> Outcome[GenerateResult]:
    try:
        return await handle.outcome()
    except anyio.get_cancelled_exc_class():
        # When the gateway ends its actions go on: a retry attaches to them.
        if running.given_up:
            handle.abandon(_CALLER_GONE)
        raise


def _result_of(outcome: Outcome[GenerateResult]) -> GenerateResult:
    if isinstance(outcome, Succeeded):
        if outcome.value.finish_reason is FinishReason.ABORT:
            raise aborted()
        return outcome.value
    if isinstance(outcome, Failed) and outcome.kind is FailureKind.POLICY and outcome.partial is not None:
        # What the model itself brought about is a reply like any other.
        return outcome.partial
    assert isinstance(outcome, Failed | Cancelled | Expired)
    raise of_outcome(outcome)
