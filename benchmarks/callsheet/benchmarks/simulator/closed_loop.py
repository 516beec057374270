"""The closed loop of trajectories: a generation, its actions, the next generation, and at last the rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from callsheet.benchmarks.simulator.events import EventQueue
from callsheet.benchmarks.simulator.measurements import Recorder
from callsheet.benchmarks.simulator.policy import LiveRollout, Policy, Task
from callsheet.benchmarks.simulator.scenario import Work


class Progress:
    """How far a trajectory has come.

    Attributes:
        index: Of the trajectory in the order of arrivals.
        turn: Index of the turn it is in; -1 before the first, their number after the last.
        pending: Its tasks without an end.
    """

    __slots__ = ("index", "live", "pending", "turn")

    def __init__(self, live: LiveRollout, index: int) -> None:
        self.live = live
        self.index = index
        self.turn = -1
        self.pending: list[Task] = []


class ClosedLoop:
    """Moves trajectories along.

    Args:
        events: Virtual time.
        recorder: What is told about actions.
        over: Called with a trajectory that has done everything.
    """

    def __init__(self, events: EventQueue, recorder: Recorder, over: Callable[[Progress], None]) -> None:
        self.policy: Policy  # set by the simulation, as a policy is made with its world
        self._events = events
        self._recorder = recorder
        self._over = over
        self._sequence = 0

    def begin(self, progress: Progress) -> None:
        """Starts with the reset, or else with the first generation."""
        reset = progress.live.rollout.reset
        if reset is None:
            self._next_turn(progress)
        else:
            self._submit(progress, (reset,))

    def ended(self, progress: Progress, task: Task) -> None:
        """Takes note of a task that is done, and goes on when all of its turn are."""
        progress.pending.remove(task)
        self._recorder.action_ended(progress.index, task)
        if progress.pending:
            return
        if progress.turn < len(progress.live.rollout.turns):
            self._next_turn(progress)
        else:
            self._over(progress)

    def _next_turn(self, progress: Progress) -> None:
        progress.turn += 1
        rollout = progress.live.rollout
        if progress.turn < len(rollout.turns):
            generation = rollout.turns[progress.turn].generation
            self._events.at(self._events.now + generation.seconds, self._generated, progress)
        elif rollout.rewards:
            self._submit(progress, rollout.rewards)
        else:
            self._over(progress)

    def _generated(self, progress: Progress) -> None:
        actions = progress.live.rollout.turns[progress.turn].actions
        if actions:
            self._submit(progress, actions)
        else:
            self._next_turn(progress)

    def _submit(self, progress: Progress, works: Sequence[Work]) -> None:
        now = self._events.now
        tasks = []
        for work in works:
            self._sequence += 1
            tasks.append(Task(self._sequence, progress.live, work, now))
        progress.pending = list(tasks)
        for task in tasks:
            self.policy.ready(task)
