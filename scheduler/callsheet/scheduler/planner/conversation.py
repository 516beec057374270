"""Planning while a solver works: what needs none is decided at once, the rest becomes a question to it.

One question is solved at a time. What does not compete with it is planned meanwhile. The answer is a proposal: it is
placed on the fleet as it is when it comes, and the core checks it once more. Who solves, where, and how long that may
take, is the shell's part: it takes a question, and says that it was answered, that it failed, and that a pause is over.

A round must not end a scheduler: the same state would end it again after each restart. Where the planner or its solver
fails, the plain planner plans the round.
"""

from __future__ import annotations

from collections.abc import Callable

from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.planner.elastic import ElasticPlanner
from callsheet.scheduler.planner.protocol import ReviewingPlanner
from callsheet.scheduler.planner.round.review import Review
from callsheet.scheduler.planner.round.snapshot import Snapshot
from callsheet.scheduler.planner.solvers.solve import Solution

# Between an answer and the next question, so that events gather and a saturated fleet does not keep a core busy.
PAUSE_S = 0.005


class SolverConversation:
    """An elastic planner, what its solver is asked, and what it answered. It waits for nothing and does no I/O."""

    def __init__(
        self,
        planner: ElasticPlanner,
        fallback: ReviewingPlanner,
        on_failure: Callable[[SchedulerState, Exception], None],
    ) -> None:
        """Starts with no question.

        Args:
            planner: What plans.
            fallback: What plans a round in which it fails.
            on_failure: Told of a round in which it failed, and why. Where it raises, nothing is planned.
        """
        self._planner = planner
        self._fallback = fallback
        self._on_failure = on_failure
        self._question: Snapshot | None = None
        self._untaken = False
        self._solution: Solution | None = None
        self._pausing = False
        self._solver_failed = False

    def attach(self, state: SchedulerState) -> None:
        """Lets the ready queue of a core that is still empty tell sizes from the first action on."""
        self._planner.attach(state)

    def plan(self, state: SchedulerState, now: float) -> Plan:
        """Proposes what is decided by now; see `Planner.plan`. Does not fail as long as the fallback does not."""
        try:
            if not self._solver_failed:
                return self._plan(state, now)
        except Exception as error:
            self._on_failure(state, error)
        self._question = self._solution = None
        self._solver_failed = self._untaken = False
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
            self._question, self._untaken = proposal.question, True
        return proposal.plan

    def review(self, state: SchedulerState, now: float) -> Review:
        """Returns the next round as it would be; see `Reviewer.review`. It solves at once and changes nothing."""
        try:
            return self._planner.review(state, now)
        except Exception as error:
            self._on_failure(state, error)
        return self._fallback.review(state, now)

    @property
    def asks(self) -> bool:
        """Returns whether there is a question to take."""
        return self._untaken

    def take_question(self) -> Snapshot | None:
        """Returns the next question to solve; None if there is none, or if it was taken already."""
        taken, self._untaken = self._untaken, False
        return self._question if taken else None

    def solve(self, question: Snapshot) -> Solution:
        """Answers a question. Reads nothing that changes: other threads may do it."""
        return self._planner.solve(question.instance)

    def answered(self, question: Snapshot, solution: Solution) -> None:
        """A question that was taken has its answer; a round should follow. The pause begins."""
        # A failed round may have dropped the question meanwhile.
        if self._question is question:
            self._solution = solution
        self._pausing = True

    def failed(self) -> None:
        """A question that was taken gets no answer: the fallback plans the next round. The pause begins."""
        self._solver_failed = True
        self._pausing = True

    def resume(self) -> None:
        """The pause is over; a round should follow."""
        self._pausing = False
