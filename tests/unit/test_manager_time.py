"""The meter of granted units."""

from __future__ import annotations

from callsheet.managers.clock import GrantMeter


def test_the_meter_follows_resizes() -> None:
    meter = GrantMeter({"cpu": 2, "memory": 100}, 0.0)
    assert meter.unit_seconds(0.0) == {"cpu": 0.0, "memory": 0.0}
    meter.change({"cpu": 4, "memory": 100}, 3.0)
    meter.change({"cpu": 1}, 5.0)
    assert meter.unit_seconds(10.0) == {"cpu": 2 * 3 + 4 * 2 + 1 * 5, "memory": 500.0}
