"""The execution clock of an attempt whose command shares cores."""

from __future__ import annotations

from callsheet.managers.sandbox.sharing.shared_cores import SharedClock


def test_all_time_outside_counts_and_inside_another_clock() -> None:
    clock = SharedClock(10.0)
    assert clock(9.0) == 0.0
    assert clock(12.0) == 2.0
    clock.enter(12.0, lambda now: (now - 12.0) / 4)
    assert clock(20.0) == 4.0
    clock.leave(20.0)
    assert clock(21.0) == 5.0
