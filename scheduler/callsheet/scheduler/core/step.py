"""One step, the same in every shell: what is pending is handled, then what waits is planned.

A shell says what happened and when, carries the commands out, and asks for another step while there is more to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from callsheet.scheduler.core.machine import advance, handle, next_deadline
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.commands import CoreCommand
from callsheet.scheduler.core.words.events import AttemptEnded, Event, PlanReady, TimerFired, body_bytes
from callsheet.scheduler.core.words.plan import Plan

# A step of as many takes some 10 ms, in which sockets wait; fewer of them make more messages for the same actions.
MAX_EVENTS_PER_STEP = 256
# A round that has something for pinned actions, or admits trajectories, leaves all others to the next one.
MAX_ROUNDS_PER_STEP = 4
MAX_PARTS_PER_STEP = 256
# Where somebody measures, events are left to the next step after so long, and further rounds are.
STEP_S = 0.015

PlanRound = Callable[[SchedulerState, float], Plan]
"""Proposes a plan for a state at a time, and changes nothing; see `planner.protocol.Planner`."""

EndsListener = Callable[[SchedulerState, Sequence[AttemptEnded]], None]
"""Looks at ends of attempts before the core handles them and forgets the attempts."""


@dataclass(slots=True)
class Step:
    """Result of a step.

    Attributes:
        commands: Commands to carry out, in this order.
        plans: Plans that the core was given, in order.
    """

    commands: list[CoreCommand]
    plans: list[Plan]


class Stepper:
    """Events on their way into a core, and its steps. It reads no clock and does no I/O.

    Attributes:
        state: The core.
        pending: Events that wait for a step.
        pending_bytes: What `body_bytes` says of them.
        rounds: Planning rounds so far.
    """

    def __init__(
        self,
        state: SchedulerState,
        plan: PlanRound,
        on_ends: EndsListener | None = None,
        stopwatch: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Begins with nothing to do.

        Args:
            state: The core.
            plan: What plans a round.
            on_ends: Who looks at ends of attempts, if anybody does.
            stopwatch: Seconds, to end steps that take long; without, the numbers alone bound a step.
        """
        self.state = state
        self.pending: list[Event] = []
        self.pending_bytes = 0
        self.rounds = 0
        self._plan = plan
        self._on_ends = on_ends
        self._stopwatch = stopwatch
        # So many of the first that are pending were looked at and came back.
        self._looked_at = 0
        self._replan = False

    def post(self, happened: Sequence[Event]) -> None:
        """Adds events that wait for a step."""
        self.pending += happened
        self.pending_bytes += body_bytes(happened)

    @property
    def has_more(self) -> bool:
        """Returns whether another step should follow at once."""
        return bool(self.pending) or self._replan or bool(self.state.chores)

    def step(self, now: float, *, timers_from: float = 0.0) -> Step:
        """Handles what is pending and due, in order and up to a bound, and plans.

        Planning goes round by round: in a steady stream of pinned actions every step would begin with theirs and end
        there. What is left after the last round is planned in the next step.

        Args:
            now: Seconds since the epoch; never smaller than in an earlier step.
            timers_from: Deadlines are not looked at before then, in seconds since the epoch.
        """
        began = self._stopwatch()

        def is_over() -> bool:
            return self._stopwatch() - began >= STEP_S

        self._handle(self._take(), now, is_over, timers_from)
        done = Step(self.state.take_commands(), [])
        self._replan = False
        for _ in range(MAX_ROUNDS_PER_STEP):
            if not self.state.wants_plan:
                self._replan = False
                break
            self._plan_once(done, now)
            if not self._replan or is_over():
                break
        return done

    def _handle(self, batch: list[Event], now: float, is_over: Callable[[], bool], timers_from: float) -> None:
        """Handles events; those that there is no time for come back."""
        if self._on_ends is not None:
            ends = [event for event in batch[self._looked_at :] if type(event) is AttemptEnded]
            if ends:
                self._on_ends(self.state, ends)
        deadline = next_deadline(self.state)
        due = [TimerFired()] if deadline is not None and max(deadline, timers_from) <= now else []
        left = batch[advance(self.state, [*batch, *due], now, MAX_PARTS_PER_STEP, is_over) :]
        self._looked_at = len(left)
        if left:
            self.pending[:0] = left
            self.pending_bytes += body_bytes(left)

    def _take(self) -> list[Event]:
        if len(self.pending) <= MAX_EVENTS_PER_STEP:
            batch, self.pending, self.pending_bytes = self.pending, [], 0
            return batch
        batch = self.pending[:MAX_EVENTS_PER_STEP]
        del self.pending[:MAX_EVENTS_PER_STEP]
        self.pending_bytes -= body_bytes(batch)
        return batch

    def _plan_once(self, done: Step, now: float) -> None:
        plan = self._plan(self.state, now)
        self.rounds += 1
        self._replan = plan.truncated
        if not plan.empty:
            done.commands += handle(self.state, [PlanReady(plan)], now)
            done.plans.append(plan)
