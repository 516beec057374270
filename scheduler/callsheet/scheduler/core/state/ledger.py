"""The books of nodes and services: units, cores, memory by need, quotas that time refills, and instances."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from callsheet.scheduler.core.words.costs import Cost
from callsheet.scheduler.core.words.engine_weights import EngineWeights
from callsheet.scheduler.core.words.model import CPU, MEMORY, ActionKind, Demand
from callsheet.scheduler.core.words.registration import NodeDescription, QuotaDescription, ServiceDescription

# Quota resources: units that time brings and use consumes, as token buckets.


@dataclass(slots=True)
class TokenBucket:
    """Units that come at a steady rate and are kept up to a burst (the token bucket of traffic shaping).

    In any `t` seconds at most `burst + t * per_second` units are consumed.

    Attributes:
        level: Units there were at `as_of` (seconds since the epoch).
    """

    limits: QuotaDescription
    level: float
    as_of: float

    @property
    def units(self) -> int:
        """Whole units there are, as of the last refill."""
        return math.floor(self.level)

    def refill(self, now: float) -> None:
        """Adds what has come since the last refill."""
        came = max(now - self.as_of, 0.0) * self.limits.per_second
        self.level, self.as_of = min(self.level + came, float(self.limits.burst)), now

    def consume(self, units: int) -> None:
        """Takes units that are there, for good."""
        self.level -= units

    def enough_at(self, units: int) -> float:
        """When there will be so many units if none is consumed; infinite if never."""
        if units > self.limits.burst:
            return math.inf
        return self.as_of + max(units - self.level, 0.0) / self.limits.per_second


class Node:
    """Units and cores of one machine.

    Services take units away from what is granted: they reserve some, and a manager has a pool that its attempts share.
    Free units can fall below zero when that concerns units which attempts still hold: nothing new is granted until
    enough have come back. A core that is still granted then joins the reserve or the pool when it is given back.

    Quotas are resources too: their capacity is the burst, and what is free of one is what it had at its last refill.

    Attributes:
        capacity: Units by resource, cores included.
        free: Units that can be granted now, by resource.
        reserved: Units taken away by services, by resource: reserves and pools.
        pooled: The pools' part of that.
        pool_cores: The cores of each manager's pool, by manager id.
        reserved_cores: Cores that are not granted to attempts: of reserves and of pools.
        quotas: The resources that are consumed instead of granted and given back.
        managers: Ids of the managers that registered this node.
        changed: Where the node puts itself with each grant and return, so that whoever keeps copies of its books knows
            which are old. Who sets it owns it; there is one at a time.
    """

    def __init__(self, description: NodeDescription) -> None:
        self.node_id = description.node_id
        self.managers: set[str] = set()
        self.changed: set[Node] = set()
        self.quotas: dict[str, TokenBucket] = {}
        self.granted: dict[str, int] = {}
        self.reserved: dict[str, int] = {}
        self.pooled: dict[str, int] = {}
        self.pool_cores: dict[str, tuple[int, ...]] = {}
        self.capacity: dict[str, int] = {}
        self.free: dict[str, int] = {}
        self._kept: dict[str, int] = {}
        self._granted_cores: set[int] = set()
        self.reserved_cores: frozenset[int] = frozenset()
        self._free_cores: list[list[int]] = []
        self.describe(description)

    def describe(self, description: NodeDescription) -> None:
        """Takes over a description; what is granted stays granted."""
        self.description = description
        cores = sum(len(numa) for numa in description.numa_cores)
        bursts = {name: quota.burst for name, quota in description.quotas.items()}
        self.capacity = {**description.capacity, **({CPU: cores} if cores else {}), **bursts}
        self._recount()

    def reserve(self, services: Iterable[Mapping[str, int]], pools: Mapping[str, Mapping[str, int]]) -> None:
        """Sets what the registered services take away.

        Args:
            services: What each of them keeps for itself; cores come from the end of the node's list.
            pools: What each manager shares among its attempts, by manager id. Its cores are the first of the node's
                list that are in no other pool, and stay the same while it has the pool.
        """
        self._kept = _sum(services)
        self.pooled = _sum(pools.values())
        self.reserved = _sum([self._kept, self.pooled])
        in_order = self._in_order()
        others = in_order[: max(len(in_order) - self._kept.get(CPU, 0), 0)]
        self.pool_cores = {owner: cores for owner, cores in self.pool_cores.items() if owner in pools}
        for owner in [owner for owner in pools if owner not in self.pool_cores]:
            elsewhere = {core for cores in self.pool_cores.values() for core in cores}
            left = [core for core in others if core not in elsewhere]
            self.pool_cores[owner] = tuple(left[: pools[owner].get(CPU, 0)])
        self._recount()

    def pools_in_the_way(self, cores: int) -> list[str]:
        """Managers whose pools have one of the cores that would be reserved if so many more were."""
        total = self._kept.get(CPU, 0) + cores
        last = set(self._in_order()[-total:]) if total else set()
        return [owner for owner, pool in self.pool_cores.items() if not last.isdisjoint(pool)]

    def meter(self, buckets: dict[str, TokenBucket]) -> None:
        """Sets what there is of its quotas; one bucket for each that its description names."""
        self.quotas = buckets
        self._recount()

    def refill(self, now: float) -> None:
        """Brings its quotas up to now."""
        for resource, bucket in self.quotas.items():
            bucket.refill(now)
            self.free[resource] = bucket.units

    def bookable(self, units: dict[str, int]) -> dict[str, int]:
        """The part of a grant that is given back one day: all but quotas."""
        quotas = self.quotas
        return {resource: count for resource, count in units.items() if resource not in quotas} if quotas else units

    def consume(self, units: Mapping[str, int]) -> None:
        """Takes what a grant uses up of quotas; it must be there."""
        for resource, bucket in self.quotas.items():
            if resource in units:
                bucket.consume(units[resource])
                self.free[resource] = bucket.units

    def available(self, resource: str) -> int:
        """Units that attempts can have booked at most: capacity less what services take away."""
        return self.capacity.get(resource, 0) - self.reserved.get(resource, 0)

    def fits(self, units: Mapping[str, int]) -> bool:
        """Whether the units are free."""
        free = self.free
        return not units or all(free.get(resource, 0) >= count for resource, count in units.items())

    def could_fit(self, units: Mapping[str, int]) -> bool:
        """Whether the units would be free on an idle node."""
        return all(self.available(resource) >= count for resource, count in units.items())

    def take(self, units: Mapping[str, int]) -> tuple[int, ...]:
        """Grants units that fit and returns the cores chosen for them, within one NUMA node where possible."""
        cores: tuple[int, ...] = ()
        self.changed.add(self)
        for resource, count in units.items():
            self.granted[resource] = self.granted.get(resource, 0) + count
            self.free[resource] = self.free.get(resource, 0) - count
            if resource == CPU:
                cores = self._take_cores(count)
        return cores

    def take_existing(self, units: Mapping[str, int], cores: Iterable[int]) -> tuple[dict[str, int], tuple[int, ...]]:
        """Books what an attempt or a sandbox already holds, fitting or not, and returns what was booked.

        Units and cores that the node has not are left out, and so are cores that were granted again before their holder
        came back: one core has one holder in these books.
        """
        booked = {resource: count for resource, count in units.items() if count > 0 and resource in self.capacity}
        booked = self.bookable(booked)
        own = tuple(core for core in cores if core in self._numa_of and core not in self._granted_cores)
        for resource, count in booked.items():
            self.granted[resource] = self.granted.get(resource, 0) + count
        self._granted_cores.update(own)
        self._recount()
        return booked, own

    def give_back(self, units: Mapping[str, int], cores: Iterable[int]) -> None:
        """Returns granted units and cores."""
        self.changed.add(self)
        for resource, count in units.items():
            left = self.granted.get(resource, 0) - count
            if left:
                self.granted[resource] = left
            else:
                self.granted.pop(resource, None)
            self.free[resource] = self.free.get(resource, 0) + count
        for core in cores:
            self._granted_cores.discard(core)
            if core not in self.reserved_cores:
                self._free_cores[self._numa_of[core]].append(core)

    def _take_cores(self, count: int) -> tuple[int, ...]:
        candidates = [numa for numa in self._free_cores if len(numa) >= count]
        chosen: list[int] = []
        if candidates:
            numa = min(candidates, key=len)
            chosen = [numa.pop() for _ in range(count)]
        else:
            for numa in sorted(self._free_cores, key=len, reverse=True):
                while numa and len(chosen) < count:
                    chosen.append(numa.pop())
        self._granted_cores.update(chosen)
        return tuple(sorted(chosen))

    def _recount(self) -> None:
        self.changed.add(self)
        numa_cores = self.description.numa_cores
        self._numa_of = {core: index for index, numa in enumerate(numa_cores) for core in numa}
        kept = self._kept.get(CPU, 0)
        pooled = [core for cores in self.pool_cores.values() for core in cores]
        self.reserved_cores = frozenset(pooled + (self._in_order()[-kept:] if kept else []))
        taken = self.reserved_cores | self._granted_cores
        # Reversed, so that pop() hands out the lowest core first.
        self._free_cores = [[core for core in reversed(numa) if core not in taken] for numa in numa_cores]
        self.free = {
            resource: units - self.reserved.get(resource, 0) - self.granted.get(resource, 0)
            for resource, units in self.capacity.items()
        }
        for resource, bucket in self.quotas.items():
            self.free[resource] = bucket.units

    def _in_order(self) -> list[int]:
        return [core for numa in self.description.numa_cores for core in numa]

    def free_core_count(self) -> int:
        """Cores that could be handed out now."""
        return sum(len(numa) for numa in self._free_cores)


def _sum(holdings: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for held in holdings:
        for resource, units in held.items():
            total[resource] = total.get(resource, 0) + units
    return total


# What the core keeps of hosted services.


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
        """Whether its engine has room for a sequence of so many tokens. An idle one takes whatever there is."""
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
        """Whether what a grant takes of the shared units is no more than there are."""
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


# Memory of sandboxes by need: booked is what one holds and a share of the rest of its demand.
#
# A sandbox's grant names its demand, which is its limit. Its manager gives it the whole of that only while
# something runs in it, and has others wait meanwhile if the node lacks it; see docs/concepts/rules.md.

ROOM_TO_RUN: Final = 5
"""A sandbox is booked with one part in so many of what it would need beyond what it holds.

Together that is room for those that run at once. In the coding workload something runs in a sandbox for about a sixth
of its life, and rewards run in copies besides. There, at 2 GB a core, more room made trajectories wait to start (3: a
step 8 % longer on one of three seeds), and less made commands wait for memory (6: a mean ACT 16 % longer on one)."""

LEAST_LIVES: Final = 8
"""Sandboxes that must have ended before a new one of their job and label is booked by what they held."""

_LIVES: Final = 128
# What is learned moves in such steps, so that a planner's options seldom become others.
_STEP_MIB: Final = 16
_MOST_LABELS: Final = 4096


def booked_mib(held_mib: int, demand_mib: int) -> int:
    """What is booked of a sandbox's demand for what it holds, in MiB; a sandbox that holds 0 is one not known of."""
    if not 0 < held_mib < demand_mib:
        return demand_mib
    return held_mib - (held_mib - demand_mib) // ROOM_TO_RUN


def units_by_need(kind: ActionKind, units: dict[str, int], new_mib: int) -> dict[str, int]:
    """What a node is booked with for a grant where its sandboxes have memory by need.

    A reward's copy has its memory of the manager alone, as a step has, out of the room that is booked to run in. If it
    were booked besides, it could wait for ever for sandboxes that wait for their own rewards.

    Args:
        kind: Of the action.
        units: The grant.
        new_mib: What is booked of a new sandbox's memory; 0 for its demand.
    """
    if kind is ActionKind.REWARD:
        return {resource: count for resource, count in units.items() if resource != MEMORY}
    return {**units, MEMORY: new_mib} if new_mib and MEMORY in units else units


class HeldMemory:
    """The most that sandboxes held in their lives, by job and label of the reset that made them.

    It is not journaled: after a restart new sandboxes are booked with their demand until enough have ended again.
    """

    def __init__(self) -> None:
        """Starts with nothing known."""
        self._lives: OrderedDict[tuple[str, str], deque[int]] = OrderedDict()
        self._expected: dict[tuple[str, str], int] = {}

    def learn(self, job: str, label: str, most_mib: int) -> None:
        """Takes in the life of a sandbox; of too many labels the one that was not seen for longest is forgotten."""
        key = (job, label)
        lives = self._lives.setdefault(key, deque(maxlen=_LIVES))
        self._lives.move_to_end(key)
        lives.append(most_mib)
        if len(self._lives) > _MOST_LABELS:
            self._expected.pop(self._lives.popitem(last=False)[0], None)
        if len(lives) >= LEAST_LIVES:
            percentile_95 = sorted(lives)[-(-95 * len(lives) // 100) - 1]
            self._expected[key] = -(-percentile_95 // _STEP_MIB) * _STEP_MIB

    def of_new(self, job: str, label: str, demand: Demand) -> int:
        """What is booked of a new sandbox's memory by need, in MiB; 0 where that is nothing but its demand."""
        expected = self._expected.get((job, label))
        return 0 if expected is None else booked_mib(expected, demand.by_need_mib)
