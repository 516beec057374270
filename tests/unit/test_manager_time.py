"""The manager's execution clock, its meter of granted units, its deadlines and its backoff."""

from __future__ import annotations

import pytest
from callsheet.managers.backoff import retry_delay
from callsheet.managers.clock import ExecutionClock, GrantMeter
from callsheet.managers.deadlines import Deadlines


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


def test_deadlines_come_in_order_and_once() -> None:
    deadlines: Deadlines[str] = Deadlines()
    assert deadlines.next_at() is None
    assert deadlines.set("b", 2.0)
    assert deadlines.set("a", 1.0)
    assert not deadlines.set("c", 3.0)
    assert deadlines.next_at() == 1.0
    assert deadlines.pop_due(2.0) == ["a", "b"]
    assert deadlines.pop_due(2.0) == []
    assert deadlines.next_at() == 3.0


def test_a_deadline_can_be_moved_and_discarded() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("a", 1.0)
    deadlines.set("b", 2.0)
    deadlines.set("a", 5.0)
    deadlines.discard("b")
    deadlines.discard("never set")
    assert len(deadlines) == 1
    assert deadlines.pop_due(4.0) == []
    assert deadlines.pop_due(5.0) == ["a"]


@pytest.mark.parametrize(("failures", "ceiling"), [(1, 0.1), (2, 0.2), (4, 0.8), (10, 5.0), (100_000, 5.0)])
def test_backoff_doubles_to_its_limit_with_jitter(failures: int, ceiling: float) -> None:
    assert retry_delay(failures, 0.1, 5.0, 0.0) == pytest.approx(ceiling / 2)
    assert retry_delay(failures, 0.1, 5.0, 0.5) == pytest.approx(ceiling * 0.75)
