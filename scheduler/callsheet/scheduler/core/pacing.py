"""Which waiting trajectories may begin, as far as their job's buffer and its staleness policy are concerned.

A new trajectory waits while the buffer is full, or while another start could make one too stale. A group that has begun
is never held up: others wait for its members.
"""

from __future__ import annotations

from collections.abc import Iterable

from callsheet.scheduler.core.batches import max_buffered_of
from callsheet.scheduler.core.entities import Job, Trajectory
from callsheet.scheduler.core.staleness import room_to_begin
from callsheet.scheduler.core.state import SchedulerState


class PacingGate:
    """What a job's buffer and staleness policy let begin now.

    Attributes:
        reason: Why a new trajectory has to wait once there is no room, as a sentence's end.
    """

    def __init__(self, state: SchedulerState, job: Job) -> None:
        self._job = job
        self.reason = ""
        most = max_buffered_of(state, job)
        self._room: int | None = None
        if job.buffer.held >= most:
            self._room = 0
            self.reason = f"the buffer holds {job.buffer.held} finished trajectories, and no more begin from {most} on"
        elif job.request.staleness.admit_within is not None and job.buffer.batch_size:
            self._pace(job.request.staleness.admit_within)

    def _pace(self, within: int) -> None:
        job = self._job
        version, batch = job.policy_version, job.buffer.batch_size
        live = [each.policy_version for each in job.trajectories.values() if each.admitted_at is not None]
        finished = [
            member.policy_version
            for bundle in job.buffer.bundles.values()
            if bundle.whole or self._has_open_members(bundle.key[0])
            for member in bundle.members
        ]
        ahead = len(live) + len(finished)
        oldest = min([version, *live, *finished])
        self._room = room_to_begin(version, oldest, ahead, batch, within)
        self.reason = (
            f"{ahead} trajectories are on their way in batches of {batch}, the oldest began with version {oldest} of "
            f"{version}, and none is to be staler than {within} when it is trained on"
        )

    def _has_open_members(self, group_id: str) -> bool:
        group = self._job.groups.get(group_id)
        return group is not None and any(each in self._job.trajectories for each in group.members)

    @property
    def is_open(self) -> bool:
        """Whether it holds up nothing at all, however many begin."""
        return self._room is None

    @property
    def has_room(self) -> bool:
        """Whether a trajectory of no group that has begun may begin."""
        return self._room is None or self._room > 0

    def admits(self, trajectory: Trajectory) -> bool:
        """Whether a waiting trajectory may begin; it counts as begun from now on."""
        if self._room is None:
            return True
        admitted = self._room > 0 or self._group_has_begun(trajectory)
        self._room -= admitted
        return admitted

    def _group_has_begun(self, trajectory: Trajectory) -> bool:
        spec, job = trajectory.request.group, self._job
        group = job.groups.get(spec.group_id) if spec is not None else None
        if group is None:
            return False
        return any(
            (open_one := job.trajectories.get(each)) is None or open_one.admitted_at is not None
            for each in (*group.members, *group.lost)
        )


def may_begin(state: SchedulerState, job_id: str) -> Iterable[Trajectory]:
    """The trajectories of a job that wait for admission and are not held up here, in their order."""
    waiting = state.waiting_trajectories[job_id]
    gate = PacingGate(state, state.jobs[job_id])
    if gate.is_open:
        return waiting.values()
    chosen: list[Trajectory] = []
    begun: set[str] = set()
    for trajectory in waiting.values():
        group_id = trajectory.request.group.group_id if trajectory.request.group is not None else ""
        # The first member of a group that is let begin brings its siblings along.
        if group_id in begun or gate.admits(trajectory):
            chosen.append(trajectory)
            begun |= {group_id} - {""}
    return chosen
