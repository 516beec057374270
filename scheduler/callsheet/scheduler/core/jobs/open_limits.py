"""How much may be open: jobs, trajectories, actions without an outcome, and the bytes of what describes them."""

from __future__ import annotations

from typing import Final

from callsheet.scheduler.core.state.entities import Job
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import ActionRequest, JobRequest, TrajectoryRequest
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError, invalid

# Of a job or a trajectory: far more than its fields take; what remains are fields that this contract does not know.
MAX_SPEC_BYTES: Final = 64 * 1024
# The members of a group are forgotten together, in one step.
MAX_GROUP: Final = 10_000


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


def check_room_for_trajectory(state: SchedulerState, job: Job, request: TrajectoryRequest) -> None:
    """Checks that there is room for another trajectory.

    Raises:
        RefusedError: RESOURCE_EXHAUSTED naming the bound that is reached, and when to try again; INVALID_ARGUMENT if it
            or its group is too large.
    """
    settings, size = state.settings, len(request.spec)
    _check_size("trajectory", size)
    if request.group is not None and request.group.size > MAX_GROUP:
        raise invalid("trajectory.group.size", request.group.size, f"must be at most {MAX_GROUP}")
    if state.open_trajectories >= settings.max_open_trajectories:
        rule = f"as many trajectories are open as may be, {settings.max_open_trajectories}"
        raise _full(state, "trajectory.trajectory_id", state.open_trajectories, rule)
    if job.open_trajectories >= settings.max_job_open_trajectories:
        rule = f"the job has as many trajectories open as one job may have, {settings.max_job_open_trajectories}"
        raise _full(state, "trajectory.job_id", job.open_trajectories, rule)
    _check_spec_bytes(state, "trajectory", size)
    if job.spec_bytes + size > settings.max_job_open_bytes:
        rule = f"must fit beside the {job.spec_bytes} bytes of the job's open ones, which may have {{}}"
        raise _full(state, "trajectory", f"{size} bytes", rule.format(settings.max_job_open_bytes))


def check_room_for_job(state: SchedulerState, request: JobRequest) -> None:
    """Checks that there is room for another job.

    Raises:
        RefusedError: RESOURCE_EXHAUSTED naming the bound that is reached, and when to try again; INVALID_ARGUMENT if it
            is too large.
    """
    _check_size("job", len(request.spec))
    if len(state.jobs) >= state.settings.max_open_jobs:
        rule = f"as many jobs are open as may be, {state.settings.max_open_jobs}"
        raise _full(state, "job.job_id", len(state.jobs), rule)
    _check_spec_bytes(state, "job", len(request.spec))


def _check_size(field: str, size: int) -> None:
    if size > MAX_SPEC_BYTES:
        raise invalid(field, f"{size} bytes", f"must have at most {MAX_SPEC_BYTES} bytes")


def _check_spec_bytes(state: SchedulerState, field: str, size: int) -> None:
    most = state.settings.max_open_bytes
    if state.spec_bytes + size > most:
        rule = f"must fit beside the {state.spec_bytes} bytes of open jobs and trajectories, which may have {most}"
        raise _full(state, field, f"{size} bytes", rule)


def _full(state: SchedulerState, field: str, value: object, rule: str) -> RefusedError:
    return RefusedError(RefusalCode.RESOURCE_EXHAUSTED, field, value, rule, state.settings.full_retry_after)
