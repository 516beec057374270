"""Cache-aware routing, by the rule of SGLang's router.

The router remembers which text it sent where. A request goes to the engine with the longest match if that is a large
enough part of it, else to the engine to which the least was sent. If engines' numbers of requests are too unequal, by a
difference and by a ratio, it goes to the one with the fewest instead. Contexts' lengths and the engines' evictions are
not known to it. Its defaults are a difference of 64, a ratio of 1.5 and a match of 0.3.
"""

from __future__ import annotations

from callsheet.benchmarks.simulator.kv.policies.plain import AtOnce
from callsheet.benchmarks.simulator.kv.world import KvTrajectory, KvWorld


class CacheAware(AtOnce):
    """See the module's docstring."""

    def __init__(self, world: KvWorld, difference: int, ratio: float = 1.5, match: float = 0.3) -> None:
        super().__init__(world)
        self._difference = difference
        self._ratio = ratio
        self._match = match
        self._sent: dict[KvTrajectory, tuple[int, int]] = {}
        self._tokens = [0] * len(world.engines)

    def choose(self, trajectory: KvTrajectory) -> int:
        """See `AtOnce`."""
        sequences = self._sequences()
        home, known = self._sent.get(trajectory, (-1, 0))
        most, fewest = max(sequences), min(sequences)
        if most - fewest > self._difference and most > self._ratio * fewest:
            chosen = sequences.index(fewest)
        elif home >= 0 and known > self._match * trajectory.prompt_tokens:
            chosen = home
        else:
            chosen = self._tokens.index(min(self._tokens))
        self._tokens[chosen] += trajectory.prompt_tokens - (known if chosen == home else 0)
        self._sent[trajectory] = (chosen, trajectory.prompt_tokens)
        return chosen

    def ended(self, trajectory: KvTrajectory) -> None:
        """See `KvPolicy`. Its text leaves the router's memory by and by; here at once."""
        home, known = self._sent.pop(trajectory)
        self._tokens[home] = max(self._tokens[home] - known, 0)
