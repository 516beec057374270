"""From counts to concrete actions: which member starts on which node.

New sandboxes go to the node with the fewest live trajectories, weighted by the cores these are expected to use, and
siblings are spread apart: they do the same things at the same time. What shares a node's cores is spread too. What is
booked core by core is packed, so that wide actions find room. The scheduler's books then choose cores within one NUMA
node.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from callsheet.scheduler.core.entities import Action, Manager, Trajectory
from callsheet.scheduler.core.model import ActionKind
from callsheet.scheduler.core.ready import ClassKey
from callsheet.scheduler.planner.instance import Integers, Option
from callsheet.scheduler.planner.pools import SHARED_CPU, Fleet, Place, Pool

# What is free on the nodes of each pool, as `Pool.free`.
Frees = list[Integers]
PLENTY = 1 << 40
# Trying further for a node without a sibling or an earlier failure is not worth more.
MOST_TRIES = 8


class Placed(NamedTuple):
    """A member on a node."""

    action: Action
    option: Option
    place: Place
    node: int


def place_of(option: Option) -> Place:
    """Where an option of a fleet is."""
    if not isinstance(option.place, Place):
        raise TypeError(f"{option.place!r} is not a place of a fleet")
    return option.place


def need_of(option: Option, pool: Pool) -> Integers:
    """What a member takes of each column of its pool."""
    need = np.zeros(len(pool.columns), np.int64)
    for row, units in option.charges:
        if pool.first_row <= row < pool.first_row + len(pool.columns):
            need[row - pool.first_row] = units
    return need


def shared_use(option: Option, pool: Pool) -> int:
    """Thousandths of the cores that a manager shares which a member is expected to use."""
    own = pool.columns[pool.resources :]
    shared = {pool.first_row + pool.resources + at for at, name in enumerate(own) if name.startswith(SHARED_CPU)}
    return sum(units for row, units in option.charges if row in shared)


def fitting(free: Integers, need: Integers) -> Integers:
    """How many members with a need fit on each node, shape (nodes,)."""
    charged = np.flatnonzero(need)
    if not len(charged):
        return np.full(len(free), PLENTY, np.int64)
    fits: Integers = np.maximum((free[:, charged] // need[charged]).min(axis=1), 0)
    return fits


class _Entry(NamedTuple):
    """A node that has room by an offer; the one of the lowest rank comes first."""

    rank: float
    offer: int
    node: int


class _Offer(NamedTuple):
    """An option on the nodes of its pool; with each member a node's rank changes by a step."""

    option: Option
    place: Place
    need: Integers
    step: float


class Placer:
    """Puts members on nodes and keeps the books of what is left while it does."""

    def __init__(self, fleet: Fleet, free: Sequence[Integers], cores_of_job: Callable[[str], float]) -> None:
        """Starts from what is free.

        Args:
            fleet: Its pools.
            free: What may be used of each pool; not changed.
            cores_of_job: Cores that a live trajectory of a job is expected to use.
        """
        self._pools = fleet.pools
        self._free = [each.copy() for each in free]
        self._load = [pool.load.copy() for pool in fleet.pools]
        self._cores_of_job = cores_of_job
        self._siblings: dict[tuple[str, str], set[str]] = {}

    def place(self, key: ClassKey, options: Iterable[Option], members: deque[Action], count: int) -> list[Placed]:
        """Places members of a class by options that are equally good; stops where no node has room for one more.

        Args:
            key: The class.
            options: Ways to start a member.
            members: In order; those placed are taken out.
            count: How many to place at most.
        """
        offers = [self._offer(key, option) for option in options]
        queue = [entry for number, offer in enumerate(offers) for entry in self._entries(key, number, offer)]
        heapq.heapify(queue)
        placed: list[Placed] = []
        while members and len(placed) < count:
            chosen = self._choose(offers, queue, members[0])
            if chosen is None:
                break
            offer = offers[chosen.offer]
            member = members.popleft()
            placed.append(Placed(member, offer.option, offer.place, chosen.node))
            self._book(offer, chosen.node, member)
            heapq.heappush(queue, chosen._replace(rank=chosen.rank + offer.step))
        return placed

    def manager_of(self, place: Place, node: int) -> Manager:
        """The manager that hosts a service on a node."""
        pool = self._pools[place.pool]
        return pool.managers[node][pool.hosts[place.host].manager]

    def _offer(self, key: ClassKey, option: Option) -> _Offer:
        place = place_of(option)
        pool = self._pools[place.pool]
        need = need_of(option, pool)
        taken = need / np.maximum(pool.capacity, 1)
        if key.kind is ActionKind.ENV_RESET:
            return _Offer(option, place, need, self._cores(key.job))
        if need[: pool.resources].any():
            return _Offer(option, place, need, -float(taken[: pool.resources].sum()))
        return _Offer(option, place, need, float(taken.max(initial=0.0)) or 1.0)

    def _entries(self, key: ClassKey, number: int, offer: _Offer) -> Iterator[_Entry]:
        """The nodes that have room, ranked: by load for sandboxes, packed for what is booked by units, else spread."""
        place, need = offer.place, offer.need
        pool, free = self._pools[place.pool], self._free[place.pool]
        room = np.flatnonzero(fitting(free, need))
        capacity = np.maximum(pool.capacity, 1)
        if key.kind is ActionKind.ENV_RESET:
            rank = self._load[place.pool][room]
        elif need[: pool.resources].any():
            charged = np.flatnonzero(need[: pool.resources])
            rank = ((free[room][:, charged] - need[charged]) / capacity[charged]).sum(axis=1)
        elif need.any():
            charged = np.flatnonzero(need)
            rank = (1.0 - free[room][:, charged] / capacity[charged]).max(axis=1)
        else:
            rank = np.array([len(self.manager_of(place, node).attempts) for node in room.tolist()], np.float64)
        return (_Entry(rank_, number, node) for rank_, node in zip(rank.tolist(), room.tolist(), strict=True))

    def _choose(self, offers: Sequence[_Offer], queue: list[_Entry], member: Action) -> _Entry | None:
        """Takes the best node with room that the member need not avoid; if all those tried are to be avoided, the best.

        A node whose room other offers have used up leaves the queue.
        """
        passed: list[_Entry] = []
        chosen = None
        while queue and chosen is None and len(passed) < MOST_TRIES:
            entry = heapq.heappop(queue)
            offer = offers[entry.offer]
            if (self._free[offer.place.pool][entry.node] < offer.need).any() and offer.need.any():
                continue
            if self._avoids(member, self.manager_of(offer.place, entry.node).manager_id):
                passed.append(entry)
            else:
                chosen = entry
        if chosen is None and passed:
            chosen = passed.pop(0)
        for entry in passed:
            heapq.heappush(queue, entry)
        return chosen

    def _avoids(self, member: Action, manager_id: str) -> bool:
        if member.failed_on == manager_id:
            return True
        return member.request.kind is ActionKind.ENV_RESET and manager_id in self._siblings_of(member)

    def _book(self, offer: _Offer, node: int, member: Action) -> None:
        self._free[offer.place.pool][node] -= offer.need
        if member.request.kind is ActionKind.ENV_RESET:
            self._load[offer.place.pool][node] += self._cores(member.request.key.job_id)
            self._siblings_of(member).add(self.manager_of(offer.place, node).manager_id)

    def _siblings_of(self, member: Action) -> set[str]:
        """Managers that have, or are about to have, the sandbox of a sibling."""
        trajectory = member.trajectory
        if trajectory is None or trajectory.request.group is None:
            return set()
        name = (trajectory.request.job_id, trajectory.request.group.group_id)
        found = self._siblings.get(name)
        if found is None:
            group = trajectory.job.groups.get(name[1])
            others = [trajectory.job.trajectories.get(each) for each in (group.members if group is not None else ())]
            found = self._siblings[name] = {_home(each) for each in others if each is not None} - {""}
        return found

    def _cores(self, job: str) -> float:
        return self._cores_of_job(job)


def _home(trajectory: Trajectory) -> str:
    """Where a trajectory's sandbox is, or is being made."""
    making = trajectory.occupied
    return trajectory.manager_id or (making.manager_id if making is not None else "")
