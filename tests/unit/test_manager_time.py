"""The manager's execution clock and its meter of granted units."""

from __future__ import annotations

from callsheet.managers.clock import ExecutionClock, GrantMeter


def test_the_clock_stands_still_while_paused() -> None:
    clock = ExecutionClock(10.0)
    assert clock.reaches(5.0) == 15.0
    clock.pause(12.0)
    clock.pause(13.0)
    assert clock.paused
    assert clock.elapsed(20.0) == 2.0
    assert clock.reaches(5.0) is None
    clock.resume(20.0)
    clock.resume(21.0)
    assert not clock.paused
    assert clock.elapsed(22.0) == 4.0
    assert clock.reaches(5.0) == 23.0


def test_the_clock_never_runs_backwards() -> None:
    assert ExecutionClock(10.0).elapsed(9.0) == 0.0


def test_the_meter_follows_resizes() -> None:
    meter = GrantMeter({"cpu": 2, "memory": 100}, 0.0)
    assert meter.unit_seconds(0.0) == {"cpu": 0.0, "memory": 0.0}
    meter.change({"cpu": 4, "memory": 100}, 3.0)
    meter.change({"cpu": 1}, 5.0)
    assert meter.unit_seconds(10.0) == {"cpu": 2 * 3 + 4 * 2 + 1 * 5, "memory": 500.0}
