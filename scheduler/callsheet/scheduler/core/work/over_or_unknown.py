"""Answers to requests about something that is over: it is closed, it is forgotten, or it never existed."""

from __future__ import annotations

from callsheet.scheduler.core.state.closed_trajectories import ClosedTrajectory
from callsheet.scheduler.core.state.entities import Job
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import ActionKey, TrajectoryRequest
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError, not_found

_NO_LONGER_KEPT = "all that was kept of it is that it was"


def check_not_forgotten(job: Job, key: ActionKey, body_hash: bytes) -> None:
    """An action that is forgotten never runs again.

    Raises:
        RefusedError: ALREADY_EXISTS, as forgotten, or because it had another body.
    """
    known = job.forgotten.recall(key.action_id, body_hash)
    if known is None:
        return
    if not known.same_body:
        raise RefusedError(RefusalCode.ALREADY_EXISTS, "action_id", key.action_id, "was submitted with another body")
    ended = f"the action has ended ({known.state.value})"
    rule = f"is forgotten: {ended}, and its outcome is no longer kept; it does not run again"
    raise RefusedError(RefusalCode.ALREADY_EXISTS, "action_id", key.action_id, rule, forgotten=True)


def unknown_action(state: SchedulerState, key: ActionKey) -> RefusedError:
    """The refusal of a key under which there is no action of an open job, or none any more."""
    job = state.jobs.get(key.job_id)
    known = job.forgotten.recall(key.action_id, b"") if job is not None else None
    if known is None:
        return not_found("key", "/".join(key), "names no action of an open job")
    rule = f"is forgotten: the action has ended ({known.state.value}), and its outcome is no longer kept"
    return RefusedError(RefusalCode.NOT_FOUND, "key", "/".join(key), rule, forgotten=True)


def check_trajectory_not_forgotten(job: Job, request: TrajectoryRequest) -> None:
    """A trajectory or a group that is forgotten is never opened again.

    Raises:
        RefusedError: ALREADY_EXISTS, as forgotten, or because the trajectory had another specification.
    """
    trajectory_id, group = request.trajectory_id, request.group
    known = job.forgotten.recall_trajectory(trajectory_id, request.spec)
    if known is not None and not known.same_spec:
        rule = "existed with another spec"
        raise RefusedError(RefusalCode.ALREADY_EXISTS, "trajectory.trajectory_id", trajectory_id, rule)
    if known is not None:
        rule = f"is forgotten: it was closed as {known.end.value}, and {_NO_LONGER_KEPT}"
        raise RefusedError(RefusalCode.ALREADY_EXISTS, "trajectory.trajectory_id", trajectory_id, rule, forgotten=True)
    if group is not None and job.forgotten.has_group(group.group_id):
        rule = f"is forgotten: all its trajectories were closed, and {_NO_LONGER_KEPT}; it takes no more"
        field = "trajectory.group.group_id"
        raise RefusedError(RefusalCode.ALREADY_EXISTS, field, group.group_id, rule, forgotten=True)


def closed_trajectory(job: Job, trajectory_id: str) -> ClosedTrajectory:
    """Returns the rest of a trajectory that is not open, which may be only its end.

    Raises:
        RefusedError: NOT_FOUND if there never was one of that id.
    """
    closed = job.closed_trajectories.get(trajectory_id)
    if closed is not None:
        return closed
    known = job.forgotten.recall_trajectory(trajectory_id)
    if known is None:
        raise unknown_trajectory(job, trajectory_id)
    return ClosedTrajectory(known.end, "it is forgotten why", 0)


def unknown_trajectory(job: Job, trajectory_id: str) -> RefusedError:
    """The refusal of an id under which there is no trajectory of a job, or none any more."""
    known = job.forgotten.recall_trajectory(trajectory_id)
    if known is None:
        return not_found("trajectory_id", trajectory_id, "names no trajectory of the job")
    rule = f"is forgotten: it was closed as {known.end.value}, and {_NO_LONGER_KEPT}"
    return RefusedError(RefusalCode.NOT_FOUND, "trajectory_id", trajectory_id, rule, forgotten=True)


def unknown_group(job: Job, group_id: str) -> RefusedError:
    """The refusal of an id under which there is no group of a job, or none any more."""
    if not job.forgotten.has_group(group_id):
        return not_found("group_id", group_id, "names no group of the job")
    rule = f"is forgotten: all its trajectories were closed, and {_NO_LONGER_KEPT}"
    return RefusedError(RefusalCode.NOT_FOUND, "group_id", group_id, rule, forgotten=True)
