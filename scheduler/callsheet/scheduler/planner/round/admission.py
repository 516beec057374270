"""How many trajectories live at once, by the memory and the cores that they keep busy between their actions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from callsheet.scheduler.core.jobs.pacing import may_begin
from callsheet.scheduler.core.state.entities import Job, Trajectory
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import TrajectoryKey
from callsheet.scheduler.planner.round.cpu_load import CpuLoad
from callsheet.scheduler.planner.round.sandbox_room import SandboxRoom, reset_of

# A new figure of trajectories to a version counts this much beside those before it.
LEARNING_RATE = 0.3


@dataclass(slots=True)
class Candidate:
    """A job with trajectories that wait.

    Attributes:
        waiting: In order.
        live: How many live.
        most: How many may live.
        on_cores: Whether its trajectories have sandboxes, whose commands load cores.
    """

    priority: int
    weight: float
    waiting: Iterator[Trajectory]
    live: int
    most: float
    on_cores: bool = True


def choose(
    candidates: Sequence[Candidate], room: Callable[[Trajectory], bool], most_in_all: float
) -> list[TrajectoryKey]:
    """Chooses the trajectories that may begin.

    Args:
        candidates: Jobs with waiting trajectories; their counts are kept up as trajectories are chosen.
        room: Books a trajectory's sandbox and says whether there was room for it.
        most_in_all: How many may live in all, of jobs whose trajectories have sandboxes.
    """
    chosen: list[TrajectoryKey] = []
    live = _live_on_cores(candidates)
    open_ones = list(candidates)
    while open_ones:
        job = min(open_ones, key=lambda each: (each.priority, (each.live + 1) / each.weight))
        may = job.live < job.most and (live < most_in_all or not job.on_cores)
        trajectory = next(job.waiting, None) if may else None
        if trajectory is None or not room(trajectory):
            open_ones.remove(job)
            continue
        job.live += 1
        live += job.on_cores
        chosen.append(trajectory.key)
    return chosen


def _live_on_cores(candidates: Sequence[Candidate]) -> int:
    return sum(each.live for each in candidates if each.on_cores)


@dataclass(slots=True)
class _Consumed:
    """Numbers of a job at the time when its present version was published."""

    job: Job
    version: int
    ended: int
    per_version: float = 0.0


class Consumption:
    """Trajectories completed to a policy version, by job, learned as versions are published."""

    def __init__(self) -> None:
        self._known: dict[str, _Consumed] = {}

    def observe(self, job: Job) -> None:
        """Takes a look at a job. One that was closed and opened again under its name is another one."""
        name, version = job.request.job_id, job.policy_version
        known = self._known.get(name)
        if known is not None and known.job is job and known.version == version:
            return
        ended = job.completed_trajectories
        if known is None or known.job is not job:
            self._known[name] = _Consumed(job, version, ended)
            return
        found = (ended - known.ended) / (version - known.version)
        known.per_version += LEARNING_RATE * (found - known.per_version) if known.per_version else found
        known.version, known.ended = version, ended

    def keep_only(self, open_jobs: Container[str]) -> None:
        """Forgets jobs that are closed."""
        for name in [name for name in self._known if name not in open_jobs]:
            del self._known[name]

    def most_live(self, job: Job) -> float:
        """How many of a job's trajectories may live so that none ends too stale; infinite if that is not known."""
        known = self._known.get(job.request.job_id)
        if known is None or not job.request.max_staleness or known.per_version <= 0.0:
            return float("inf")
        return max((job.request.max_staleness + 1) * known.per_version, 1.0)


class _Head(NamedTuple):
    """A job's first waiting trajectory, and since when it is the first."""

    trajectory: Trajectory
    since: float


class Admission:
    """Decides in rounds; keeps what it learned between them."""

    def __init__(self, most_load: float, hold_after: float) -> None:
        """Starts with nothing learned.

        Args:
            most_load: Load of the cores up to which trajectories are let begin; infinite for no such bound.
            hold_after: Seconds that a job's first trajectory finds no room before a node is held for it.
        """
        self._most_load = most_load
        self._hold_after = hold_after
        self._consumption = Consumption()
        self._first_since: dict[str, _Head] = {}
        self._with_sandboxes: set[str] = set()

    def with_sandboxes(self, state: SchedulerState) -> Set[str]:
        """The open jobs of which a trajectory was seen to wait for its sandbox."""
        self._with_sandboxes &= state.jobs.keys()
        for job_id, waiting in state.waiting_trajectories.items():
            if job_id not in self._with_sandboxes and reset_of(next(iter(waiting.values()))) is not None:
                self._with_sandboxes.add(job_id)
        return self._with_sandboxes

    def decide(
        self, state: SchedulerState, load: CpuLoad | None, room: SandboxRoom, now: float
    ) -> tuple[TrajectoryKey, ...]:
        """The trajectories that may begin now.

        Args:
            state: The core.
            load: How busy live trajectories keep the cores; None if that is not known.
            room: Where their sandboxes could go.
            now: Seconds since the epoch.
        """
        candidates = []
        with_sandboxes = self.with_sandboxes(state)
        self._consumption.keep_only(state.jobs)
        may = {job_id: iter(may_begin(state, job_id)) for job_id in state.waiting_trajectories}
        first = {job_id: trajectory for job_id, each in may.items() if (trajectory := next(each, None)) is not None}
        heads = self._heads(first, now)
        for job_id, trajectory in first.items():
            waiting = itertools.chain((trajectory,), may[job_id])
            job = state.jobs[job_id]
            self._consumption.observe(job)
            priority, weight = int(job.request.priority_class), job.request.weight
            bounds = job.live_trajectories, self._consumption.most_live(job)
            candidates.append(Candidate(priority, weight, waiting, *bounds, job_id in with_sandboxes))
        elsewhere = sum(state.jobs[name].live_trajectories for name in with_sandboxes - first.keys())
        # Somebody must live for anything to be learned.
        most = max(float("inf") if load is None else load.most_live(self._most_load) - elsewhere, 1.0)
        passed_over = self._passed_over(candidates, heads, room, most, now)
        return (*passed_over, *choose(candidates, room.book, most))

    def _heads(self, first: Mapping[str, Trajectory], now: float) -> list[_Head]:
        """The first waiting trajectory of each job, and since when it is."""
        heads: dict[str, _Head] = {}
        for job_id, trajectory in first.items():
            known = self._first_since.get(job_id)
            heads[job_id] = known if known is not None and known.trajectory is trajectory else _Head(trajectory, now)
        self._first_since = heads
        return list(heads.values())

    def _passed_over(
        self, candidates: Sequence[Candidate], heads: Sequence[_Head], room: SandboxRoom, most: float, now: float
    ) -> list[TrajectoryKey]:
        """Those first ones that have found no room for too long: they begin, and their resets get a node held."""
        chosen = []
        pairs = sorted(zip(candidates, heads, strict=True), key=lambda pair: (pair[0].priority, pair[1].since))
        for job, head in pairs:
            may = job.live < job.most and _live_on_cores(candidates) < most
            if may and now - head.since >= self._hold_after and room.hold_for(head.trajectory):
                job.live += 1
                chosen.append(next(job.waiting).key)
        return chosen
