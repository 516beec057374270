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
    """Each takes its drawn time, whatever else runs."""

    def __init__(self, events: EventQueue) -> None:
        self._events = events
        self._running: dict[Progress, Callable[[Progress], None]] = {}

    def begin(self, progress: Progress, generation: Generation, done: Callable[[Progress], None]) -> None:
        """See `Generations`."""
        self._running[progress] = done
        self._events.at(self._events.now + generation.seconds, self._due, progress)

    def abort(self, progress: Progress) -> None:
        """See `Generations`."""
        del self._running[progress]

    def forget(self, progress: Progress) -> None:
        """See `Generations`: nothing is cached."""

    def _due(self, progress: Progress) -> None:
        done = self._running.pop(progress, None)
        if done is not None:
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

    def _done(self, progress: Progress, done: Callable[[Progress], None]) -> None:
        del self._running[progress]
        done(progress)
