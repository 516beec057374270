"""The loop around the core under virtual time: events in, a planning round, commands out.

It is the service's loop without its sockets and its journal: what the core wants written down is dropped, and what it
wants done once that is committed is done at once (the overhead model charges the commit).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from callsheet.benchmarks.simulator.policy import World
from callsheet.scheduler.core import commands
from callsheet.scheduler.core.events import AttemptEnded, AttemptFailed, Event, PlanReady, TimerFired
from callsheet.scheduler.core.invariants import check_invariants
from callsheet.scheduler.core.machine import handle, next_deadline
from callsheet.scheduler.core.plan import Plan
from callsheet.scheduler.core.state import CoreSettings, SchedulerState
from callsheet.scheduler.planner.protocol import Planner

# The core's times are seconds since the epoch, where 0 means never; virtual time begins here.
EPOCH = 1_000_000.0
# Between virtual time and the core's, the last digits get lost: a deadline must not be missed by that.
_ROUNDING_S = 1e-6
# The world's managers never die, and they end a command whose execution clock has run out: nobody watches over them.
TRUSTING = CoreSettings(manager_lease=1e12, timeout_grace=1e12, max_open_actions=10_000_000)


def encode_outcome(facts: commands.OutcomeFacts) -> bytes:
    """Nobody reads outcomes: the world knows them before."""
    return b""


class Planning(Planner, Protocol):
    """A planner that may want a round of its own accord."""

    @property
    def due(self) -> bool:
        """Whether a round should follow now, even if nothing happened."""


class CoreLoop:
    """Feeds the core and carries out its commands, all events of one instant at once.

    Attributes:
        state: The core.
        rounds: Planning rounds so far.
    """

    def __init__(
        self,
        world: World,
        planning: Planning,
        carriers: dict[type, Callable[[Any], None]],
        planned: Callable[[Plan], None],
        *,
        checked: bool = False,
    ) -> None:
        """Starts with an empty core.

        Args:
            world: Whose time it is, and who wakes us.
            planning: Proposes assignments.
            carriers: What to do about a command, by its class; other classes are dropped.
            planned: Told of each plan once the core has committed it.
            checked: Check the core's invariants after every step (for tests: it costs by the live actions).
        """
        self.state = SchedulerState(1, encode_outcome, TRUSTING)
        self.rounds = 0
        self._world = world
        self._planning = planning
        self._carriers = carriers
        self._planned = planned
        self._checked = checked
        self._pending: list[Event] = []
        self._step_at = -1.0
        self._deadline_armed = float("inf")

    @property
    def now(self) -> float:
        """The core's time."""
        return EPOCH + self._world.now

    def post(self, event: Event) -> None:
        """Queues an event for the step at the end of this instant."""
        self._pending.append(event)
        if self._step_at != self._world.now:
            self._step_at = self._world.now
            self._world.wake_at(self._step_at)

    def post_end(self, ended: AttemptEnded) -> None:
        """Queues the end of an attempt; if it is not retried, nor waited for, it goes with the next step."""
        trajectory = self.state.attempts[ended.token].action.trajectory
        in_line = trajectory is not None and len(trajectory.open_actions) > 1
        if in_line or self.state.wants_plan or isinstance(ended.result, AttemptFailed):
            self.post(ended)
        else:
            self.note(ended)

    def note(self, event: Event) -> None:
        """Queues an event that nothing waits for: it goes with the next step."""
        self._pending.append(event)

    def woken(self) -> None:
        """Handles what is pending or due."""
        deadline = next_deadline(self.state)
        due = deadline is not None and deadline <= self.now
        if not (due or self._step_at == self._world.now or self._planning.due):
            return
        self._step_at = -1.0
        if due:
            self._pending.append(TimerFired())
        self._step()
        self._arm_deadline()

    def _step(self) -> None:
        happened, self._pending = self._pending, []
        self._handle(happened)
        again = True
        while again and self.state.wants_plan:
            plan = self._planning.plan(self.state, self.now)
            self.rounds += 1
            again = plan.truncated
            if not plan.empty:
                self._handle([PlanReady(plan)])
                self._planned(plan)

    def _handle(self, happened: list[Event]) -> None:
        for command in handle(self.state, happened, self.now):
            carry_out = self._carriers.get(type(command))
            if carry_out is not None:
                carry_out(command)
        if self._checked:
            check_invariants(self.state)

    def _arm_deadline(self) -> None:
        deadline = next_deadline(self.state)
        if deadline is None:
            return
        if self._deadline_armed <= self.now:
            self._deadline_armed = float("inf")
        if deadline < self._deadline_armed:
            self._deadline_armed = deadline
            self._world.wake_at(deadline - EPOCH + _ROUNDING_S)
