"""The price rule for elastic demands."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.words.model import Demand, ResourceDemand, SpeedUp
from callsheet.scheduler.planner.question.price import choose_units

LINEAR, SERIAL = SpeedUp(), SpeedUp(0.0)
TABLE = SpeedUp(points=((2, 1.9), (4, 2.0), (8, 6.0)))


@pytest.mark.parametrize(
    ("span", "speed_up", "free", "waiting", "expected"),
    [
        # Alone: whatever makes it faster.
        ((1, 8), LINEAR, 8, 0.0, 8),
        ((1, 8), LINEAR, 5, 0.0, 5),
        ((2, 2), LINEAR, 8, 0.0, 2),
        ((2, 8), LINEAR, 2, 0.0, 2),
        # Linear speed-up: the delay to others does not grow with the units, so wide is right whoever waits.
        ((1, 8), LINEAR, 8, 100.0, 8),
        # No gain: nobody gets a second unit.
        ((1, 8), SERIAL, 8, 0.0, 1),
        # Amdahl 0.6, alone: the fifth unit brings 1.92 - 1.82, the sixth 2.00 - 1.92, which is below the floor of 0.1.
        ((1, 64), SpeedUp(0.6), 64, 0.0, 5),
        # The same with much waiting: narrow.
        ((1, 64), SpeedUp(0.5), 64, 64.0, 1),
        # Units that are many at the least: the floor is relative to what a unit at perfect speed-up would bring.
        ((4, 8), SpeedUp(0.5), 8, 0.0, 8),
        # Zero is allowed, and one is given where it is free.
        ((0, 4), LINEAR, 4, 0.0, 4),
        ((0, 4), LINEAR, 0, 0.0, 0),
        # A plateau in a measured table is passed over, not climbed step by step.
        ((1, 8), TABLE, 8, 0.0, 8),
        ((1, 4), TABLE, 8, 0.0, 2),
    ],
)
def test_units_of_one_elastic_entry(
    span: tuple[int, int], speed_up: SpeedUp, free: int, waiting: float, expected: int
) -> None:
    demand = Demand((ResourceDemand("cpu", *span, speed_up),))
    chosen = choose_units(demand, 1.0, 10.0, free={"cpu": free}, waiting_weight={"cpu": waiting}, capacity={"cpu": 64})
    assert chosen == ({"cpu": expected} if expected else {})


def test_fixed_entries_are_given_as_they_are() -> None:
    demand = Demand((ResourceDemand("memory", 100, 100), ResourceDemand("cpu", 1, 4), ResourceDemand("gpu", 0, 0)))
    free = {"cpu": 4, "memory": 100}
    assert choose_units(demand, 1.0, 0.0, free=free, waiting_weight={}, capacity=free) == {"memory": 100, "cpu": 4}


def test_a_heavy_action_gets_more_than_a_light_one() -> None:
    demand = Demand((ResourceDemand("cpu", 1, 16, SpeedUp(0.8)),))
    widths = [
        choose_units(demand, weight, 1.0, free={"cpu": 16}, waiting_weight={"cpu": 16.0}, capacity={"cpu": 16})["cpu"]
        for weight in (0.1, 1.0, 10.0, 100.0)
    ]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_memory_it_holds_meanwhile_is_a_reason_to_be_quick() -> None:
    narrow = Demand((ResourceDemand("cpu", 1, 8, SpeedUp(0.8)),))
    holding = Demand((*narrow.entries, ResourceDemand("memory", 100, 100)))
    free = {"cpu": 8, "memory": 100}
    waiting = {"cpu": 8.0, "memory": 8.0}
    alone = choose_units(narrow, 1.0, 1.0, free=free, waiting_weight=waiting, capacity=free)["cpu"]
    with_memory = choose_units(holding, 1.0, 1.0, free=free, waiting_weight=waiting, capacity=free)["cpu"]
    assert with_memory > alone


def test_the_duration_scales_all_prices_alike() -> None:
    demand = Demand((ResourceDemand("cpu", 1, 16, SpeedUp(0.7)),))
    prices = {"waiting_weight": {"cpu": 4.0}, "capacity": {"cpu": 16}}
    assert choose_units(demand, 1.0, 0.0, free={"cpu": 16}, **prices) == choose_units(  # type: ignore[arg-type]
        demand,
        1.0,
        500.0,
        free={"cpu": 16},
        **prices,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("speed_up", "units", "gain"),
    [
        (SpeedUp(1.0), 4, 4.0),
        (SpeedUp(0.0), 4, 1.0),
        (SpeedUp(0.5), 2, 1 / 0.75),
        (TABLE, 1, 1.0),
        (TABLE, 2, 1.9),
        (TABLE, 3, 1.95),
        (TABLE, 6, 4.0),
        (TABLE, 100, 6.0),
    ],
)
def test_speed_up_curves(speed_up: SpeedUp, units: int, gain: float) -> None:
    assert speed_up.at(units, 1) == pytest.approx(gain)


def test_a_curve_is_relative_to_the_fewest_units() -> None:
    assert SpeedUp(1.0).at(8, 4) == pytest.approx(2.0)
    assert SpeedUp(0.5).at(4, 4) == pytest.approx(1.0)
    assert SpeedUp(1.0).at(3, 0) == pytest.approx(3.0)


def test_of_a_wide_range_only_some_widths_are_tried() -> None:
    asked: list[int] = []

    class Counting(SpeedUp):
        """Notes what it is asked for."""

        def at(self, units: int, min_units: int) -> float:
            asked.append(units)
            return super().at(units, min_units)

    demand = Demand((ResourceDemand("memory", 1_000, 1 << 40, Counting()),))
    free = {"memory": 1_000_000}
    chosen = choose_units(demand, 1.0, 1.0, free=free, waiting_weight={}, capacity=free)["memory"]
    assert 990_000 < chosen <= 1_000_000
    assert len(asked) < 300
