"""Time of an attempt: its execution clock, and its units over time. Pure; `now` is a parameter, in seconds."""

from __future__ import annotations

from collections.abc import Mapping


class ExecutionClock:
    """Starts when the attempt starts and stands still while it is paused."""

    __slots__ = ("_counted", "_running_since")

    def __init__(self, now: float) -> None:
        self._counted = 0.0
        self._running_since: float | None = now

    @property
    def paused(self) -> bool:
        """Whether it stands still."""
        return self._running_since is None

    def pause(self, now: float) -> None:
        """Stops it; a paused clock stays paused."""
        self._counted = self.elapsed(now)
        self._running_since = None

    def resume(self, now: float) -> None:
        """Lets it go on; a running clock is left alone."""
        if self._running_since is None:
            self._running_since = now

    def elapsed(self, now: float) -> float:
        """Returns the seconds counted so far."""
        if self._running_since is None:
            return self._counted
        return self._counted + max(0.0, now - self._running_since)

    def reaches(self, limit_s: float) -> float | None:
        """Returns when it will show `limit_s` if it is left running; None while it is paused."""
        if self._running_since is None:
            return None
        return self._running_since + limit_s - self._counted


class GrantMeter:
    """Integrates granted units over time, following resizes. Pauses count: a paused attempt keeps its grant."""

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
