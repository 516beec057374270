"""The books of nodes: units, cores, memory by need, and quotas that time refills."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from callsheet.scheduler.core.state.quotas import TokenBucket
from callsheet.scheduler.core.words.model import CPU
from callsheet.scheduler.core.words.registration import NodeDescription


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
        """Returns whether the units are free."""
        free = self.free
        return not units or all(free.get(resource, 0) >= count for resource, count in units.items())

    def could_fit(self, units: Mapping[str, int]) -> bool:
        """Returns whether the units would be free on an idle node."""
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


def _sum(holdings: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for held in holdings:
        for resource, units in held.items():
            total[resource] = total.get(resource, 0) + units
    return total
