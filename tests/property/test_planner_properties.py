"""The first planner: proposals always fit, nothing that fits starves; the price rule against trying everything."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from callsheet.scheduler.core.words.model import Demand, ResourceDemand, SpeedUp, Timeouts
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.question.instance import Option, PlanningInstance
from callsheet.scheduler.planner.question.price import MARGINAL_EFFICIENCY_FLOOR, choose_units, option_costs
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.closed_system import CURVES, JOBS, ClosedSystem, Job
from tests.support.core_requests import action_request
from tests.support.core_world import CoreWorld
from tests.support.planning_instances import planning_class, resource
from tests.support.samples import examples


@given(JOBS, st.sampled_from([0.0, 2.0, 5.0]))
@settings(max_examples=examples(80))
def test_in_a_closed_system_everything_that_fits_an_idle_node_starts(jobs: list[Job], hold_after: float) -> None:
    ClosedSystem(jobs, FirstComePlanner(hold_after=hold_after)).play()


def test_a_stream_of_narrow_actions_does_not_starve_a_wide_one() -> None:
    """Narrow actions come for ever, as many as the node can take; the wide one starts all the same."""
    world = CoreWorld(planner=FirstComePlanner(hold_after=5.0))
    manager = world.manager(cores=4)
    world.job()
    one = Demand((ResourceDemand("cpu", 1, 1),))
    wide = Demand((ResourceDemand("cpu", 4, 4),))
    world.submit(action_request("n0", demand=one))
    world.plan()
    world.submit(action_request("wide", demand=wide, timeouts=Timeouts(30.0, 1e6, 1e6)))
    for second in range(1, 30):
        world.submit(action_request(f"n{second}", demand=one))
        manager.live(1.0)
        if manager.has("wide"):
            return
        if second >= 3 and manager.has(f"n{second - 3}"):
            manager.end(f"n{second - 3}")
            world.plan()
    pytest.fail(f"the wide action never started: {world.why('wide')}")


def cost(entry: ResourceDemand, units: int, weight: float, rate: float) -> float:
    """The price of an option, as the rule is written."""
    duration = 1.0 / entry.speed_up.at(units, entry.min_units)
    return weight * duration + duration * units * rate


@dataclass(frozen=True)
class Offer:
    """An elastic demand, and the market it comes to."""

    least: int
    extra: int
    curve: SpeedUp
    spare: int
    weight: float
    waiting: float
    capacity: int


OFFERS = st.builds(
    Offer,
    st.integers(1, 8),
    st.integers(0, 24),
    CURVES,
    st.integers(0, 32),
    st.floats(0.01, 100.0),
    st.floats(0.0, 100.0),
    st.integers(1, 64),
)


@given(OFFERS)
@settings(max_examples=examples(300))
def test_the_price_rule_against_trying_everything(offer: Offer) -> None:
    entry = ResourceDemand("cpu", offer.least, offer.least + offer.extra, offer.curve)
    free = offer.least + offer.spare
    chosen = choose_units(
        Demand((entry,)),
        offer.weight,
        1.0,
        free={"cpu": free},
        waiting_weight={"cpu": offer.waiting},
        capacity={"cpu": offer.capacity},
    )["cpu"]
    gain = {units: offer.curve.at(units, offer.least) for units in range(offer.least, offer.least + offer.extra + 1)}
    options = {
        units
        for units in gain
        if units <= free
        and (units == offer.least or (gain[units] - gain[units - 1]) * offer.least >= MARGINAL_EFFICIENCY_FLOOR)
    }
    assert chosen in options
    rate = offer.waiting / offer.capacity
    best = min(cost(entry, units, offer.weight, rate) for units in options)
    assert cost(entry, chosen, offer.weight, rate) == pytest.approx(best)


@given(OFFERS, st.floats(0.0, 100.0))
@settings(max_examples=examples(200))
def test_one_action_is_priced_as_all_options_at_once_are(offer: Offer, waiting_for_memory: float) -> None:
    widths = range(offer.least, offer.least + offer.extra + 1)
    gain = {units: offer.curve.at(units, offer.least) for units in widths}
    options = [Option("pool", {"cpu": units}, 1.0 / gain[units], charges=((0, units), (1, 3))) for units in widths]
    cores = replace(resource("cpu", offer.capacity), other_weight=offer.waiting)
    memory = replace(resource("memory", 4), other_weight=waiting_for_memory)
    instance = PlanningInstance((cores, memory), (planning_class("class", options, weight=offer.weight),))
    priced = dict(zip(widths, option_costs(instance).cost.tolist(), strict=True))
    chosen = choose_units(
        Demand(
            (ResourceDemand("cpu", offer.least, offer.least + offer.extra, offer.curve), ResourceDemand("memory", 3, 3))
        ),
        offer.weight,
        1.0,
        free={"cpu": offer.least + offer.extra, "memory": 3},
        waiting_weight={"cpu": offer.waiting, "memory": waiting_for_memory},
        capacity={"cpu": offer.capacity, "memory": 4},
    )["cpu"]
    efficient = [
        units
        for units in widths
        if units == offer.least or (gain[units] - gain[units - 1]) * offer.least >= MARGINAL_EFFICIENCY_FLOOR
    ]
    assert chosen in efficient
    assert priced[chosen] == pytest.approx(min(priced[units] for units in efficient))
