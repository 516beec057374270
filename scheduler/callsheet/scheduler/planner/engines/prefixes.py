"""The prefixes that engines are expected to hold in their KV caches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import NamedTuple

from callsheet.scheduler.core.words.model import TrajectoryKey

# Actual tokens found by expected ones, of the last dozens of generations that were sent for their prefix.
MEMORY = 0.95
MOST_PREFIXES = 262_144


class Prefix(NamedTuple):
    """The end of a trajectory's last generation.

    Attributes:
        engine: The manager of the engine that ran it.
        tokens: Its prompt and what it wrote.
        weights: What tells the weights that the engine had then from others.
    """

    engine: str
    tokens: int
    weights: Hashable


class Prefixes:
    """Each trajectory's newest prefix. An engine with too many is expected to drop the least recently used.

    How much of what it should hold an engine really has is learned: some keep no prefixes, some are shared.
    """

    def __init__(self) -> None:
        self._newest: OrderedDict[TrajectoryKey, Prefix] = OrderedDict()
        self._held: dict[str, OrderedDict[TrajectoryKey, int]] = {}
        self._total: dict[str, int] = {}
        self._found: dict[str, float] = {}

    def of(self, trajectory: TrajectoryKey) -> Prefix | None:
        """Returns the expected place of a trajectory's prefix."""
        return self._newest.get(trajectory)

    def share_found(self, engine: str) -> float:
        """The share of expected tokens that an engine really has."""
        return self._found.get(engine, 1.0)

    def put(self, trajectory: TrajectoryKey, prefix: Prefix, room: int) -> None:
        """Notes the end of a generation.

        Args:
            trajectory: Whose.
            prefix: What its engine holds of it now.
            room: Tokens that the engine's cache can hold beside those that are in use; what is beyond it is dropped.
        """
        self.forget(trajectory)
        self._newest[trajectory] = prefix
        held = self._held.setdefault(prefix.engine, OrderedDict())
        held[trajectory] = prefix.tokens
        self._total[prefix.engine] = self._total.get(prefix.engine, 0) + prefix.tokens
        while held and self._total[prefix.engine] > max(room, 0):
            self.forget(next(iter(held)))
        while len(self._newest) > MOST_PREFIXES:
            self.forget(next(iter(self._newest)))

    def found(self, engine: str, expected: int, actual: int) -> None:
        """Learns from a generation that was sent to an engine for its prefix."""
        share = min(actual / expected, 1.0)
        self._found[engine] = MEMORY * self.share_found(engine) + (1.0 - MEMORY) * share

    def forget(self, trajectory: TrajectoryKey) -> None:
        """Drops a trajectory's prefix."""
        prefix = self._newest.pop(trajectory, None)
        if prefix is None:
            return
        self._total[prefix.engine] -= self._held[prefix.engine].pop(trajectory)
        if not self._held[prefix.engine]:
            del self._held[prefix.engine], self._total[prefix.engine]

    def forget_engine(self, engine: str) -> None:
        """Drops all prefixes of an engine that is gone."""
        for trajectory in list(self._held.get(engine, ())):
            self.forget(trajectory)
        self._found.pop(engine, None)
