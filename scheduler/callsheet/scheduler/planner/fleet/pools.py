"""The fleet as pools of alike nodes: what is free on each, kept as arrays from round to round.

A pool's nodes have the same capacity and host the same services, so a model needs to know pools only. The arrays have a
row for each node and a column for each thing that can run out there: its resources, the slots of a service, and the
cores that a manager shares among its attempts by itself, which are counted in thousandths and at predicted use.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from callsheet.scheduler.core.state.entities import Manager
from callsheet.scheduler.core.state.ledger import HeldMemory, Node, Service
from callsheet.scheduler.core.state.scheduler_state import ClassKey, SchedulerState, SetUpIndex
from callsheet.scheduler.core.words.model import CPU, ActionKind
from callsheet.scheduler.planner.fleet.placed import PlacedActions
from callsheet.scheduler.planner.question.instance import Floats, Integers, ResourceRow

MILLI = 1000
SHARED_CPU = "shared cpu"
# Cores that a command uses while it runs, where nobody can tell better: commands wait for disks and sockets.
USUAL_USE = 0.64
# A manager that shares its cores ranks its commands by itself, and knows better than a prediction what they use. A
# round only keeps a burst from flooding it: it starts commands until their predicted use is so many times the cores.
SHARED_BURST = 4
# Set-ups whose places a pool knows: each costs a look whenever a node's books change.
MOST_SET_UPS = 64
NO_ROOM = -1


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


class _Likeness(NamedTuple):
    """What alike nodes have in common."""

    capacity: tuple[tuple[str, int], ...]
    hosts: tuple[Host, ...]


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

    def __init__(self) -> None:
        self.pools: list[Pool] = []
        self.row_kinds: list[str] = []
        self.row_capacity: list[int] = []
        self.generation = 0
        self._version = -1
        self._index: dict[Node, tuple[int, int]] = {}
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
        """What is booked of the memory of a sandbox of a class where it is given by need; 0 for its demand."""
        return self._held_memory.of_new(key.job, key.label, key.demand)

    def refresh(self, state: SchedulerState, placed: PlacedActions, cores_of_job: Callable[[str], float]) -> None:
        """Takes over what changed.

        Args:
            state: The core.
            placed: What runs unpinned.
            cores_of_job: Cores that a live trajectory of a job is expected to use.
        """
        self._kept_set_ups, self._held_memory = state.kept_set_ups, state.held_memory
        # Full pools begin anew with the set-ups that are asked for now.
        if self._version != state.fleet_version or any(len(pool.took_s) >= MOST_SET_UPS for pool in self.pools):
            self._rebuild(state)
            placed.keep_only(state.managers)
        cores = functools.cache(cores_of_job)
        for pool, indexes in self._old():
            known = len(pool.brings_in)
            pool.read(indexes, placed, cores)
            if len(pool.brings_in) > known:
                # There are other ways to start something than before.
                self.generation += 1

    def _old(self) -> Iterator[tuple[Pool, list[int]]]:
        """The nodes whose books changed since the last look, by pool."""
        if any(pool.nodes[0].changed is not self._changed for pool in self.pools):
            # Another fleet has looked at them since; what changed before is told to that one.
            self._watch()
        changed = [self._index[node] for node in self._changed | self._metered if node in self._index]
        self._changed.clear()
        by_pool: dict[int, list[int]] = {}
        for number, index in changed:
            by_pool.setdefault(number, []).append(index)
        for number, indexes in sorted(by_pool.items()):
            yield self.pools[number], indexes

    def _watch(self) -> None:
        self._changed = set(self._index)
        for node in self._index:
            node.changed = self._changed

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
                yield ResourceRow(f"{name}@{pool.name}", _kind(name), total, left, other, hold_s=hold_s)

    @property
    def brings_in(self) -> bool:
        """Whether anything on any node needs a set-up."""
        return any(pool.brings_in for pool in self.pools)

    def sandbox_pools(self) -> list[Pool]:
        """Those whose nodes can have sandboxes."""
        return [pool for pool in self.pools if any(ActionKind.ENV_RESET in host.kinds for host in pool.hosts)]

    def _rebuild(self, state: SchedulerState) -> None:
        self._version = state.fleet_version
        self.generation += 1
        alike: dict[_Likeness, Pool] = {}
        for node in state.nodes.values():
            managers = tuple(
                manager
                for manager_id in sorted(node.managers)
                if (manager := state.managers.get(manager_id)) is not None and manager.accepting
            )
            if managers:
                likeness = _Likeness(_capacity(node), _hosts(managers))
                pool = alike.get(likeness)
                if pool is None:
                    pool = alike[likeness] = _new_pool(f"pool-{len(alike)}", likeness)
                pool.nodes.append(node)
                pool.managers.append(managers)
                pool.services.append([managers[host.manager].services[host.service] for host in likeness.hosts])
        self.pools = list(alike.values())
        self._index = {}
        self.row_kinds, self.row_capacity = [], []
        row = 0
        for number, pool in enumerate(self.pools):
            pool.first_row, row = row, row + len(pool.columns)
            self.row_kinds += [_kind(name) for name in pool.columns]
            self.row_capacity += [units * len(pool.nodes) for units in pool.capacity.tolist()]
            pool.free = np.zeros((len(pool.nodes), len(pool.columns)), np.int64)
            pool.load = np.zeros(len(pool.nodes))
            pool.backlog = np.zeros(len(pool.nodes))
            pool.attempts = np.zeros((len(pool.nodes), len(pool.managers[0])), np.int64)
            pool.set_up_s = np.zeros((len(pool.nodes), len(pool.hosts)))
            pool.instances = np.zeros((len(pool.nodes), len(pool.hosts)), np.int64)
            pool.ready = np.ones((len(pool.nodes), len(pool.hosts)), np.int64)
            self._index.update({node: (number, index) for index, node in enumerate(pool.nodes)})
        # By time alone the books of these change.
        self._metered = {node for node in self._index if node.quotas}
        self._watch()


def _no_room(service: Service) -> bool:
    """Whether nothing could begin on it, whatever is free."""
    return service.no_room or service.weights.gated


def _kind(column: str) -> str:
    """Shared cores are cores, too; they are only counted otherwise."""
    return CPU if column.startswith(SHARED_CPU) else column


def _capacity(node: Node) -> tuple[tuple[str, int], ...]:
    pooled = node.pooled
    return tuple(
        (name, node.available(name)) for name in sorted(node.capacity) if node.available(name) > 0 or name not in pooled
    )


def _hosts(managers: tuple[Manager, ...]) -> tuple[Host, ...]:
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


def _new_pool(name: str, likeness: _Likeness) -> Pool:
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
    return Pool(name, likeness.hosts, len(likeness.capacity), tuple(columns), np.array(capacity, np.int64), at)
