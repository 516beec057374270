"""The loop around the core under virtual time: the service's steps, as many as an instant takes.

It is the service's loop without its sockets and its journal: what the core wants written down is dropped, and what it
wants done once that is committed is done at once (the overhead model charges the commit).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from callsheet.benchmarks.simulator.policy import World
from callsheet.benchmarks.simulator.shell.settings import CallsheetSettings
from callsheet.scheduler.core.machine import next_deadline
from callsheet.scheduler.core.state.scheduler_state import CoreSettings, SchedulerState
from callsheet.scheduler.core.step import EndsListener, Stepper
from callsheet.scheduler.core.words import commands
from callsheet.scheduler.core.words.events import Event
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.planner.conversation import SolverConversation
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.protocol import Planner
from callsheet.scheduler.planner.round.snapshot import Snapshot
from callsheet.scheduler.planner.solvers.cp_sat import Budget
from callsheet.scheduler.service.settings import PlannerChoice

GREEDY_ALONE = Budget(seconds=0.0)

# The core's times are seconds since the epoch, where 0 means never; virtual time begins here.
EPOCH = 1_000_000.0
# Between virtual time and the core's, the last digits get lost: a deadline must not be missed by that.
_ROUNDING_S = 1e-6
# The world's managers never die, and they end a command whose execution clock has run out: nobody watches over them.
TRUSTING = CoreSettings(
    manager_lease=1e12, timeout_grace=1e12, max_open_actions=10_000_000, max_job_open_actions=10_000_000
)


class VirtualSolver:
    """A conversation whose solver takes virtual time.

    Args:
        conversation: What plans.
        world: Wakes the loop when an answer has come, or the pause after one is over.
        solve_s: Virtual seconds from a question to its answer.
        pause_s: Virtual seconds from an answer to the next question, so that events gather.
    """

    def __init__(self, conversation: SolverConversation, world: World, solve_s: float, pause_s: float) -> None:
        self.conversation = conversation
        self._world = world
        self._solve_s = solve_s
        self._pause_s = pause_s
        self._question: Snapshot | None = None
        self._due_at = math.inf

    def plan(self, state: SchedulerState, now: float) -> Plan:
        """See `SolverConversation.plan`."""
        plan = self.conversation.plan(state, now)
        question = self.conversation.take_question()
        if question is not None:
            self._question = question
            self._due_after(self._solve_s)
        return plan

    def woken(self) -> bool:
        """Answers, or ends the pause, if that is due; whether it was, so that a round should follow."""
        if self._world.now < self._due_at:
            return False
        self._due_at = math.inf
        question, self._question = self._question, None
        if question is None:
            self.conversation.resume()
        else:
            self.conversation.answered(question, self.conversation.solve(question))
            self._due_after(self._pause_s)
        return True

    def _due_after(self, seconds: float) -> None:
        self._due_at = self._world.now + seconds
        self._world.wake_at(self._due_at)


def make_planner(settings: CallsheetSettings, predictors: Predictors | None, world: World) -> Planner:
    """The planner that the settings choose."""
    plain = FirstComePlanner()
    if settings.planner is PlannerChoice.FIRST_COME:
        return plain
    elastic = ElasticSettings(
        budget=Budget(deterministic=True) if settings.solver else GREEDY_ALONE,
        seed=world.scenario.seed,
        admission=settings.admission,
    )
    planner = ElasticPlanner(elastic, predictors)
    if not settings.solver:
        return planner
    conversation = SolverConversation(planner, plain, _round_failed)
    return VirtualSolver(conversation, world, settings.overheads.solve_s, settings.overheads.pause_s)


def _round_failed(state: SchedulerState, error: Exception) -> None:
    """A planner that fails must not go unseen in a simulation."""
    raise error


def encode_outcome(facts: commands.OutcomeFacts) -> bytes:
    """Nobody reads outcomes: the world knows them before."""
    return b""


class VirtualCoreLoop:
    """Feeds the core and carries out its commands, all events of one instant at once.

    Attributes:
        state: The core.
    """

    def __init__(
        self,
        world: World,
        planner: Planner,
        carriers: dict[type, Callable[[Any], None]],
        *,
        planned: Callable[[Plan], None],
        on_ends: EndsListener,
    ) -> None:
        """Starts with an empty core.

        Args:
            world: Whose time it is, and who wakes us.
            planner: Proposes assignments.
            carriers: What to do about a command, by its class; other classes are dropped.
            planned: Told of each plan once the core has committed it.
            on_ends: Looks at ends of attempts before the core handles them.
        """
        self.state = SchedulerState(1, encode_outcome, TRUSTING)
        self._world = world
        self._solver = planner if isinstance(planner, VirtualSolver) else None
        self.stepper = Stepper(self.state, planner.plan, on_ends)
        self._carriers = carriers
        self._planned = planned
        self._step_at = -1.0
        self._deadline_armed = math.inf

    @property
    def rounds(self) -> int:
        """Planning rounds so far."""
        return self.stepper.rounds

    @property
    def now(self) -> float:
        """The core's time."""
        return EPOCH + self._world.now

    def post(self, event: Event) -> None:
        """Queues an event for the step at the end of this instant."""
        self.stepper.post([event])
        if self._step_at != self._world.now:
            self._step_at = self._world.now
            self._world.wake_at(self._step_at)

    def woken(self) -> None:
        """Handles what is pending or due, step by step."""
        now = self.now
        answered = self._solver is not None and self._solver.woken()
        deadline = next_deadline(self.state)
        if not (answered or self.stepper.has_more or (deadline is not None and deadline <= now)):
            return
        self._step_at = -1.0
        self._step(now)
        while self.stepper.has_more:
            self._step(now)
        self._arm_deadline(now)

    def _step(self, now: float) -> None:
        done = self.stepper.step(now)
        for command in done.commands:
            carry_out = self._carriers.get(type(command))
            if carry_out is not None:
                carry_out(command)
        for plan in done.plans:
            self._planned(plan)

    def _arm_deadline(self, now: float) -> None:
        deadline = next_deadline(self.state)
        if deadline is None:
            return
        if self._deadline_armed <= now:
            self._deadline_armed = math.inf
        if deadline < self._deadline_armed:
            self._deadline_armed = deadline
            self._world.wake_at(deadline - EPOCH + _ROUNDING_S)
