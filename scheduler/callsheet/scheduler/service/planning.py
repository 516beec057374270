"""Planning beside the event loop: what needs no solver is decided at once, the rest in a worker thread.

One question is solved at a time. Meanwhile the loop goes on, and so does planning of all that does not compete with
what the question is about. The answer is a proposal: it is placed on the fleet as it is when it comes, and the core
checks it once more.

A round must not end the service: the same state would end it again after each restart. Where the planner fails, or its
solver does not come back, that is logged and the plain planner plans the round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import anyio
import anyio.to_thread
import structlog
from callsheet.scheduler.core.plan import Plan
from callsheet.scheduler.core.state import SchedulerState
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.protocol import Planner
from callsheet.scheduler.planner.round.snapshot import Snapshot
from callsheet.scheduler.planner.solvers.solve import Solution
from callsheet.scheduler.service.settings import PlannerChoice

# Between an answer and the next question, so that events gather and a saturated fleet does not keep a core busy.
PAUSE_S = 0.005
IDLE_WAIT = 3600.0
# Rounds that took longer are worth a line in the log.
SLOW_ROUND_S = 0.1
# A solver has a budget of milliseconds; one that takes this long is given up.
SOLVER_TIMEOUT_S = 30.0


class PlanningTask(Planner, Protocol):
    """A planner of the service, which may need a task of its own."""

    def attach(self, state: SchedulerState) -> None:
        """Prepares a core that is still empty."""

    async def run(self, wake: Callable[[], None]) -> None:
        """Runs until cancelled; `wake` asks the loop for another round."""


class DirectPlanning:
    """A planner that decides everything at once, on the loop."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner

    def attach(self, state: SchedulerState) -> None:
        """Needs nothing."""

    def plan(self, state: SchedulerState, now: float) -> Plan:
        """Proposes assignments; see `Planner.plan`."""
        return self._planner.plan(state, now)

    async def run(self, wake: Callable[[], None]) -> None:
        """Has nothing to do."""


class SolverPlanning:
    """The elastic planner with its solver in a worker thread. All but the solving happens on the event loop."""

    def __init__(
        self,
        planner: ElasticPlanner,
        fallback: Planner,
        *,
        pause_s: float = PAUSE_S,
        solver_timeout_s: float = SOLVER_TIMEOUT_S,
    ) -> None:
        """Starts with no question.

        Args:
            planner: What plans.
            fallback: What plans a round in which it fails.
            pause_s: Between an answer and the next question.
            solver_timeout_s: After which an answer is not waited for any longer.
        """
        self._planner = planner
        self._fallback = fallback
        self._pause_s = pause_s
        self._solver_timeout_s = solver_timeout_s
        self._asked = anyio.Event()
        self._question: Snapshot | None = None
        self._solution: Solution | None = None
        self._pausing = False
        self._solver_failed = False
        self._log = structlog.get_logger(__name__).bind()

    def attach(self, state: SchedulerState) -> None:
        """Lets its ready queue tell sizes from the first action on."""
        self._planner.attach(state)

    def plan(self, state: SchedulerState, now: float) -> Plan:
        """Proposes what is decided by now; see `Planner.plan`. Does not fail as long as the fallback does not."""
        try:
            if not self._solver_failed:
                return self._plan(state, now)
        except Exception:
            self._log.exception("planner_failed", ready=len(state.ready))
        self._question = self._solution = None
        self._solver_failed = False
        return self._fallback.plan(state, now)

    def _plan(self, state: SchedulerState, now: float) -> Plan:
        if self._question is not None and self._solution is not None:
            plan = self._planner.finish(state, now, self._question, self._solution)
            self._question = self._solution = None
            # What came meanwhile has not been looked at.
            plan.truncated = True
            return plan
        free = self._question is None and not self._pausing
        proposal = self._planner.propose(state, now, solving=self._question, ask=free)
        if proposal.question is not None:
            self._question = proposal.question
            self._asked.set()
        return proposal.plan

    async def run(self, wake: Callable[[], None]) -> None:
        """Solves what is asked, one question after another."""
        while True:
            with anyio.move_on_after(IDLE_WAIT):
                await self._asked.wait()
            question = self._question
            if question is None:
                continue
            self._asked = anyio.Event()
            await self._solve(question)
            self._pausing = True
            wake()
            await anyio.sleep(self._pause_s)
            self._pausing = False
            wake()

    async def _solve(self, question: Snapshot) -> None:
        """Keeps the answer for the next round, or that there is none."""
        began = anyio.current_time()
        try:
            with anyio.fail_after(self._solver_timeout_s):
                solution = await anyio.to_thread.run_sync(
                    self._planner.solve, question.instance, abandon_on_cancel=True
                )
        except Exception:
            self._log.exception("solver_failed", classes=len(question.instance.classes))
            self._solver_failed = True
            return
        seconds = anyio.current_time() - began
        if seconds > SLOW_ROUND_S:
            self._log.warning("slow_round", seconds=round(seconds, 3), status=solution.status.value)
        # A failed round may have dropped the question meanwhile.
        if self._question is question:
            self._solution = solution


def make_planning(choice: PlannerChoice, hold_after: float, predictors: Predictors) -> PlanningTask:
    """The planner that a scheduler was started with."""
    plain = FirstComePlanner(hold_after=hold_after)
    if choice is PlannerChoice.FIRST_COME:
        return DirectPlanning(plain)
    planner = ElasticPlanner(ElasticSettings(hold_after=hold_after), predictors, time.perf_counter)
    return SolverPlanning(planner, plain)
