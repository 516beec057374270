"""Units granted to an attempt, over time. Pure; `now` is a parameter, in seconds."""

from __future__ import annotations

from collections.abc import Mapping


class GrantMeter:
    """Integrates granted units over time, following resizes."""

    __slots__ = ("_since", "_total", "_units")

    def __init__(self, units: Mapping[str, int], now: float) -> None:
        self._units = dict(units)
        self._total: dict[str, float] = {}
        self._since = now

    def change(self, units: Mapping[str, int], now: float) -> None:
        """Notes that from now on `units` are granted."""
        self._total = self.unit_seconds(now)
        self._units = dict(units)
        self._since = now

    def unit_seconds(self, now: float) -> dict[str, float]:
        """Returns unit-seconds by resource up to now."""
        held_s = max(0.0, now - self._since)
        total = dict(self._total)
        for resource, units in self._units.items():
            total[resource] = total.get(resource, 0.0) + units * held_s
        return total
