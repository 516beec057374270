"""What predictors learned, piece by piece: so that saving it holds up nobody, however much it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from callsheet.scheduler.planner.predictors.nodes import Nodes, Path


class SavedNode(NamedTuple):
    """A node's name and its numbers."""

    path: Path
    numbers: list[float]


class Changes(NamedTuple):
    """Nodes to be saved, and nodes to be forgotten."""

    saved: list[SavedNode]
    removed: list[Path]


def take_changes(nodes: Nodes, most: int) -> Changes:
    """What differs from what was taken before: up to `most` nodes, none once all were taken."""
    removed = [nodes.removed.pop() for _ in range(min(most, len(nodes.removed)))]
    taken = [nodes.changed.pop() for _ in range(min(most - len(removed), len(nodes.changed)))]
    found = [(path, nodes.at(path)) for path in taken]
    return Changes([SavedNode(path, node.to_list()) for path, node in found if node is not None], removed)


def restore(nodes: Nodes, saved: Iterable[SavedNode]) -> int:
    """Adds saved nodes; returns how many were left out because they are not what this version saves."""
    left_out = 0
    for path, numbers in saved:
        try:
            nodes.put(path, numbers)
        except (TypeError, ValueError):
            left_out += 1
    return left_out
