"""Trajectory admission: the actions of a trajectory wait until a plan lets it begin.

The planner decides how many trajectories live at once. One that has begun is never held up again.
"""

from __future__ import annotations

from callsheet.scheduler.core.state.entities import Action, Trajectory
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import ActionState
from callsheet.scheduler.core.words.records import TrajectoryBegan
from callsheet.scheduler.core.work.admission_counts import count_live
from callsheet.scheduler.core.work.lifecycle import advance_line, await_turn, leave_admission_queue


def admit(state: SchedulerState, trajectory: Trajectory, now: float) -> None:
    """Lets a trajectory begin: what waited for that becomes ready, and its wait so far is its wait to start."""
    if trajectory.admitted_at is not None:
        return
    leave_admission_queue(state, trajectory)
    trajectory.admitted_at = now
    if trajectory.job.request.admit_within is not None and trajectory.policy_version != trajectory.job.policy_version:
        # A job that lets them wait for its versions' sake counts from their beginning.
        trajectory.policy_version = trajectory.job.policy_version
        trajectory.began_kept = True
        state.persist(TrajectoryBegan(*trajectory.key, trajectory.policy_version))
    count_live(trajectory, 1)
    for action in list(trajectory.open_actions.values()):
        if action.state is ActionState.QUEUED:
            action.start_wait_s = now - action.queued_since
            if action.start_wait_s:
                action.tell(now, "its trajectory was admitted")
            if not action.request.in_sandbox:
                await_turn(state, action, now)
    advance_line(state, trajectory, now)


def first_actions(trajectory: Trajectory) -> list[Action]:
    """Returns the actions that become ready with the admission, for planners that place them in the same round."""
    free = [action for action in trajectory.open_actions.values() if not action.request.in_sandbox]
    makes_sandbox = [action for action in list(trajectory.line)[:1] if not action.request.needs_sandbox]
    return makes_sandbox + free
