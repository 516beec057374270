"""The solver of a planning conversation in virtual time, and the planner that a simulation's settings choose.

The solver runs in its deterministic time, so that equal seeds give equal plans; in virtual time an answer always takes
as long as it may.
"""

from __future__ import annotations

import math

from callsheet.benchmarks.simulator.policy import World
from callsheet.benchmarks.simulator.shell.settings import CallsheetSettings
from callsheet.scheduler.core.plan import Plan
from callsheet.scheduler.core.state import SchedulerState
from callsheet.scheduler.planner.conversation import SolverConversation
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.protocol import Planner
from callsheet.scheduler.planner.round.snapshot import Snapshot
from callsheet.scheduler.planner.solvers.cp_sat import Budget
from callsheet.scheduler.service.settings import PlannerChoice

GREEDY_ALONE = Budget(seconds=0.0)


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
        ageing=settings.ageing,
        admission=settings.admission,
        most_load=settings.most_load,
    )
    planner = ElasticPlanner(elastic, predictors)
    if not settings.solver:
        return planner
    conversation = SolverConversation(planner, plain, _round_failed)
    return VirtualSolver(conversation, world, settings.overheads.solve_s, settings.overheads.pause_s)


def _round_failed(state: SchedulerState, error: Exception) -> None:
    """A planner that fails must not go unseen in a simulation."""
    raise error
