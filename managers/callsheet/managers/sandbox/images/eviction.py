"""Which layers a cache gives up: pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CachedLayer:
    """One layer in a cache.

    Attributes:
        key: Its name in the cache.
        size_bytes: What it takes.
        last_used: Larger is later.
        in_use: Whether something is made of it now.
    """

    key: str
    size_bytes: int
    last_used: float
    in_use: bool


def layers_to_evict(layers: Iterable[CachedLayer], limit_bytes: int) -> list[str]:
    """Returns the layers to remove so that the rest fits: the least recently used, and none that is in use."""
    held = list(layers)
    excess = sum(layer.size_bytes for layer in held) - limit_bytes
    evicted = []
    for layer in sorted(held, key=lambda each: (each.last_used, each.key)):
        if excess <= 0:
            break
        if not layer.in_use:
            evicted.append(layer.key)
            excess -= layer.size_bytes
    return evicted
