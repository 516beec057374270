"""The solver of a planning conversation in a worker thread, so that the event loop goes on meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import anyio.to_thread
import structlog
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.planner.conversation import PAUSE_S, SolverConversation
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.engines.knowledge import EngineKnowledge
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.protocol import ReviewingPlanner
from callsheet.scheduler.planner.round.review import Review
from callsheet.scheduler.planner.round.snapshot import Snapshot
from callsheet.scheduler.service.settings import PlannerChoice

IDLE_WAIT = 3600.0
# Rounds that took longer are worth a line in the log.
SLOW_ROUND_S = 0.1
# A solver has a budget of milliseconds; one that takes this long is given up.
SOLVER_TIMEOUT_S = 30.0


class SolverPlanning:
    """A conversation whose solver works in a worker thread. All but the solving happens on the event loop."""

    def __init__(
        self,
        planner: ElasticPlanner,
        fallback: ReviewingPlanner,
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
        self.conversation = SolverConversation(planner, fallback, self._round_failed)
        self._pause_s = pause_s
        self._solver_timeout_s = solver_timeout_s
        self._asked = anyio.Event()
        self._log = structlog.get_logger(__name__).bind()

    def attach(self, state: SchedulerState) -> None:
        """See `SolverConversation.attach`."""
        self.conversation.attach(state)

    def plan(self, state: SchedulerState, now: float) -> Plan:
        """See `SolverConversation.plan`."""
        plan = self.conversation.plan(state, now)
        if self.conversation.asks:
            self._asked.set()
        return plan

    def review(self, state: SchedulerState, now: float) -> Review:
        """See `SolverConversation.review`. It solves on the loop, within the round's budget."""
        return self.conversation.review(state, now)

    async def run(self, wake: Callable[[], None]) -> None:
        """Solves what is asked, one question after another, until cancelled; `wake` asks for another round."""
        while True:
            with anyio.move_on_after(IDLE_WAIT):
                await self._asked.wait()
            self._asked = anyio.Event()
            question = self.conversation.take_question()
            if question is None:
                continue
            await self._solve(question)
            wake()
            await anyio.sleep(self._pause_s)
            self.conversation.resume()
            wake()

    async def _solve(self, question: Snapshot) -> None:
        began = anyio.current_time()
        try:
            with anyio.fail_after(self._solver_timeout_s):
                solution = await anyio.to_thread.run_sync(self.conversation.solve, question, abandon_on_cancel=True)
        except Exception:
            self._log.exception("solver_failed", classes=len(question.instance.classes))
            self.conversation.failed()
            return
        seconds = anyio.current_time() - began
        if seconds > SLOW_ROUND_S:
            self._log.warning("slow_round", seconds=round(seconds, 3), status=solution.status.value)
        self.conversation.answered(question, solution)

    def _round_failed(self, state: SchedulerState, error: Exception) -> None:
        self._log.error("planner_failed", ready=len(state.ready), exc_info=error)


def make_planning(
    choice: PlannerChoice, hold_after: float, predictors: Predictors, engines: EngineKnowledge
) -> SolverPlanning | FirstComePlanner:
    """The planner that a scheduler was started with."""
    plain = FirstComePlanner(hold_after=hold_after)
    if choice is PlannerChoice.FIRST_COME:
        return plain
    planner = ElasticPlanner(ElasticSettings(hold_after=hold_after), predictors, time.perf_counter, engines)
    return SolverPlanning(planner, plain)
