"""Which layers a cache gives up: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class CachedLayer:
    """One layer in a cache.

    Attributes:
        size_bytes: What it takes.
        last_used: Larger is later.
        users: What is made of it now.
    """

    size_bytes: int
    last_used: float
    users: int = 0


def layers_to_evict(layers: Mapping[str, CachedLayer], limit_bytes: int) -> list[str]:
    """Returns the layers to remove so that the rest fits: the least recently used, and none that is in use."""
    excess = sum(layer.size_bytes for layer in layers.values()) - limit_bytes
    evicted = []
    for key, layer in sorted(layers.items(), key=lambda item: (item[1].last_used, item[0])):
        if excess <= 0:
            break
        if not layer.users:
            evicted.append(key)
            excess -= layer.size_bytes
    return evicted
