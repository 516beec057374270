"""The closed loop of trajectories: a generation, its actions, the next generation, and at last the rewards.

Of a group of siblings, those that are not needed any more are redundant.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from callsheet.benchmarks.simulator.events import EventQueue
from callsheet.benchmarks.simulator.measurements import Recorder
from callsheet.benchmarks.simulator.policy import LiveRollout, Policy, Task
from callsheet.benchmarks.simulator.scenario import Generation, Rollout, ScenarioJob, Work


class Phase(Enum):
    """Where a trajectory is in its life."""

    ARRIVED = "arrived"
    RESETTING = "resetting"
    TURNS = "turns"
    REWARDS = "rewards"
    OVER = "over"


class Progress:
    """How far a trajectory has come.

    Attributes:
        index: Of the trajectory in the order of arrivals.
        turn: Index of the turn it is in.
        pending: Its tasks without an end.
        generating: Whether it waits for a generation.
    """

    __slots__ = ("generating", "index", "live", "pending", "stage", "turn")

    def __init__(self, live: LiveRollout, index: int) -> None:
        self.live = live
        self.index = index
        self.stage = Phase.ARRIVED
        self.turn = -1
        self.pending: list[Task] = []
        self.generating = False


class Generations(Protocol):
    """What serves generations."""

    def begin(self, progress: Progress, generation: Generation, done: Callable[[Progress], None]) -> None:
        """Starts one; calls `done` when it is over, unless it is aborted before."""

    def abort(self, progress: Progress) -> None:
        """Forgets the generation of a trajectory that is cancelled."""

    def forget(self, progress: Progress) -> None:
        """Is told that a trajectory is over: nothing of it is worth caching."""


class ClosedLoop:
    """Moves trajectories along.

    Args:
        events: Virtual time.
        generations: What serves generations.
        recorder: What is told about actions and turns.
        over: Called with a trajectory that has done everything.
    """

    def __init__(
        self, events: EventQueue, generations: Generations, recorder: Recorder, over: Callable[[Progress], None]
    ) -> None:
        self.policy: Policy  # set by the simulation, as a policy is made with its world
        self._events = events
        self._generations = generations
        self._recorder = recorder
        self._over = over
        self._sequence = 0

    def begin(self, progress: Progress) -> None:
        """Starts with the reset, or else with the first generation."""
        if progress.stage is not Phase.ARRIVED:
            return  # cancelled at the instant it was let in
        reset = progress.live.rollout.reset
        if reset is None:
            self._next_turn(progress)
        else:
            progress.stage = Phase.RESETTING
            self._submit(progress, (reset,))

    def ended(self, progress: Progress, task: Task) -> None:
        """Takes note of a task that is done, and goes on when all of its turn are."""
        progress.pending.remove(task)
        self._recorder.action_ended(progress.index, task)
        if not progress.pending:
            self._actions_over(progress)

    def stop(self, progress: Progress) -> list[Task]:
        """Ends a trajectory before its time; returns its tasks without an end."""
        if progress.generating:
            self._generations.abort(progress)
            progress.generating = False
        tasks = progress.pending
        progress.pending = []
        progress.stage = Phase.OVER
        self._generations.forget(progress)
        return tasks

    def _next_turn(self, progress: Progress) -> None:
        progress.stage = Phase.TURNS
        progress.turn += 1
        rollout = progress.live.rollout
        if progress.turn < len(rollout.turns):
            progress.generating = True
            self._generations.begin(progress, rollout.turns[progress.turn].generation, self._generated)
        elif rollout.rewards:
            progress.stage = Phase.REWARDS
            self._submit(progress, rollout.rewards)
        else:
            self._finish(progress)

    def _generated(self, progress: Progress) -> None:
        progress.generating = False
        actions = progress.live.rollout.turns[progress.turn].actions
        if actions:
            self._submit(progress, actions)
        else:
            self._turn_over(progress)

    def _submit(self, progress: Progress, works: Sequence[Work]) -> None:
        now = self._events.now
        tasks = []
        for work in works:
            self._sequence += 1
            tasks.append(Task(self._sequence, progress.live, work, now))
        progress.pending = list(tasks)
        self._recorder.outstanding.add(len(tasks))
        for task in tasks:
            if progress.stage is not Phase.OVER:
                self.policy.ready(task)

    def _actions_over(self, progress: Progress) -> None:
        if progress.stage is Phase.REWARDS:
            self._finish(progress)
        elif progress.stage is Phase.RESETTING:
            self._next_turn(progress)
        else:
            self._turn_over(progress)

    def _turn_over(self, progress: Progress) -> None:
        self._recorder.turn_ended()
        self._next_turn(progress)

    def _finish(self, progress: Progress) -> None:
        progress.stage = Phase.OVER
        self._generations.forget(progress)
        self._over(progress)


_Group = tuple[str, str]  # job, group


class Groups:
    """Counts who has finished, by group and by job."""

    def __init__(self, jobs: tuple[ScenarioJob, ...]) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._finished: Counter[_Group] = Counter()
        self._complete: defaultdict[str, set[str]] = defaultdict(set)
        self._members: defaultdict[_Group, list[Progress]] = defaultdict(list)

    def arrived(self, progress: Progress) -> None:
        """Takes note of a trajectory that arrived."""
        rollout = progress.live.rollout
        job = self._jobs[rollout.job]
        if job.quorum or job.groups_needed:
            self._members[rollout.job, rollout.group].append(progress)

    def redundant(self, rollout: Rollout) -> bool:
        """Whether a trajectory is not needed any more."""
        job, complete = self._jobs[rollout.job], self._complete[rollout.job]
        if job.groups_needed and len(complete) >= job.groups_needed:
            return True
        return bool(job.quorum) and rollout.group in complete

    def finished(self, progress: Progress) -> list[Progress]:
        """Takes note of a trajectory that finished; returns those that have become redundant by it."""
        rollout = progress.live.rollout
        job = self._jobs[rollout.job]
        if not job.quorum and not job.groups_needed:
            return []
        group = (rollout.job, rollout.group)
        self._finished[group] += 1
        if self._finished[group] < (job.quorum or job.group_size):
            return []
        complete = self._complete[rollout.job]
        complete.add(rollout.group)
        if job.groups_needed and len(complete) >= job.groups_needed:
            of_job = [members for (name, _), members in self._members.items() if name == rollout.job]
            return [member for members in of_job for member in members if member.live.ended_at < 0]
        return [member for member in self._members.pop(group) if member.live.ended_at < 0]
