"""Plain routing: everything goes to an engine at once, whatever that has cached or has room for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import count

from callsheet.benchmarks.simulator.kv.world import KvTrajectory, KvWorld


class AtOnce(ABC):
    """What all policies share that send a generation the moment it is asked for."""

    def __init__(self, world: KvWorld) -> None:
        self._world = world

    def asked(self, trajectory: KvTrajectory) -> None:
        """See `KvPolicy`."""
        self._world.send(trajectory, self.choose(trajectory))

    @abstractmethod
    def choose(self, trajectory: KvTrajectory) -> int:
        """Index of the engine."""

    def acting(self, trajectory: KvTrajectory, output_tokens: int, execution_s: float, cached_tokens: int) -> None:
        """See `KvPolicy`."""

    def acted(self, trajectory: KvTrajectory, tool_s: float) -> None:
        """See `KvPolicy`."""

    def ended(self, trajectory: KvTrajectory) -> None:
        """See `KvPolicy`."""

    def woken(self) -> None:
        """See `KvPolicy`."""

    def _sequences(self) -> list[int]:
        loads = [engine.load(None) for engine in self._world.engines]
        return [load.running + load.waiting for load in loads]


class RoundRobin(AtOnce):
    """Each generation goes to the next engine."""

    def __init__(self, world: KvWorld) -> None:
        super().__init__(world)
        self._numbers = count()

    def choose(self, trajectory: KvTrajectory) -> int:
        """See `AtOnce`."""
        return next(self._numbers) % len(self._world.engines)


class LeastLoaded(AtOnce):
    """Each generation goes to the engine with the fewest sequences."""

    def choose(self, trajectory: KvTrajectory) -> int:
        """See `AtOnce`."""
        sequences = self._sequences()
        return sequences.index(min(sequences))


class Sticky(AtOnce):
    """A trajectory stays on the engine that had the fewest trajectories when it began."""

    def __init__(self, world: KvWorld) -> None:
        super().__init__(world)
        self._homes: dict[KvTrajectory, int] = {}
        self._trajectories = [0] * len(world.engines)

    def choose(self, trajectory: KvTrajectory) -> int:
        """See `AtOnce`."""
        home = self._homes.get(trajectory)
        if home is None:
            home = self._homes[trajectory] = self._trajectories.index(min(self._trajectories))
            self._trajectories[home] += 1
        return home

    def ended(self, trajectory: KvTrajectory) -> None:
        """See `KvPolicy`."""
        self._trajectories[self._homes.pop(trajectory)] -= 1
