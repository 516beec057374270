"""A quantity that changes at instants, and its integral over time."""

from __future__ import annotations

from callsheet.benchmarks.simulator.events import EventQueue


class Level:
    """Integrates a piecewise constant quantity over virtual time.

    Args:
        events: Virtual time.
        counts_from_s: Virtual second at which the integral begins.
    """

    __slots__ = ("_events", "_since_s", "_total", "now")

    def __init__(self, events: EventQueue, counts_from_s: float = 0.0) -> None:
        self.now = 0.0  # the quantity's value
        self._events = events
        self._since_s = counts_from_s
        self._total = 0.0

    def add(self, change: float) -> None:
        """Changes the quantity from this instant on."""
        self._integrate()
        self.now += change

    def integral(self) -> float:
        """Of the quantity up to now: for cores, core-seconds."""
        self._integrate()
        return self._total

    def _integrate(self) -> None:
        now = self._events.now
        if now > self._since_s:
            self._total += self.now * (now - self._since_s)
            self._since_s = now
