"""Decides which waiting trajectories may begin under their job's limit on its buffer and its staleness policy.

A new trajectory waits while the buffer is full, or while another start could make one too stale. A group that has begun
is never held up because others wait for its members. Every trajectory that begins counts, even in such a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from callsheet.scheduler.core.state.entities import Group, Job, Trajectory
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.staleness import OnTheWay, most_on_the_way, room_to_begin


class PacingGate:
    """Limit on the trajectories of a job that may begin now, from the job's buffer and its staleness policy.

    Attributes:
        reason: Why a new trajectory has to wait once no more may begin, as a sentence's end.
    """

    def __init__(self, state: SchedulerState, job: Job) -> None:
        self._job = job
        self.reason = ""
        most, held = max_buffered_of(state, job), job.buffer.held
        self._room: int | None = None
        if held >= most:
            self._room = _on_the_way(job).shortfall
            self.reason = f"the buffer holds {held} finished trajectories, and no more begin from {most} on"
        elif job.request.staleness.admit_within is not None and job.buffer.batch_size:
            self._pace(job.request.staleness.admit_within)

    def _pace(self, within: int) -> None:
        way, version, batch = _on_the_way(self._job), self._job.policy_version, self._job.buffer.batch_size
        self._room = room_to_begin(version + len(self._job.buffer.batches), way, batch, within)
        self.reason = (
            f"{way.live + way.finished} trajectories are on their way in batches of {batch}, the oldest began with "
            f"version {way.oldest} of {version}, and none is to be staler than {within} when it is trained on"
        )

    @property
    def is_open(self) -> bool:
        """Returns whether the gate holds up nothing, however many trajectories begin."""
        return self._room is None

    @property
    def has_room(self) -> bool:
        """Returns whether a trajectory may begin that is in no group that has begun."""
        return self._room is None or self._room > 0

    def admits(self, trajectory: Trajectory) -> bool:
        """Returns whether a waiting trajectory may begin, and if so counts it as begun."""
        if self._room is None:
            return True
        group = trajectory.group
        admitted = self._room > 0 or (group is not None and group.begun)
        self._room -= admitted
        return admitted

    def begin(self) -> None:
        """Counts a trajectory that begins."""
        if self._room is not None:
            self._room -= 1


def max_buffered_of(state: SchedulerState, job: Job) -> int:
    """The most trajectories in a job's buffer before no more begin."""
    return job.request.max_buffered or state.settings.max_buffered


def most_buffered_of(state: SchedulerState, job: Job) -> int:
    """The most trajectories in a job's buffer at all: those that are live once no more begin have room to finish."""
    return 2 * max_buffered_of(state, job)


def holds_back(job: Job) -> bool:
    """Returns whether a batch that is not full has to wait.

    It has to if it would leave more trajectories unfinished than may be on their way then. A trainer that takes few
    each time would otherwise overtake the oldest.
    """
    within, buffer, coming = job.request.staleness.admit_within, job.buffer, _coming(job)
    began_with = [*job.live_versions, *coming]
    if within is None or not began_with:
        return False
    version = job.policy_version + len(buffer.batches) + 1
    most = most_on_the_way(version, min(began_with), buffer.batch_size, within)
    return job.live_trajectories + len(coming) > most


def _coming(job: Job) -> list[int]:
    """The versions that finished members of groups began with, unless a group waits for members that nobody opened."""
    return [
        member.policy_version
        for bundle in job.buffer.incomplete.values()
        if (group := job.groups.get(bundle.key[0])) is not None and job.has_open_members(group)
        for member in bundle.members
    ]


def _on_the_way(job: Job) -> OnTheWay:
    """While nobody waits for a batch, a version of what is leased is near, and a beginning is better after it.

    So what is leased counts for the oldest then.
    """
    buffer, coming = job.buffer, _coming(job)
    finished = buffer.ready_versions if buffer.takers.wanted else buffer.held_versions
    return OnTheWay(
        live=job.live_trajectories,
        finished=buffer.ready_count + len(coming),
        wanted=buffer.takers.wanted,
        oldest=min([job.policy_version, *job.live_versions, *finished, *coming]),
    )


def may_begin(state: SchedulerState, job_id: str) -> Iterable[Trajectory]:
    """The trajectories of a job that wait for admission and are not held up here.

    First come members of groups that have begun, then the others in their order, each with its siblings.
    """
    gate = PacingGate(state, state.jobs[job_id])
    waiting = state.waiting_trajectories[job_id]
    return waiting.values() if gate.is_open else _chosen(state.jobs[job_id], gate, waiting)


def _chosen(job: Job, gate: PacingGate, waiting: dict[str, Trajectory]) -> Iterator[Trajectory]:
    """Walks no further than there is room: thousands may wait behind."""
    chosen: set[int] = set()

    def with_siblings(group: Group) -> Iterator[Trajectory]:
        chosen.add(id(group))
        for trajectory_id, trajectory in group.waiting.items():
            if trajectory_id in waiting:
                gate.begin()
                yield trajectory

    for group in job.begun_and_waiting.values():
        yield from with_siblings(group)
    for trajectory in waiting.values():
        if not gate.has_room:
            return
        if trajectory.group is None:
            gate.begin()
            yield trajectory
        elif id(trajectory.group) not in chosen:
            yield from with_siblings(trajectory.group)
