"""When an action has waited too long, beside what waits with it."""

from __future__ import annotations

from math import inf

import pytest
from callsheet.scheduler.planner.lateness import hold_after_s, late_after_s


@pytest.mark.parametrize(
    ("backlog", "late"),
    [
        (0.0, 10.0),  # nothing else waits: its duration divided by the ageing
        (4.0, 10.0),
        (30.0, 60.0),  # nobody is late before all could have been served twice
        (1000.0, 200.0),  # but for an endless overload
    ],
)
def test_late_is_who_waited_for_long_beside_duration_and_backlog(backlog: float, late: float) -> None:
    assert late_after_s(2.0, 0.2, backlog) == late


def test_without_ageing_nobody_is_ever_late() -> None:
    assert late_after_s(2.0, 0.0, 0.0) == inf


@pytest.mark.parametrize(("backlog", "held"), [(0.0, 5.0), (10.0, 40.0), (1000.0, 200.0)])
def test_a_node_is_held_once_all_could_have_been_served_four_times(backlog: float, held: float) -> None:
    assert hold_after_s(5.0, backlog) == held
