"""The meter of granted units, and of what is waited for."""

from __future__ import annotations

from callsheet.managers.clock import GrantMeter, Waits, waiting
from callsheet.timing.waits import Cause


def test_the_meter_follows_resizes() -> None:
    meter = GrantMeter({"cpu": 2, "memory": 100}, 0.0)
    assert meter.unit_seconds(0.0) == {"cpu": 0.0, "memory": 0.0}
    meter.change({"cpu": 4, "memory": 100}, 3.0)
    meter.change({"cpu": 1}, 5.0)
    assert meter.unit_seconds(10.0) == {"cpu": 2 * 3 + 4 * 2 + 1 * 5, "memory": 500.0}


def test_waits_add_up_by_cause_and_a_moment_is_none() -> None:
    waits = Waits()
    waits.add(Cause.IMAGE, 2.0)
    waits.add(Cause.IMAGE, 1.0)
    waits.add(Cause.MEMORY, 0.0001)
    with waits.on(Cause.SANDBOX):
        pass
    assert waits.seconds == {Cause.IMAGE: 3.0}


def test_a_wait_of_nobody_is_noted_nowhere() -> None:
    with waiting(Cause.MEMORY):
        pass
