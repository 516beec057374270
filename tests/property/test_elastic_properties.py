"""The elastic planner in a closed system: proposals always fit, nothing that fits an idle node starves."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.words import commands
from callsheet.scheduler.core.words.model import Timeouts
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.solvers.cp_sat import Budget
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.closed_system import JOBS, ClosedSystem, Job
from tests.support.core_requests import action_request, fixed
from tests.support.core_world import CoreWorld
from tests.support.samples import examples

BUDGETS = [Budget(seconds=0.0), Budget(seconds=0.05, deterministic=True)]


@given(JOBS, st.sampled_from([0.0, 2.0, 5.0]), st.sampled_from(BUDGETS), st.integers(1, 30))
@settings(max_examples=examples(40))
def test_in_a_closed_system_everything_that_fits_an_idle_node_starts(
    jobs: list[Job], hold_after: float, budget: Budget, cap: int
) -> None:
    planner = ElasticPlanner(ElasticSettings(budget=budget, hold_after=hold_after, dispatch_cap=cap))
    ClosedSystem(jobs, planner).play()


@given(JOBS)
@settings(max_examples=examples(15))
def test_equal_histories_are_planned_alike(jobs: list[Job]) -> None:
    def rounds() -> int:
        return ClosedSystem(jobs, ElasticPlanner(ElasticSettings(budget=BUDGETS[1]))).play()

    assert rounds() == rounds()


@pytest.mark.parametrize(("arrivals", "patience"), [(1, 8.0), (2, 80.0)])
def test_a_stream_of_short_actions_does_not_starve_a_long_one(arrivals: int, patience: float) -> None:
    """Short actions come for ever, as many as can be served or twice that; the long one comes to its turn."""
    long_s = 2.5
    world = CoreWorld(planner=ElasticPlanner(ElasticSettings(ageing=0.5)))
    manager = world.manager(cores=1)
    world.job()
    for name in ("s0", "s00"):
        world.submit(action_request(name, demand=fixed(cpu=1), expected=1.0))
    world.plan()
    forever = Timeouts(1e6, 1e6, 1e6)
    world.submit(action_request("long", demand=fixed(cpu=1), expected=long_s, timeouts=forever))
    for second in range(1, int(patience * long_s)):
        for twin in range(arrivals):
            world.submit(action_request(f"s{second}.{twin}", demand=fixed(cpu=1), expected=1.0))
        manager.live(1.0)
        manager.run(manager.stream.last(commands.Dispatch).request.key.action_id)
        world.plan()
        if manager.has("long"):
            assert second >= long_s / 0.5
            return
    pytest.fail(f"the long action never started: {world.why('long')}")
