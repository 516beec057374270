"""Who serves generations: a drawn time, or inference engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from callsheet.benchmarks.simulator.closed_loop import Progress
from callsheet.benchmarks.simulator.events import EventQueue
from callsheet.benchmarks.simulator.physics import engine
from callsheet.benchmarks.simulator.policy import EngineStatus, LiveRollout
from callsheet.benchmarks.simulator.scenario import Cluster, Generation

Route = Callable[[LiveRollout, Generation, Sequence[EngineStatus]], int]


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


class EngineGenerations:
    """Each goes to the engine that the policy names, and takes what that engine's batch makes of it."""

    def __init__(self, cluster: Cluster, events: EventQueue, route: Route) -> None:
        self._events = events
        self._route = route
        self._engines = [engine.Engine(kind, events) for kind in cluster.engines for _ in range(kind.count)]
        self._running: dict[Progress, tuple[engine.Engine, engine.EngineSequence]] = {}
        self._visited: dict[Progress, set[engine.Engine]] = {}

    def begin(self, progress: Progress, generation: Generation, done: Callable[[Progress], None]) -> None:
        """See `Generations`.

        Raises:
            ValueError: The policy named an engine that does not exist.
        """
        index = self._route(progress.live, generation, [one.load(progress) for one in self._engines])
        if not 0 <= index < len(self._engines):
            raise ValueError(f"route: there is no engine {index}; engines are 0 to {len(self._engines) - 1}")
        chosen = self._engines[index]
        sequence = engine.EngineSequence(progress, generation, partial(self._done, progress, done))
        self._running[progress] = (chosen, sequence)
        self._visited.setdefault(progress, set()).add(chosen)
        chosen.begin(sequence)

    def abort(self, progress: Progress) -> None:
        """See `Generations`."""
        chosen, sequence = self._running.pop(progress)
        chosen.abort(sequence)

    def forget(self, progress: Progress) -> None:
        """See `Generations`: its context leaves the caches."""
        for one in self._visited.pop(progress, ()):
            one.forget(progress)

    def update(self, seconds: float, rolling: bool) -> None:
        """New weights come to every engine, to all at once or to one after another; an engine stops meanwhile."""
        for index, one in enumerate(self._engines):
            self._events.at(self._events.now + (index * seconds if rolling else 0.0), one.stop_for, seconds)

    def _done(self, progress: Progress, done: Callable[[Progress], None]) -> None:
        del self._running[progress]
        done(progress)
