"""Planning in virtual time: what needs no solver is decided at once, and an answer of the solver takes its time.

This is how the service plans (`scheduler.service.planning`): one question is solved at a time, what does not compete
with it goes on meanwhile, and the answer is placed on the fleet as it is when it comes. The solver itself runs in its
deterministic time, so that equal seeds give equal plans; in virtual time an answer always takes as long as it may.
"""

from __future__ import annotations

from callsheet.benchmarks.simulator.policy import World
from callsheet.benchmarks.simulator.shell.settings import CallsheetSettings, PlannerChoice
from callsheet.scheduler.core.plan import Plan
from callsheet.scheduler.core.state import SchedulerState
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.protocol import Planner
from callsheet.scheduler.planner.round.snapshot import Snapshot
from callsheet.scheduler.planner.solvers.cp_sat import Budget

GREEDY_ALONE = Budget(seconds=0.0)


class SolverPlanning:
    """The elastic planner whose solver works beside the loop.

    Args:
        planner: Decides.
        world: Wakes the loop when an answer has come, or the pause after one is over.
        solve_s: Virtual seconds from a question to its answer.
        pause_s: Virtual seconds from an answer to the next question, so that events gather.
    """

    def __init__(self, planner: ElasticPlanner, world: World, solve_s: float, pause_s: float) -> None:
        self._planner = planner
        self._world = world
        self._solve_s = solve_s
        self._pause_s = pause_s
        self._question: Snapshot | None = None
        self._ready_at = 0.0

    @property
    def due(self) -> bool:
        """Whether an answer has come, or the pause after one is just over, so that a round should follow."""
        return self._ready_at == self._world.now

    def plan(self, state: SchedulerState, now: float) -> Plan:
        """Proposes what is decided by now; see `Planner.plan`."""
        if self._question is not None and self.due:
            return self._answer(state, now, self._question)
        free = self._question is None and self._world.now >= self._ready_at
        proposal = self._planner.propose(state, now, solving=self._question, ask=free)
        if proposal.question is not None:
            self._question = proposal.question
            self._wake_after(self._solve_s)
        return proposal.plan

    def _answer(self, state: SchedulerState, now: float, question: Snapshot) -> Plan:
        plan = self._planner.finish(state, now, question, self._planner.solve(question.instance))
        self._question = None
        self._wake_after(self._pause_s)
        # What came meanwhile has not been looked at.
        plan.truncated = True
        return plan

    def _wake_after(self, seconds: float) -> None:
        self._ready_at = self._world.now + seconds
        self._world.wake_at(self._ready_at)


class DirectPlanning:
    """A planner that decides everything at once."""

    due = False

    def __init__(self, planner: Planner) -> None:
        self._planner = planner

    def plan(self, state: SchedulerState, now: float) -> Plan:
        """Proposes assignments; see `Planner.plan`."""
        return self._planner.plan(state, now)


def make_planning(
    settings: CallsheetSettings, predictors: Predictors | None, world: World
) -> SolverPlanning | DirectPlanning:
    """The planning that the settings choose."""
    if settings.planner is PlannerChoice.FIRST_COME:
        return DirectPlanning(FirstComePlanner())
    greedy = settings.planner is PlannerChoice.GREEDY
    elastic = ElasticSettings(
        budget=GREEDY_ALONE if greedy else Budget(deterministic=True),
        seed=world.scenario.seed,
        ageing=settings.ageing,
        expected_arrivals=settings.expected_arrivals,
        admission=settings.admission,
        most_load=settings.most_load,
    )
    planner = ElasticPlanner(elastic, predictors)
    if greedy:
        return DirectPlanning(planner)
    return SolverPlanning(planner, world, settings.overheads.solve_s, settings.overheads.pause_s)
