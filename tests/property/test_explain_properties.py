"""Explain and the next round agree: what it calls startable is dispatched, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.state.entities import Action
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import ActionKey, ActionState
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.planner.answers.explain import Explanation, explain_in_parts
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.protocol import ReviewingPlanner
from callsheet.scheduler.planner.round.review import Review, WaitReason
from callsheet.scheduler.planner.solvers.cp_sat import Budget
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.closed_system import JOBS, ClosedSystem, Job
from tests.support.core_world import CoreWorld
from tests.support.samples import examples


def elastic(hold_after: float) -> ReviewingPlanner:
    """A few members a round, so that the cap matters, too."""
    budget = Budget(seconds=0.05, deterministic=True)
    return ElasticPlanner(ElasticSettings(budget=budget, hold_after=hold_after, dispatch_cap=6))


def first_come(hold_after: float) -> ReviewingPlanner:
    return FirstComePlanner(dispatch_cap=6, hold_after=hold_after)


class AskedOnce:
    """A review that was made already, for all actions of one moment."""

    def __init__(self, review: Review) -> None:
        self._review = review

    def review(self, state: SchedulerState, now: float) -> Review:
        """See `Reviewer.review`."""
        return self._review


def explanations(world: CoreWorld) -> dict[ActionKey, Explanation]:
    """Of everything that is queued."""
    planner = AskedOnce(world.planner.review(world.state, world.now))
    queued = [
        action
        for job in world.state.jobs.values()
        for action in job.actions.values()
        if isinstance(action, Action) and action.state is ActionState.QUEUED
    ]
    return {action.key: at_once(explain_in_parts(world.state, action, world.now, planner)) for action in queued}


def checked(world: CoreWorld) -> Callable[[], Plan]:
    """`CoreWorld.plan`, with every queued action explained before it."""
    plan_round = world.plan

    def plan() -> Plan:
        told = explanations(world)
        found = plan_round()
        taken = {each.key for each in found.assignments}
        for key, explanation in told.items():
            assert (explanation.reason is WaitReason.NEXT_ROUND) == (key in taken), (key, explanation)
            assert all(short.free < short.needed <= short.capacity for short in explanation.shortages), explanation
        return found

    return plan


@pytest.mark.parametrize("planner", [elastic, first_come])
@given(JOBS, st.sampled_from([0.0, 2.0, 5.0]))
@settings(max_examples=examples(30))
def test_the_next_round_starts_what_explain_says_it_does_and_nothing_else(
    planner: Callable[[float], ReviewingPlanner], jobs: list[Job], hold_after: float
) -> None:
    system = ClosedSystem(jobs, planner(hold_after))
    system.world.plan = checked(system.world)  # type: ignore[method-assign]
    system.play()


@given(JOBS)
@settings(max_examples=examples(15))
def test_to_be_asked_changes_no_plan(jobs: list[Job]) -> None:
    def rounds(*, asked: bool) -> int:
        system = ClosedSystem(jobs, elastic(2.0))
        if asked:
            system.world.plan = checked(system.world)  # type: ignore[method-assign]
        return system.play()

    assert rounds(asked=True) == rounds(asked=False)
