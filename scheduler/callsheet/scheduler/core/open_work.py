"""How much may be open: actions without an outcome and the bytes of their bodies, of one job and of all together."""

from __future__ import annotations

from callsheet.scheduler.core.entities import Job
from callsheet.scheduler.core.model import ActionRequest, RefusalCode, RefusedError
from callsheet.scheduler.core.state import SchedulerState


def check_room(state: SchedulerState, job: Job, request: ActionRequest) -> None:
    """Checks that there is room for another action.

    Raises:
        RefusedError: RESOURCE_EXHAUSTED naming the bound that is reached, and when to try again.
    """
    settings, size = state.settings, len(request.spec)
    if state.open_actions >= settings.max_open_actions:
        rule = f"the queue holds its {settings.max_open_actions} actions"
        raise _full(state, "action_id", state.open_actions, rule)
    if state.open_bytes + size > settings.max_open_bytes:
        rule = f"must fit beside the {state.open_bytes} bytes of open actions, of which the queue holds {{}}"
        raise _full(state, "action", f"{size} bytes", rule.format(settings.max_open_bytes))
    own = job.request.max_actions
    if own and job.open_actions >= own:
        raise _full(state, "job_id", job.open_actions, f"the job has its max_actions of {own} open")
    if job.open_actions >= settings.max_job_open_actions:
        rule = f"the job has as many actions open as one job may have, {settings.max_job_open_actions}"
        raise _full(state, "job_id", job.open_actions, rule)
    if job.open_bytes + size > settings.max_job_open_bytes:
        rule = f"must fit beside the {job.open_bytes} bytes of the job's open actions, of which one job may have {{}}"
        raise _full(state, "action", f"{size} bytes", rule.format(settings.max_job_open_bytes))


def _full(state: SchedulerState, field: str, value: object, rule: str) -> RefusedError:
    return RefusedError(RefusalCode.RESOURCE_EXHAUSTED, field, value, rule, state.settings.full_retry_after)
