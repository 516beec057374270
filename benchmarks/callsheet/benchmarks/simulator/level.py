"""A quantity that changes at instants, its integral and its course over time."""

from __future__ import annotations

from callsheet.benchmarks.simulator.events import EventQueue

_BINS = 1024


class Level:
    """Integrates a piecewise constant quantity over virtual time, in bins.

    A run's length is not known ahead: bins start at a second and double their width whenever there are too many.
    """

    __slots__ = ("_bins", "_events", "_since", "_width", "now")

    def __init__(self, events: EventQueue) -> None:
        self.now = 0.0  # the quantity's value
        self._events = events
        self._since = 0.0
        self._bins = [0.0]
        self._width = 1.0

    def add(self, change: float) -> None:
        """Changes the quantity from this instant on."""
        self._integrate()
        self.now += change

    def series(self) -> tuple[float, list[float]]:
        """Bin width in seconds, and the mean in each bin up to now; the last bin may not be over yet."""
        self._integrate()
        over = [integral / self._width for integral in self._bins[:-1]]
        rest = self._events.now - len(over) * self._width
        return self._width, over + ([self._bins[-1] / rest] if rest > 0 else [])

    def integral(self) -> float:
        """Of the quantity from 0 to now: for cores, core-seconds."""
        self._integrate()
        return sum(self._bins)

    def _integrate(self) -> None:
        now = self._events.now
        if now == self._since:
            return
        value = self.now
        bins = self._bins
        end = len(bins) * self._width
        while now > end:
            bins[-1] += value * (end - self._since)
            self._since = end
            bins.append(0.0)
            if len(bins) > _BINS:
                self._widen()
                bins = self._bins
            end = len(bins) * self._width
        bins[-1] += value * (now - self._since)
        self._since = now

    def _widen(self) -> None:
        self._bins.append(0.0)
        pairs = zip(self._bins[::2], self._bins[1::2], strict=False)
        self._bins = [first + second for first, second in pairs]
        self._width *= 2
