"""Decides which nodes are alike, so that they are in one pool, and which units can run out on each of them."""

from __future__ import annotations

from typing import NamedTuple

from callsheet.scheduler.core.state.entities import Manager
from callsheet.scheduler.core.state.ledger import Node
from callsheet.scheduler.core.words.model import CPU, ActionKind

SHARED_CPU = "shared cpu"


class Host(NamedTuple):
    """A service that every node of a pool has.

    Attributes:
        manager: Place of its manager among the accepting managers of a node.
        service: Its name.
        kinds: What it serves.
        slots: Attempts at once on one node; 0 for no limit.
        shared: Units that its manager shares among its attempts.
        by_need: Whether its manager gives memory by need.
        set_up: Set-up that sandboxes of it begin with, where that is kept on some nodes; empty for any.
    """

    manager: int
    service: str
    kinds: frozenset[ActionKind]
    slots: int
    shared: tuple[tuple[str, int], ...]
    by_need: bool = False
    set_up: str = ""


class Place(NamedTuple):
    """A pool and a service there."""

    pool: int
    host: int
    name: str

    def __str__(self) -> str:
        return self.name


class Likeness(NamedTuple):
    """Properties that alike nodes have in common."""

    capacity: tuple[tuple[str, int], ...]
    hosts: tuple[Host, ...]


def kind_of(column: str) -> str:
    """The resource that a column counts: shared cores are cores, too, and are only counted otherwise."""
    return CPU if column.startswith(SHARED_CPU) else column


def capacity_of(node: Node) -> tuple[tuple[str, int], ...]:
    """Returns the units that an idle node has of each resource that it could ever grant."""
    pooled = node.pooled
    return tuple(
        (name, node.available(name)) for name in sorted(node.capacity) if node.available(name) > 0 or name not in pooled
    )


def hosts_of(managers: tuple[Manager, ...]) -> tuple[Host, ...]:
    """The services of a node's accepting managers."""
    return tuple(
        Host(place, name, offered.kinds, offered.slots, tuple(sorted(offered.shared.items())), manager.by_need)
        for place, manager in enumerate(managers)
        for name, offered in sorted((name, service.description) for name, service in manager.services.items())
    )


def slot_column(host: Host) -> str:
    """Name of the column of a service's slots."""
    return f"slots of {host.service}/{host.manager}"


def shared_column(host: Host) -> str:
    """Name of the column of the cores that a service's manager shares."""
    return f"{SHARED_CPU}/{host.manager}"
