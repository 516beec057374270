"""Generations whose time is drawn ahead."""

from __future__ import annotations

from collections.abc import Callable

from callsheet.benchmarks.simulator.closed_loop import Progress
from callsheet.benchmarks.simulator.events import EventQueue
from callsheet.benchmarks.simulator.scenario import Generation


class TimedGenerations:
    """Each takes its drawn time, whatever else runs. While new weights come to all engines at once, all stand still."""

    def __init__(self, events: EventQueue) -> None:
        self._events = events
        self._ends: dict[Progress, tuple[float, Callable[[Progress], None]]] = {}
        self._stopped_until = 0.0

    def begin(self, progress: Progress, generation: Generation, done: Callable[[Progress], None]) -> None:
        """See `Generations`."""
        end = max(self._events.now, self._stopped_until) + generation.seconds
        self._ends[progress] = (end, done)
        self._events.at(end, self._due, progress)

    def abort(self, progress: Progress) -> None:
        """See `Generations`."""
        del self._ends[progress]

    def forget(self, progress: Progress) -> None:
        """See `Generations`: nothing is cached."""

    def update(self, seconds: float, rolling: bool) -> None:
        """Stops all generations for new weights; one engine after another, the others serve on."""
        if rolling:
            return
        self._stopped_until = max(self._events.now, self._stopped_until) + seconds
        for progress, (end, done) in self._ends.items():
            self._ends[progress] = (end + seconds, done)

    def _due(self, progress: Progress) -> None:
        ends = self._ends.get(progress)
        if ends is None:
            return
        end, done = ends
        if end > self._events.now:
            self._events.at(end, self._due, progress)
            return
        del self._ends[progress]
        done(progress)
