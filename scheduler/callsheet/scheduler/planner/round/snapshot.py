"""From the core's state to a planning instance, at the cost of classes and pools, never of actions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
from callsheet.scheduler.core.state.entities import Action
from callsheet.scheduler.core.state.ready import ClassKey, ReadyClass
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import ResourceDemand
from callsheet.scheduler.planner.fleet.likeness import Place
from callsheet.scheduler.planner.fleet.offers import (
    fitting,
    make_offer,
    nearest_node,
    need_of,
    nodes_with_room,
    place_of,
    room_on,
)
from callsheet.scheduler.planner.fleet.placement import NOTHING, Frees
from callsheet.scheduler.planner.fleet.pools import Fleet
from callsheet.scheduler.planner.question.instance import (
    Integers,
    JobShare,
    Option,
    OptionBlock,
    PlanningClass,
    PlanningInstance,
    ResourceRow,
)
from callsheet.scheduler.planner.round.competition import Servable
from callsheet.scheduler.planner.round.estimates import Estimates, duration_of_size
from callsheet.scheduler.planner.round.holding import kept_by_trajectories
from callsheet.scheduler.planner.round.lateness import (
    backlog_s,
    first_members,
    hold_after_s,
    late_after_s,
    late_members,
    longest_wait_s,
)
from callsheet.scheduler.planner.round.options import Chunk, Estimate, Ready, Rows, option_block
from callsheet.scheduler.planner.round.residency import Claims, Waiting, some_there

# Pools of more nodes than this are taken as one heap of units, but for their chunks.
EXACT_POOL_NODES = 32
BLOCK_LIFE_S = 10.0
# Multiples of it, modulo 1, spread evenly however many there are.
GOLDEN_RATIO = 0.618033988749895
MOST_BLOCKS = 4096
NO_LIMIT = 1 << 40


class ClassPart(NamedTuple):
    """The members of a class that have waited so long that their duration hardly counts any more, or the others."""

    key: ClassKey
    late: bool

    def __str__(self) -> str:
        return f"late {describe(self.key)}" if self.late else describe(self.key)


def describe(key: ClassKey) -> str:
    """A class in words; its demand tells it from others of its name."""
    size = f" ~{duration_of_size(key.size):.3g} s" if key.size else ""
    units = ", ".join(f"{_units(entry)} {entry.resource}" for entry in key.demand.entries if entry.max_units)
    demand = f" with {units}" if units else ""
    return f"{key.kind.name.lower()} {key.label or key.service or 'any'} of {key.job}{size}{demand}"


def _units(entry: ResourceDemand) -> str:
    return f"{entry.min_units} to {entry.max_units}" if entry.elastic else str(entry.min_units)


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A planning question.

    Attributes:
        members: The ready class behind each class of the instance.
        free: What is free on the nodes of each pool and not kept for anybody.
        kept_for: By pool, the action for which a node there is kept.
        claimed: What each class of the instance must leave to others where it would bring an instance in.
        generation: Of the fleet; pools of another one are other pools.
    """

    instance: PlanningInstance
    members: tuple[ReadyClass, ...]
    free: Frees
    kept_for: Mapping[int, Action]
    claimed: tuple[Frees, ...]
    generation: int


class _Kept(NamedTuple):
    """The options of a class, since when they count as made, and what they were made with."""

    made_at: float
    estimate: Estimate
    block: OptionBlock
    set_ups: tuple[float | None, ...]


class Room(NamedTuple):
    """Free units on the nodes of each pool that are not kept, and by pool the action for which a node is kept."""

    free: Frees
    kept_for: Mapping[int, Action]


def set_ups_of(fleet: Fleet, block: OptionBlock) -> tuple[float | None, ...]:
    """Returns the set-ups that the options of a class would need now, by place."""
    if not fleet.brings_in:
        return ()
    places = dict.fromkeys(place_of(option) for option in block.options)
    pools = [(fleet.pools[place.pool], place.host) for place in places]
    return tuple(pool.cold_s(host) for pool, host in pools if host in pool.brings_in)


class Snapshots:
    """Makes snapshots; keeps the options of classes while the fleet is the same."""

    def __init__(self, estimates: Estimates, *, dispatch_cap: int, ageing: float, hold_after: float) -> None:
        """Starts with none; see `ElasticSettings` for which members a round looks at."""
        self._estimates = estimates
        self._dispatch_cap = dispatch_cap
        self._ageing = ageing
        self._hold_after = hold_after
        self._generation = -1
        self._rows = Rows(0)
        self._blocks: dict[ClassKey, _Kept] = {}

    def take(
        self,
        state: SchedulerState,
        servable: Sequence[Servable],
        fleet: Fleet,
        *,
        cap: int,
        now: float,
        held: Mapping[str, Mapping[str, int]],
    ) -> Snapshot:
        """The planning question of now.

        Args:
            state: The core.
            servable: The ready classes to ask about.
            fleet: Refreshed for it.
            cap: Most members to start.
            now: Seconds since the epoch.
            held: Units that jobs hold, by job and resource, for fair shares.
        """
        (free, kept_for), waiting = self._room_and_waiting(fleet, servable, now)
        claims = Claims(fleet, free, waiting)
        limits = _Limits(fleet, free)
        parts = [(each.servable.ready, part) for each in waiting for part in _parts(each, claims, limits)]
        classes = tuple(part for _, part in parts)
        instance = PlanningInstance(
            tuple(self._resources(fleet, free, classes)),
            classes,
            _shares(state, classes, held),
            dispatch_cap=cap,
        )
        members = tuple(ready for ready, _ in parts)
        claimed = tuple(_claimed(part, claims) for part in classes)
        return Snapshot(instance, members, free, kept_for, claimed, fleet.generation)

    def free_units(self, fleet: Fleet) -> Integers:
        """Returns the free units of each row, and endless ones for "no row", which an index of -1 finds."""
        free = [pool.free for pool in fleet.pools]
        own = [np.maximum(units, 0).sum(axis=0) for units in free]
        further = [row.free for row in self._further_rows(fleet, free, 0.0)]
        return np.concatenate([*own, np.array([*further, 1 << 50], np.int64)])

    def renew(self, snapshot: Snapshot, fleet: Fleet, now: float) -> Snapshot:
        """A snapshot with what is free now; the fleet's pools must be the same."""
        servable = self.servable(dict.fromkeys(snapshot.members), fleet, now)
        (free, kept_for), waiting = self._room_and_waiting(fleet, servable, now)
        claims = Claims(fleet, free, waiting)
        claimed = tuple(_claimed(part, claims) for part in snapshot.instance.classes)
        return replace(snapshot, free=free, kept_for=kept_for, claimed=claimed)

    def servable(self, ready_classes: Iterable[ReadyClass], fleet: Fleet, now: float) -> list[Servable]:
        """Those of some classes that can be started in a fleet at all."""
        found = []
        since, sets_up = now - BLOCK_LIFE_S, fleet.brings_in
        self._keep_up_with(fleet)
        for ready in ready_classes:
            kept = self._blocks.get(ready.key)
            old = kept is None or kept.made_at < since or sets_up
            old = old or (kept is not None and kept.estimate.memory_mib != fleet.memory_of_new(ready.key))
            block = self.block(ready.key, fleet, now) if kept is None or old else kept.block
            if block.options:
                found.append(Servable(ready, block))
        return found

    def block(self, key: ClassKey, fleet: Fleet, now: float) -> OptionBlock:
        """The options of a class, made anew now and then so that they follow what predictors learn."""
        self._keep_up_with(fleet)
        kept, memory_mib = self._blocks.get(key), fleet.memory_of_new(key)
        same = kept is not None and (kept.set_ups, kept.estimate.memory_mib) == (
            set_ups_of(fleet, kept.block),
            memory_mib,
        )
        if kept is None or now - kept.made_at > BLOCK_LIFE_S or not same:
            if len(self._blocks) >= MOST_BLOCKS:
                self._blocks.clear()
            # Those made in one round do not all grow old in another: the first life of each is cut by another share.
            sooner_s = BLOCK_LIFE_S * (len(self._blocks) * GOLDEN_RATIO % 1.0) if kept is None else 0.0
            estimate = self._estimates.of_class(key)._replace(memory_mib=memory_mib)
            if kept is not None and same and estimate.is_like(kept.estimate):
                kept = self._blocks[key] = kept._replace(made_at=now)
            else:
                block = option_block(key, estimate, fleet, self._rows)
                kept = self._blocks[key] = _Kept(now - sooner_s, estimate, block, set_ups_of(fleet, block))
        return kept.block

    def _keep_up_with(self, fleet: Fleet) -> None:
        if self._generation != fleet.generation:
            columns = sum(len(pool.columns) for pool in fleet.pools)
            self._generation, self._rows, self._blocks = fleet.generation, Rows(columns), {}

    def _room_and_waiting(self, fleet: Fleet, servable: Sequence[Servable], now: float) -> tuple[Room, list[Waiting]]:
        """Returns the free units on each node that are not held, and the waiting actions with those beside them."""
        backlogs = backlog_s(fleet, servable)
        most = self._dispatch_cap
        waits = [_longest_wait_s(ready, most, now) for ready, _ in servable]
        room = held_back(fleet, servable, backlogs, waits, self._hold_after)
        waiting = [self._waiting(*each, now) for each in zip(servable, backlogs, waits, strict=True)]
        return room, waiting

    def _waiting(self, servable: Servable, backlog: float, longest_s: float, now: float) -> Waiting:
        ready, block = servable
        late_after = late_after_s(block.shortest_s, self._ageing, backlog)
        if longest_s <= late_after:
            return Waiting(servable, 0, 0.0)
        late = late_members(first_members(ready, self._dispatch_cap), late_after, now)
        return Waiting(servable, late, longest_s - late_after)

    def _resources(self, fleet: Fleet, free: Frees, classes: Sequence[PlanningClass]) -> Iterator[ResourceRow]:
        durations = [each.block.shortest_s for each in classes]
        hold_s = sum(durations) / max(len(durations), 1)
        yield from fleet.resources(free, hold_s)
        yield from self._further_rows(fleet, free, hold_s)

    def _further_rows(self, fleet: Fleet, free: Frees, hold_s: float) -> Iterator[ResourceRow]:
        for row in self._rows.further:
            yield _chunks(fleet, row, free) if isinstance(row, Chunk) else _ready(fleet, row, hold_s)


def _longest_wait_s(ready: ReadyClass, most: int, now: float) -> float:
    """See `longest_wait_s`; nobody has waited longer than a first member that was never tried."""
    head = ready.head()
    if head is not None and not head.attempts:
        return max(now - head.queued_since, 0.0)
    return longest_wait_s(first_members(ready, most), now)


def _chunks(fleet: Fleet, row: Chunk, free: Frees) -> ResourceRow:
    pool = fleet.pools[row.pool]
    kind = f"{pool.columns[row.column]}>={row.width}"
    whole = int((np.maximum(free[row.pool][:, row.column], 0) // row.width).sum())
    total = int(pool.capacity[row.column]) // row.width * len(pool.nodes)
    return ResourceRow(f"{kind}@{pool.name}", kind, total, whole, priced=False)


def _ready(fleet: Fleet, row: Ready, hold_s: float) -> ResourceRow:
    pool = fleet.pools[row.pool]
    kind = f"{pool.hosts[row.host].service} there"
    ready = int(np.maximum(pool.ready[:, row.host], 0).sum())
    there = max(int(pool.instances[:, row.host].sum()), ready)
    return ResourceRow(f"{kind}@{pool.name}", kind, there, ready, hold_s=hold_s, priced=False)


def held_back(
    fleet: Fleet, waiting: Sequence[Servable], backlogs: Sequence[float], waits: Sequence[float], hold_after: float
) -> Room:
    """Returns the free units of each node, less those kept for actions that wait too long and fit nowhere.

    In each pool the one that came first counts. If it fits nowhere, the node that lacks the least keeps what it has of
    what the action needs, so that nothing that fits an idle node starves.
    """
    free = [pool.free.copy() for pool in fleet.pools]
    overdue = []
    for (ready, block), backlog, longest_s in zip(waiting, backlogs, waits, strict=True):
        head = ready.head()
        if head is None or longest_s < hold_after_s(hold_after, backlog):
            continue
        if not some_there(fleet, block):
            overdue.append((ready.key.priority, head.arrival, head, block))
    kept_for: dict[int, Action] = {}
    considered: set[int] = set()
    for _, _, head, block in sorted(overdue, key=lambda each: each[:2]):
        needs = {
            place_of(option): need_of(option, fleet.pools[place_of(option).pool]) for option in reversed(block.options)
        }
        pools = {place.pool for place in needs}
        if considered.isdisjoint(pools) and not any(
            fitting(free[place.pool], need).any() for place, need in needs.items()
        ):
            kept_for[_hold_nearest(fleet, free, needs)] = head
        considered |= pools
    return Room(free, kept_for)


def _hold_nearest(fleet: Fleet, free: Frees, needs: Mapping[Place, Integers]) -> int:
    """Keeps what the nearest node has, and returns the number of its pool."""
    number, node, need = nearest_node(fleet.pools, free, [(place.pool, need) for place, need in needs.items()])
    pool = fleet.pools[number]
    short = need > free[number][node]
    kept = kept_by_trajectories(pool.managers[node])
    lasting = short & np.array([column in kept for column in pool.columns])
    # See `holding`: what trajectories keep is held alone for as long as it is short.
    free[number][node, lasting if lasting.any() else need > 0] = 0
    return number


def _parts(waiting: Waiting, claims: Claims, limits: _Limits) -> Iterator[PlanningClass]:
    """A class as planning classes: those of its members that are late, and the others."""
    (ready, block), late, overdue_s = waiting
    key, weight = ready.key, ready.weight / ready.count
    for is_late, count in ((True, late), (False, ready.count - late)) if late else ((False, ready.count),):
        most = limits.of(block, claims.on(key.job, key.priority, late=is_late))
        overdue = overdue_s if is_late else 0.0
        yield PlanningClass(ClassPart(key, is_late), key.job, int(key.priority), count, weight, block, most, overdue)


def _claimed(part: PlanningClass, claims: Claims) -> Frees:
    return claims.on(part.job, part.priority, late=part.overdue_s > 0.0)


@cache
def _unlimited(options: int) -> Integers:
    """Not to be changed."""
    return np.full(options, NO_LIMIT, np.int64)


class _Limits:
    """Most members that options could start alone; exact for small pools, where fragments matter most."""

    def __init__(self, fleet: Fleet, free: Frees) -> None:
        """Starts from what is free."""
        self._pools = fleet.pools
        self._free = free
        self._small = [len(pool.nodes) <= EXACT_POOL_NODES for pool in fleet.pools]
        self._some_small = any(self._small)
        self._known: dict[Hashable, int] = {}

    def of(self, block: OptionBlock, claimed: Frees) -> Integers:
        """Returns the most starts of each option of a class that leave claimed units to the calls that claim them."""
        if not claimed and not self._some_small:
            return _unlimited(len(block.options))
        return np.array([self._most(option, claimed) for option in block.options], np.int64)

    def _most(self, option: Option, claimed: Frees) -> int:
        place = place_of(option)
        claims = claimed if claimed and option.setup_s > 0.0 else NOTHING
        if not claims and not self._small[place.pool]:
            return NO_LIMIT
        # Options of other classes take the same.
        alike = (place.pool, place.host, option.setup_s > 0.0, id(claims), option.charges)
        known = self._known.get(alike)
        if known is None:
            pool = self._pools[place.pool]
            offer = make_offer(option, pool)
            left = self._free[place.pool] - claims[place.pool] if claims else self._free[place.pool]
            nodes = nodes_with_room(offer, pool, left, pool.ready)
            known = self._known[alike] = min(int(room_on(nodes, offer, pool, left, pool.ready).sum()), NO_LIMIT)
        return known


def _shares(
    state: SchedulerState, classes: Sequence[PlanningClass], held: Mapping[str, Mapping[str, int]]
) -> dict[str, JobShare]:
    jobs = {each.job for each in classes}
    if len(jobs) < 2:
        return {}
    return {job: JobShare(state.jobs[job].request.weight, held.get(job, {})) for job in jobs}
