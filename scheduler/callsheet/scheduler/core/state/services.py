"""The core's books of hosted services."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from callsheet.scheduler.core.words.costs import Cost
from callsheet.scheduler.core.words.engine_weights import EngineWeights
from callsheet.scheduler.core.words.registration import ServiceDescription


@dataclass(slots=True)
class Service:
    """A hosted service: how many attempts it runs now, and its state as last told (see `ServiceState`).

    Attributes:
        demand_told: How many actions its manager was told to wait for it, and to be coming; None before.
        kv_booked: Tokens that these are expected to come to hold of its engine's KV cache.
        weights: Which weights it has, if it is an engine. While they are not proved it has no free slots.
        cost: What the attempts cost that ended on it, since its manager registered.
    """

    description: ServiceDescription
    busy: int = 0
    setup_s: float = 0.0
    instances: int = 0
    kept_set_ups: Mapping[str, float] = field(default_factory=dict)
    no_room: bool = False
    weights: EngineWeights = field(default_factory=EngineWeights)
    kv_booked: int = 0
    others_sequences: int = 0
    others_kv_tokens: int = 0
    problem: str = ""
    instance_slots: int = 0
    waiting_for_memory: int = 0
    demand_told: tuple[int, float] | None = None
    cost: Cost = field(default_factory=Cost)

    @property
    def at_once(self) -> int:
        """Attempts that its instances take at once."""
        return self.instances * max(self.instance_slots, 1)

    @property
    def free_kv_tokens(self) -> int | None:
        """Tokens of its engine's KV cache that are not booked; None if it does not tell what there is."""
        capacity = self.description.kv_tokens
        return capacity - self.kv_booked - self.others_kv_tokens if capacity else None

    def holds(self, kv_tokens: int) -> bool:
        """Returns whether its engine has room for a sequence of so many tokens. An idle one takes whatever there is."""
        free = self.free_kv_tokens
        return free is None or not self.busy or kv_tokens <= free

    @property
    def free_slots(self) -> int | None:
        """Attempts it can take now; None if it has no limit."""
        if self.weights.gated:
            return 0
        slots = self.description.slots
        return slots - self.busy if slots else None

    def booked(self, units: dict[str, int]) -> dict[str, int]:
        """The part of a grant that its node must have free: all but what the service shares."""
        shared = self.description.shared
        return {resource: count for resource, count in units.items() if resource not in shared} if shared else units

    def pool_has(self, units: Mapping[str, int]) -> bool:
        """Returns whether what a grant takes of the shared units is no more than there are."""
        shared = self.description.shared
        return not shared or all(units.get(resource, 0) <= pool for resource, pool in shared.items())


def pool_of(services: Iterable[ServiceDescription]) -> dict[str, int]:
    """The one pool of a manager's services: per resource the most that any of them names."""
    pool: dict[str, int] = {}
    for service in services:
        for resource, units in service.shared.items():
            pool[resource] = max(pool.get(resource, 0), units)
    return pool


class Stranger(NamedTuple):
    """Units and cores of an attempt that a manager runs and the core does not know."""

    units: dict[str, int]
    cores: tuple[int, ...]
