"""The fleet as pools of alike nodes: what is free on each, kept as arrays from round to round.

A pool's nodes have the same capacity and host the same services, so a model needs to know pools only. The arrays have a
row for each node and a column for each thing that can run out there: its resources, the slots of a service, and the
cores that a manager shares among its attempts by itself, which are counted in thousandths and at predicted use.
"""

from __future__ import annotations

import copy
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np
from callsheet.scheduler.core.state.entities import Manager
from callsheet.scheduler.core.state.held_memory import HeldMemory
from callsheet.scheduler.core.state.ledger import Node
from callsheet.scheduler.core.state.ready import ClassKey
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.services import Service
from callsheet.scheduler.core.state.set_up_index import SetUpIndex
from callsheet.scheduler.core.words.model import CPU, ActionKind
from callsheet.scheduler.planner.fleet.likeness import (
    SHARED_CPU,
    Host,
    Likeness,
    capacity_of,
    hosts_of,
    kind_of,
    slot_column,
)
from callsheet.scheduler.planner.fleet.placed import PlacedActions
from callsheet.scheduler.planner.question.instance import Floats, Integers, ResourceRow

MILLI = 1000
# Cores that a command uses while it runs, where nobody can tell better: commands wait for disks and sockets.
USUAL_USE = 0.64
# A manager that shares its cores ranks its commands by itself, and knows better than a prediction what they use. A
# round only keeps a burst from flooding it: it starts commands until their predicted use is so many times the cores.
SHARED_BURST = 4
# Set-ups whose places a pool knows: each costs a look whenever a node's books change.
MOST_SET_UPS = 64
NO_ROOM = -1
# What a pool knows by node: rows of arrays.
_BY_NODE = ("free", "load", "backlog", "attempts", "set_up_s", "ready", "instances")
_NODES_PER_PART = 128


@dataclass(slots=True, eq=False)
class Pool:
    """Alike nodes.

    Attributes:
        name: For a reader, and for questions about more nodes of it.
        hosts: Services of each node; behind them the same with set-ups that are kept on some, as they are asked for.
        resources: How many of the columns are the node's own resources; they come first.
        columns: Names of what can run out, in the order of `free`.
        capacity: Units of each column on one node, shape (columns,).
        shared: (column, cores) that a manager shares, by its place on the node.
        nodes: The nodes.
        managers: The accepting managers of each node.
        services: The service behind each host, by node.
        free: Units free now, shape (nodes, columns); below 0 where more is held than there is.
        load: Cores that a node's live trajectories are expected to use, shape (nodes,).
        set_up_s: What an attempt sent to a node now waits for before it can begin there, shape (nodes, hosts).
        ready: Attempts that need not wait for it, of services that bring in instances; `NO_ROOM` where none can come.
        instances: Instances of such services that are there, busy or not, shape (nodes, hosts).
        brings_in: Hosts that were seen to need such set-ups.
        batched: Hosts of which a node has one instance at most, which serves several attempts at once.
        took_s: Seconds that a set-up takes where it is not kept, by its host.
        backlog: Weight that shares each node's cores beyond what they can serve at once, shape (nodes,).
        attempts: How many run on each node's managers, shape (nodes, managers of a node).
        first_row: Index of the first column among the rows of an instance.
    """

    name: str
    hosts: tuple[Host, ...]
    resources: int
    columns: tuple[str, ...]
    capacity: Integers
    shared: dict[int, tuple[int, int]] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    managers: list[tuple[Manager, ...]] = field(default_factory=list)
    services: list[list[Service]] = field(default_factory=list)
    free: Integers = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    load: Floats = field(default_factory=lambda: np.zeros(0))
    backlog: Floats = field(default_factory=lambda: np.zeros(0))
    attempts: Integers = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    set_up_s: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    ready: Integers = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    instances: Integers = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    brings_in: set[int] = field(default_factory=set)
    batched: set[int] = field(default_factory=set)
    took_s: dict[int, float] = field(default_factory=dict)
    first_row: int = 0

    def read(self, changed: Sequence[int], placed: PlacedActions, cores: Callable[[str], float]) -> None:
        """Takes over the books of some nodes.

        Args:
            changed: Indexes of the nodes.
            placed: What runs unpinned.
            cores: Cores that a live trajectory of a job is expected to use.
        """
        # Twice as fast as asking for one after the other; one more name makes it return a tuple.
        own = itemgetter(*self.columns[: self.resources], self.columns[0]) if self.resources else None
        slotted = [place for place, host in enumerate(self.hosts) if host.slots and not host.set_up]
        rows: list[list[int]] = []
        loads: list[float] = []
        backlogs: list[float] = []
        attempts: list[list[int]] = []
        unready: list[tuple[int, int, Service]] = []
        for index in changed:
            managers = self.managers[index]
            row = list(own(self.nodes[index].free)[:-1]) if own is not None else []
            services = self.services[index]
            for place in slotted:
                offered = services[place]
                row.append(0 if offered.weights.gated else offered.description.slots - offered.busy)
            for place, service in enumerate(services):
                if service.setup_s or service.instances or _no_room(service) or place in self.brings_in:
                    self.brings_in.add(place)
                    unready.append((index, place, service))
            load = backlog = 0.0
            for number, manager in enumerate(managers):
                running = placed.settle(manager)
                load += running.load
                for job, _ in manager.sandboxes:
                    load += cores(job)
                if number in self.shared:
                    column, shared = self.shared[number]
                    row.insert(column, SHARED_BURST * shared * MILLI - running.milli_use)
                    backlog += max(len(manager.attempts) - shared / USUAL_USE, 0.0)
            rows.append(row)
            loads.append(load)
            backlogs.append(backlog)
            attempts.append([len(manager.attempts) for manager in managers])
        at = np.array(changed)
        self.free[at], self.load[at], self.backlog[at], self.attempts[at] = rows, loads, backlogs, attempts
        for index, place, service in unready:
            self._read_set_up(index, place, service)

    def _read_set_up(self, index: int, place: int, service: Service) -> None:
        if service.instance_slots:
            self.batched.add(place)
        set_up, waits, at_once = self.hosts[place].set_up, service.setup_s, service.at_once - service.busy
        if set_up:
            at_once = self._idle_room(index) if set_up in service.kept_set_ups else 0
            waits += 0.0 if at_once else self.took_s[place]
        self.set_up_s[index, place] = waits
        self.instances[index, place] = max(service.instances, service.busy)
        # Where an attempt could begin at once, at least one can; each of several needs an instance of its own.
        self.ready[index, place] = NO_ROOM if _no_room(service) else 0 if waits else max(at_once, 1)

    def _idle_room(self, index: int) -> int:
        """How many more trajectories a node has cores for; to crowd it would cost more than a set-up elsewhere."""
        return max(math.ceil((self.cores - float(self.load[index])) / USUAL_USE), 0)

    @property
    def cores(self) -> int:
        """Cores of one node, booked and shared ones."""
        own = int(self.capacity[self.column(CPU)]) if CPU in self.columns else 0
        return own + sum(shared for _, shared in self.shared.values())

    @property
    def idle_cores(self) -> float:
        """Cores of all nodes that nothing is booked on, or expected to use where they are shared."""
        idle = float(np.maximum(self.free[:, self.column(CPU)], 0).sum()) if CPU in self.columns else 0.0
        for column, cores in self.shared.values():
            beyond = (SHARED_BURST - 1) * cores * MILLI
            idle += float(np.clip(self.free[:, column] - beyond, 0, cores * MILLI).sum()) / MILLI
        return idle

    def add_set_up(self, service: int, set_up: str, took_s: float) -> int:
        """Returns the place of a host for a set-up, which is added if it is new.

        Args:
            service: Place of the host without it.
            set_up: Its name.
            took_s: Seconds that it takes where it is not kept.
        """
        host = self.hosts[service]._replace(set_up=set_up)
        if host in self.hosts:
            return self.hosts.index(host)
        place = len(self.hosts)
        self.hosts += (host,)
        self.took_s[place] = took_s
        self.brings_in.add(place)
        for name in ("set_up_s", "instances", "ready"):
            before = getattr(self, name)
            setattr(self, name, np.column_stack([before, np.zeros(len(self.nodes), before.dtype)]))
        for index, services in enumerate(self.services):
            services.append(services[service])
            self._read_set_up(index, place, services[service])
        return place

    def cold_s(self, place: int) -> float | None:
        """Shortest set-up of a service on the nodes that need one; None if none does."""
        waits = self.set_up_s[:, place]
        return float(waits[waits > 0.0].min()) if (waits > 0.0).any() else None

    def column(self, name: str) -> int:
        """Index of a column; -1 if nodes of the pool have no such thing."""
        return self.columns.index(name) if name in self.columns else -1


class Fleet:
    """All pools; `refresh` brings them up to a state of the core.

    Attributes:
        pools: The pools.
        row_kinds: Kind of each row that they make in an instance, pool by pool and column by column.
        row_capacity: Units of each.
        generation: Grows when pools, or the ways to use them, are others than before.
    """

    def __init__(self, *, watches: bool = True) -> None:
        """Starts empty.

        Args:
            watches: Whether it looks time and again, and has nodes tell it what changed. One fleet of a core can.
        """
        self.pools: list[Pool] = []
        self.row_kinds: list[str] = []
        self.row_capacity: list[int] = []
        self.generation = 0
        self._watches = watches
        self._followed: SchedulerState | None = None
        self._version = -1
        self._alike: dict[Likeness, Pool] = {}
        self._index: dict[Node, tuple[Pool, int]] = {}
        self._changed: set[Node] = set()
        self._metered: set[Node] = set()
        self._kept_set_ups = SetUpIndex()
        self._held_memory = HeldMemory()

    def place_with(self, pool: Pool, service: int, set_up: str) -> int:
        """Place of a service, with what it takes to begin with a set-up there; without, if too many are asked for.

        Args:
            pool: One of the pools.
            service: Place of the service among its hosts.
            set_up: Name of a set-up; empty for none.
        """
        if not set_up or len(pool.took_s) >= MOST_SET_UPS:
            return service
        return pool.add_set_up(service, set_up, self._kept_set_ups.took_s(set_up))

    def memory_of_new(self, key: ClassKey) -> int:
        """Returns the memory booked for a sandbox of a class where memory is given by need; 0 for its demand."""
        return self._held_memory.of_new(key.job, key.label, key.demand)

    def refresh(self, state: SchedulerState, placed: PlacedActions, cores_of_job: Callable[[str], float]) -> None:
        """Takes over what changed.

        Args:
            state: The core.
            placed: What runs unpinned.
            cores_of_job: Cores that a live trajectory of a job is expected to use.
        """
        self._kept_set_ups, self._held_memory = state.kept_set_ups, state.held_memory
        # Another core has other nodes. Full pools begin anew with the set-ups that are asked for now.
        if state is not self._followed or any(len(pool.took_s) >= MOST_SET_UPS for pool in self.pools):
            self._followed, self._version = state, -1
        if self._version != state.fleet_version:
            self._follow(state)
            placed.keep_only(state.managers)
        self._read(placed, functools.cache(cores_of_job))

    def look_once(
        self, state: SchedulerState, placed: PlacedActions, cores_of_job: Callable[[str], float]
    ) -> Iterator[None]:
        """Does as `refresh`, in parts: nodes that come or go between them may be in it or not. For one that is new."""
        self._kept_set_ups, self._held_memory = state.kept_set_ups, state.held_memory
        cores, nodes = functools.cache(cores_of_job), list(state.nodes.values())
        for first in range(0, len(nodes), _NODES_PER_PART):
            self._put(state, nodes[first : first + _NODES_PER_PART])
            self._read(placed, cores)
            yield
        self._count_rows()

    def _read(self, placed: PlacedActions, cores: Callable[[str], float]) -> None:
        """Reads the books that changed."""
        for pool, indexes in self._old():
            known = len(pool.brings_in)
            pool.read(indexes, placed, cores)
            if len(pool.brings_in) > known:
                # There are other ways to start something than before.
                self.generation += 1

    def _old(self) -> Iterator[tuple[Pool, list[int]]]:
        """The nodes whose books changed since the last look, by pool."""
        if self._watches and any(pool.nodes[0].changed is not self._changed for pool in self.pools):
            # Another fleet has looked at them since; what changed before is told to that one.
            self._changed = set(self._index)
            for node in self._index:
                node.changed = self._changed
        changed = [self._index[node] for node in self._changed | self._metered if node in self._index]
        self._changed.clear()
        by_pool: dict[Pool, list[int]] = {}
        for pool, index in changed:
            by_pool.setdefault(pool, []).append(index)
        for pool in self.pools:
            if pool in by_pool:
                yield pool, by_pool[pool]

    def resources(self, free: Sequence[Integers], hold_s: float) -> Iterator[ResourceRow]:
        """The rows of an instance: every column of every pool.

        Args:
            free: What the round may use of each pool, as `Pool.free`.
            hold_s: How long units are held on average.
        """
        for pool, units_of_nodes in zip(self.pools, free, strict=True):
            units = np.maximum(units_of_nodes, 0).sum(axis=0).tolist()
            crowd = float(pool.backlog.sum())
            for name, left, capacity in zip(pool.columns, units, pool.capacity.tolist(), strict=True):
                other = crowd if name.startswith(SHARED_CPU) else 0.0
                total = capacity * len(pool.nodes)
                yield ResourceRow(f"{name}@{pool.name}", kind_of(name), total, left, other, hold_s=hold_s)

    @property
    def brings_in(self) -> bool:
        """Returns whether anything on any node needs a set-up."""
        return any(pool.brings_in for pool in self.pools)

    def sandbox_pools(self) -> list[Pool]:
        """Those whose nodes can have sandboxes."""
        return [pool for pool in self.pools if any(ActionKind.ENV_RESET in host.kinds for host in pool.hosts)]

    def _follow(self, state: SchedulerState) -> None:
        """Takes over which nodes came, went or take work now: those alone, where the core remembers which they are."""
        nodes = state.nodes_changed_since(self._version)
        if nodes is not None:
            self._take_out(nodes)
        if nodes is None or not all(pool.nodes for pool in self.pools):
            self.pools, self._alike, self._index = [], {}, {}
            self._changed, self._metered = set(), set()
            nodes = list(state.nodes.values())
        self._version = state.fleet_version
        self._put(state, [node for node in nodes if state.nodes.get(node.node_id) is node])
        self._count_rows()

    def grown(self, pool: Pool, idle: Pool, more: int) -> Fleet:
        """A fleet that has more nodes, all idle, in one of its pools. It is for looking once.

        Args:
            pool: One of the pools.
            idle: Has one node, which is like those of that pool.
            more: How many.
        """
        larger = copy.copy(self)
        larger.pools = [
            replace(
                each,
                services=[*map(list, each.services)],
                brings_in=set(each.brings_in),
                batched=set(each.batched),
                took_s=dict(each.took_s),
            )
            for each in self.pools
        ]
        grown = larger.pools[self.pools.index(pool)]
        grown.nodes, grown.managers = pool.nodes + more * idle.nodes, pool.managers + more * idle.managers
        grown.services += [list(idle.services[0]) for _ in range(more)]
        for name in _BY_NODE:
            further = np.repeat(getattr(idle, name), more, axis=0)
            setattr(grown, name, np.concatenate([getattr(pool, name), further]))
        larger._count_rows()
        return larger

    def _take_out(self, nodes: Iterable[Node]) -> None:
        """Takes nodes out of their pools; the last of a pool takes the place of one that goes."""
        for node in nodes:
            pool, index = self._index.pop(node, (None, 0))
            if pool is None:
                continue
            self._metered.discard(node)
            last = len(pool.nodes) - 1
            lists: tuple[list[Any], ...] = (pool.nodes, pool.managers, pool.services)
            for rows in lists:
                rows[index] = rows[last]
                rows.pop()
            for name in _BY_NODE:
                units = getattr(pool, name)
                units[index] = units[last]
                setattr(pool, name, units[:last])
            if index < last:
                self._index[pool.nodes[index]] = pool, index

    def _put(self, state: SchedulerState, nodes: Iterable[Node]) -> None:
        """Puts nodes that can be given work into the pools of those that are like them; their books are read next."""
        more: Counter[Pool] = Counter()
        for node in nodes:
            managers = tuple(
                manager
                for manager_id in sorted(node.managers)
                if (manager := state.managers.get(manager_id)) is not None and manager.accepting
            )
            if not managers:
                continue
            likeness = Likeness(capacity_of(node), hosts_of(managers))
            pool = self._alike.get(likeness)
            if pool is None:
                pool = self._alike[likeness] = _new_pool(f"pool-{len(self.pools)}", likeness, len(managers))
                self.pools.append(pool)
            self._index[node] = pool, len(pool.nodes)
            pool.nodes.append(node)
            pool.managers.append(managers)
            pool.services.append([managers[host.manager].services[host.service] for host in pool.hosts])
            more[pool] += 1
            self._changed.add(node)
            if self._watches:
                node.changed = self._changed
            if node.quotas:
                # By time alone the books of these change.
                self._metered.add(node)
        for pool, count in more.items():
            for name in _BY_NODE:
                units = getattr(pool, name)
                setattr(pool, name, np.concatenate([units, np.zeros((count, *units.shape[1:]), units.dtype)]))
            pool.ready[-count:] = 1

    def _count_rows(self) -> None:
        """Each pool has rows in an instance, which there are others of now."""
        self.generation += 1
        self.row_kinds, self.row_capacity = [], []
        for pool in self.pools:
            pool.first_row = len(self.row_kinds)
            self.row_kinds += [kind_of(name) for name in pool.columns]
            self.row_capacity += [units * len(pool.nodes) for units in pool.capacity.tolist()]


def _no_room(service: Service) -> bool:
    """Returns whether nothing could begin on a service, whatever is free."""
    return service.no_room or service.weights.gated


def _new_pool(name: str, likeness: Likeness, managers: int) -> Pool:
    columns = [resource for resource, _ in likeness.capacity]
    capacity = [units for _, units in likeness.capacity]
    for host in likeness.hosts:
        if host.slots:
            columns.append(slot_column(host))
            capacity.append(host.slots)
    shared: dict[int, int] = {}
    for host in likeness.hosts:
        for resource, units in host.shared:
            if resource == CPU:
                shared[host.manager] = max(units, shared.get(host.manager, 0))
    at = {manager: (len(columns) + place, cores) for place, (manager, cores) in enumerate(shared.items())}
    columns += [f"{SHARED_CPU}/{manager}" for manager in shared]
    capacity += [cores * MILLI for cores in shared.values()]
    pool = Pool(name, likeness.hosts, len(likeness.capacity), tuple(columns), np.array(capacity, np.int64), at)
    pool.free = np.zeros((0, len(columns)), np.int64)
    pool.attempts = np.zeros((0, managers), np.int64)
    pool.set_up_s, pool.instances = np.zeros((0, len(pool.hosts))), np.zeros((0, len(pool.hosts)), np.int64)
    pool.ready = np.ones((0, len(pool.hosts)), np.int64)
    return pool
