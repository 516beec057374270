"""How many trajectories live at once, by the memory and the cores that they keep busy between their actions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from math import exp
from typing import NamedTuple

import numpy as np
from callsheet.scheduler.core.jobs.pacing import may_begin
from callsheet.scheduler.core.state.entities import Action, Job, Trajectory
from callsheet.scheduler.core.state.scheduler_state import ClassKey, ReadyQueue, SchedulerState
from callsheet.scheduler.core.words.model import ActionKind, Demand, TrajectoryKey
from callsheet.scheduler.core.work.trajectories import first_actions
from callsheet.scheduler.planner.fleet.offers import fitting, nearest_node, need_of, place_of
from callsheet.scheduler.planner.fleet.pools import Fleet
from callsheet.scheduler.planner.question.instance import Integers, OptionBlock

# How busy the trajectories that live keep their cores, by how often their commands come.

# Seconds over which the rate is averaged, and the least time between two looks.
MEMORY_S = 20.0
LEAST_STEP_S = 0.05


@dataclass(frozen=True, slots=True)
class CpuLoad:
    """How busy the trajectories that live keep their cores.

    Attributes:
        live: How many live, of jobs whose trajectories have sandboxes.
        cores: Cores of the nodes that have sandboxes.
        idle_cores: Those of them that nothing uses now.
        work_s: Core-seconds of a command.
        alone_s: Seconds of a command that has the cores it can use.
        think_s: Seconds from the end of a command to the next one of its trajectory.
    """

    live: int
    cores: float
    idle_cores: float
    work_s: float
    alone_s: float
    think_s: float

    def most_live(self, load: float) -> float:
        """Trajectories at which commands would use so many times the cores, were none to wait for any other.

        An estimate errs while trajectories have hardly begun; that cores idle is a fact, and makes room for as many.
        """
        estimated = load * self.cores * (self.alone_s + self.think_s) / max(self.work_s, 1e-9)
        return max(estimated, self.live + self.idle_cores)


class CommandRate:
    """Weight that becomes ready for cores each second, as an exponential average.

    Attributes:
        rate: The average; 0 until something came.
    """

    def __init__(self) -> None:
        self.rate = 0.0
        self._seen = 0.0
        self._since: float | None = None

    def observe(self, state: SchedulerState, now: float) -> None:
        """Takes a look at the ready queue's counter; cheap, for every round."""
        total = state.ready.arrived_for_cores
        if self._since is None:
            self._since, self._seen = now, total
            return
        step = now - self._since
        if step < LEAST_STEP_S:
            return
        recent = (total - self._seen) / step
        kept = exp(-step / MEMORY_S) if self.rate else 0.0
        self.rate = kept * self.rate + (1.0 - kept) * recent
        self._since, self._seen = now, total


def thinking(state: SchedulerState, generating: int) -> float:
    """Live trajectories that have nothing waiting or running but a generation.

    Args:
        state: The core.
        generating: Generations that run as actions of the core; others it cannot see.
    """
    live = sum(job.live_trajectories for job in state.jobs.values())
    return float(max(live - len(state.attempts) - len(state.ready), 0) + generating)


# Room for what sandboxes hold between actions, booked trajectory by trajectory while a round lets some begin.

Needs = list[tuple[int, Integers]]
"""(pool, what a sandbox holds of each column there), for each pool that can have it."""


class SandboxRoom:
    """See the module's docstring."""

    def __init__(self, state: SchedulerState, fleet: Fleet, block_of: Callable[[ClassKey], OptionBlock]) -> None:
        """Starts from what is free now, less what resets that are ready are going to take.

        Args:
            state: The core.
            fleet: Refreshed for it.
            block_of: The options of a class.
        """
        self._pools = fleet.pools
        self._free = [pool.free.copy() for pool in fleet.pools]
        self._block_of = block_of
        self._needs: dict[tuple[str, Demand, str, str], Needs] = {}
        self._held: set[int] = set()
        resets = [(key, ready.count) for key, ready in state.ready.classes.items() if key.kind is ActionKind.ENV_RESET]
        without_room = [key for key, count in resets if self._take(key, count) < count]
        for key in without_room:
            self._hold(self._needs_of(key))

    def hold_for(self, trajectory: Trajectory) -> bool:
        """Keeps a node for a trajectory whose sandbox fits nowhere, and says whether that was done.

        The node that lacks the least keeps what it has of what the sandbox holds, or smaller ones of others would take
        whatever comes free. There is one such sandbox in a pool at a time.
        """
        reset = reset_of(trajectory)
        return reset is not None and self._hold(self._needs_of(ReadyQueue.key_of(reset)))

    def _hold(self, needs: Needs) -> bool:
        pools = {pool for pool, _ in needs}
        if not needs or not pools.isdisjoint(self._held) or any(self._fits(pool, need).any() for pool, need in needs):
            return False
        pool, node, need = nearest_node(self._pools, self._free, needs)
        self._free[pool][node, need > 0] = 0
        self._held |= pools
        return True

    def book(self, trajectory: Trajectory) -> bool:
        """Books a trajectory's sandbox; False if there is no room. One without a sandbox needs none."""
        reset = reset_of(trajectory)
        return reset is None or self._take(ReadyQueue.key_of(reset), 1) == 1

    def _take(self, key: ClassKey, count: int) -> int:
        """Books sandboxes on the nodes with the most room, as many as fit, and returns how many."""
        needs = self._needs_of(key)
        if not needs:
            # What nothing can serve now must not wait here, where nobody says so.
            return count
        for taken in range(count):
            room = [(self._fits(pool, need), pool, need) for pool, need in needs]
            fits, pool, need = max(room, key=lambda each: int(each[0].max(initial=0)))
            if not fits.any():
                return taken
            self._free[pool][int(np.argmax(fits))] -= need
        return count

    def _fits(self, pool: int, need: Integers) -> Integers:
        return fitting(self._free[pool], need)

    def _needs_of(self, key: ClassKey) -> Needs:
        alike = (key.service, key.demand, key.job, key.label)
        needs = self._needs.get(alike)
        if needs is None:
            needs = self._needs[alike] = self._held_needs(key)
        return needs

    def _held_needs(self, key: ClassKey) -> Needs:
        held = {entry.resource for entry in key.demand.entries if entry.held_by_trajectory}
        found: dict[int, Integers] = {}
        for option in self._block_of(key).options:
            place = place_of(option)
            pool = self._pools[place.pool]
            need = need_of(option, pool)
            need[[name not in held for name in pool.columns]] = 0
            found[place.pool] = need
        return list(found.items())


def reset_of(trajectory: Trajectory) -> Action | None:
    """What makes a waiting trajectory's sandbox; None if it begins without one."""
    actions = first_actions(trajectory)
    return next((action for action in actions if action.request.kind is ActionKind.ENV_RESET), None)


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
    """Which trajectories may begin.

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
    """What was seen of a job when its present version was published."""

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
