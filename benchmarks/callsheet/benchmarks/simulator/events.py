"""Virtual time: what happens when, and what a quantity amounts to over it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TypeVar

Subject = TypeVar("Subject")


class EventQueue:
    """Calls due at virtual times, in order; calls due at the same instant come in the order they were asked for.

    Nothing is taken back: whoever changes its mind remembers that and ignores the call. That is cheaper than removal.
    """

    __slots__ = ("_due", "_sequence", "_stopped", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._stopped = False
        self._due: list[tuple[float, int, Callable[..., None], object]] = []
        self._sequence = 0

    def at(self, time: float, call: Callable[[Subject], None], subject: Subject) -> None:
        """Calls `call(subject)` at that virtual second, or now if that is past."""
        self._sequence += 1
        heapq.heappush(self._due, (time if time > self.now else self.now, self._sequence, call, subject))

    def stop(self) -> None:
        """Lets `run` return after the call that is being made."""
        self._stopped = True

    def run(self, until: float) -> bool:
        """Makes all calls due up to that virtual second, until nothing is left or `stop` is called.

        Returns:
            Whether nothing is left, though nobody said stop.
        """
        due = self._due
        while due and not self._stopped and due[0][0] <= until:
            self.now, _, call, subject = heapq.heappop(due)
            call(subject)
        if self._stopped:
            return False
        if due:
            self.now = until
        return not due


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
