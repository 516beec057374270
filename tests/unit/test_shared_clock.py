"""The execution clock of an attempt whose command shares cores."""

from __future__ import annotations

from callsheet.managers.sandbox.shared_cores import SharedClock


def test_all_time_outside_counts_and_inside_another_clock() -> None:
    clock = SharedClock(10.0)
    assert clock(12.0) == 2.0
    clock.enter(12.0, lambda now: (now - 12.0) / 4)
    assert clock(20.0) == 4.0
    clock.leave(20.0)
    assert clock(21.0) == 5.0


def test_a_pause_outside_lasts_until_it_is_undone() -> None:
    clock = SharedClock(0.0)
    clock.pause(1.0)
    clock.enter(2.0, lambda now: 0.5)
    clock.leave(3.0)
    assert clock(9.0) == 1.5
    clock.resume(9.0)
    assert clock(10.0) == 2.5


def test_a_pause_inside_is_the_other_clocks_matter() -> None:
    clock = SharedClock(0.0)
    clock.enter(1.0, lambda now: now - 1.0)
    clock.pause(2.0)
    clock.resume(3.0)
    assert clock(4.0) == 4.0
    clock.leave(4.0)
    assert clock(5.0) == 5.0
