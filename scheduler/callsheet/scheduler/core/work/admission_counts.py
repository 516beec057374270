"""Counts the trajectories of jobs and groups that were admitted, and those that wait to begin.

They are counted as it happens, so that a planning round need not walk all trajectories of a job.
"""

from __future__ import annotations

from callsheet.scheduler.core.state.entities import Job, Trajectory


def count_live(trajectory: Trajectory, change: int) -> None:
    """Counts a trajectory among those that live, or with -1 no longer. Its group has begun from then on."""
    job, version = trajectory.job, trajectory.policy_version
    job.live_trajectories += change
    job.live_versions[version] += change
    if not job.live_versions[version]:
        del job.live_versions[version]
    if trajectory.request.group is not None:
        note_begun(job, trajectory.request.group.group_id)


def note_begun(job: Job, group_id: str) -> None:
    """A member of a group was let begin, so that the others are not held up."""
    group = job.groups.get(group_id)
    if group is not None:
        group.begun = True
        if group.waiting:
            job.begun_and_waiting[group_id] = group


def note_waiting(trajectory: Trajectory, *, waits: bool) -> None:
    """A trajectory waits to be let begin, or does so no longer."""
    group, spec, job = trajectory.group, trajectory.request.group, trajectory.job
    if group is None or spec is None:
        return
    if waits:
        group.waiting[trajectory.request.trajectory_id] = trajectory
    else:
        group.waiting.pop(trajectory.request.trajectory_id, None)
    if group.begun and group.waiting:
        job.begun_and_waiting[spec.group_id] = group
    else:
        job.begun_and_waiting.pop(spec.group_id, None)
