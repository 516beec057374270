"""Half a core: one core where cores are reserved, half of the use where they are shared."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.words.model import CPU, ActionKind, Demand, ResourceDemand
from callsheet.scheduler.planner.answers.what_if import ask_in_parts
from callsheet.scheduler.planner.elastic import ElasticPlanner
from callsheet.scheduler.planner.fleet.pools import SHARED_BURST
from callsheet.scheduler.planner.predictors import ObservedRun, PredictionKey, Predictors

from tests.support.core_requests import JOB, action_request
from tests.support.core_world import CoreWorld, node, service

CORES = 4
HALF = Demand((ResourceDemand(CPU, 1, 1, most_milli_units=500),))
WHOLE = Demand((ResourceDemand(CPU, 1, 1),))


def busy_suites() -> Predictors:
    """Test suites use a core each."""
    predictors = Predictors()
    for _ in range(200):
        predictors.observe(ObservedRun(PredictionKey(JOB, ActionKind.REWARD, "", ""), 10.0, cpu_s=10.0))
    return predictors


def world_with(demand: Demand, *, shared: int, predictors: Predictors) -> CoreWorld:
    world = CoreWorld(planner=ElasticPlanner(predictors=predictors))
    world.manager(
        "m", service("suite", [ActionKind.REWARD], shared={CPU: shared} if shared else {}), on=node("n", CORES)
    )
    world.job()
    world.submit(*(action_request(f"a{number}", ActionKind.REWARD, demand=demand) for number in range(100)))
    for _ in range(10):
        world.plan()
    return world


@pytest.mark.parametrize(("demand", "use"), [(WHOLE, 1.0), (HALF, 0.5)])
def test_on_shared_cores_a_fraction_is_charged_as_such(demand: Demand, use: float) -> None:
    predictors = busy_suites()
    world = world_with(demand, shared=CORES, predictors=predictors)
    attempts = list(world.state.attempts.values())
    assert len(attempts) == pytest.approx(SHARED_BURST * CORES / use, rel=0.15)
    assert {attempt.granted[CPU] for attempt in attempts} == {1}
    uses = [attempt.prediction.use for attempt in attempts if attempt.prediction is not None]
    assert len(uses) == len(attempts)
    assert max(uses) == pytest.approx(use, rel=0.1)
    found = at_once(ask_in_parts(world.state, "n", 1, world.now, predictors)).shared[0]
    assert found.use == pytest.approx(use * len(attempts), rel=0.1)


@pytest.mark.parametrize("demand", [WHOLE, HALF])
def test_where_cores_are_reserved_a_fraction_is_a_whole_one(demand: Demand) -> None:
    world = world_with(demand, shared=0, predictors=busy_suites())
    assert len(world.state.attempts) == CORES
    assert world.state.nodes["n"].free[CPU] == 0
    assert all(len(attempt.cores) == 1 for attempt in world.state.attempts.values())
