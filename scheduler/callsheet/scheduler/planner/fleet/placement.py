"""From counts to concrete actions: which member starts on which node.

New sandboxes go to the node with the fewest live trajectories, weighted by the cores these are expected to use, and
siblings are spread apart: they do the same things at the same time. Those with the same set-up follow each other to a
node while that is not crowded: one of them makes it there, and the others need not make it elsewhere. What shares a
node's cores is spread too. What is booked core by core is packed, so that wide actions find room. The scheduler's books
then choose cores within one NUMA node.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np
from callsheet.scheduler.core.state.entities import Action, Manager, Trajectory
from callsheet.scheduler.core.state.ledger import Node
from callsheet.scheduler.core.state.ready import ClassKey, ReadyClass
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.planner.fleet.likeness import Place
from callsheet.scheduler.planner.fleet.offers import Offer, Offers, left_after, nodes_with_room, room_on
from callsheet.scheduler.planner.fleet.pools import Fleet
from callsheet.scheduler.planner.question.instance import Floats, Integers, Option

# What is free on the nodes of each pool, as `Pool.free`.
Frees = list[Integers]
NOTHING: Frees = []
# Trying further for a node without a sibling or an earlier failure is not worth more.
MOST_TRIES = 8
MOST_FOLLOWING = 64
# By how much of its cores a node may be busier than the emptiest one and still get the next sandbox with a set-up. Like
# the weight of images in kube-scheduler: large nodes take siblings, small ones hardly.
CROWDING = 0.05

MOST_BEGUN = 4096


class Members:
    """Members of one class. Only those that are asked for are looked at, as a class can have a million.

    Attributes:
        left: How many have not been handed out.
    """

    def __init__(self, ready: ReadyClass) -> None:
        """Starts with all of them; the class must stay as it is meanwhile."""
        self._rest = iter(ready)
        self._head: Action | None = None
        self.left = ready.count

    def head(self) -> Action:
        """The next one; there must be one."""
        if self._head is None:
            self._head = next(self._rest)
        return self._head

    def pop(self) -> Action:
        """Hands out the next one; there must be one."""
        member = self.head()
        self._head = None
        self.left -= 1
        return member


class BegunSetUps:
    """Nodes by `ActionRequest.set_up`; of many set-ups those that began last."""

    def __init__(self) -> None:
        """Starts with none."""
        self._nodes: dict[str, Node] = {}

    def begin(self, name: str, node: Node) -> None:
        """Notes that a sandbox with a set-up begins on a node; one without a name is no set-up."""
        if name:
            self._nodes.pop(name, None)
            self._nodes[name] = node
            if len(self._nodes) > MOST_BEGUN:
                del self._nodes[next(iter(self._nodes))]

    def copy(self) -> BegunSetUps:
        """The same, to be changed apart."""
        copied = BegunSetUps()
        copied._nodes = dict(self._nodes)
        return copied

    def node_of(self, name: str) -> Node | None:
        """Returns the node of the last beginning; None if there was none, or too long ago."""
        return self._nodes.get(name)


class _Entry(NamedTuple):
    """A node that has room for so many by an offer; the one of the lowest rank comes first."""

    rank: float
    offer: int
    node: int
    room: int


class Placed(NamedTuple):
    """A member on a node, by an offer.

    Attributes:
        rank: Of the node; the lowest is the best.
        following: The offer, node and rank that came next; None if no other node had room.
    """

    action: Action
    offer: Offer
    node: int
    rank: float = 0.0
    following: tuple[Offer, int, float] | None = None


class _Queue(NamedTuple):
    """Nodes with room for offers that are alike; None for those that nothing follows. Whole if there are no others."""

    alike: Hashable
    entries: list[_Entry]
    whole: bool


def _place_of(offers: Sequence[Offer], entry: _Entry | None) -> tuple[Offer, int, float] | None:
    return None if entry is None else (offers[entry.offer], entry.node, entry.rank)


class Placer:
    """Puts members on nodes and keeps the books of what is left while it does."""

    def __init__(
        self,
        fleet: Fleet,
        offers: Offers,
        free: Sequence[Integers],
        cores_of_job: Callable[[str], float],
        begun: BegunSetUps,
        *,
        members: int,
    ) -> None:
        """Starts from what is free.

        Args:
            fleet: Its pools.
            offers: Of the fleet.
            free: What may be used of each pool; not changed.
            cores_of_job: Cores that a live trajectory of a job is expected to use.
            begun: Where sandboxes began last; told of those that are placed.
            members: How many there are to place, of all classes.
        """
        self._following = min(members, MOST_FOLLOWING)
        self._pools = fleet.pools
        self._offers = offers
        self._free = [each.copy() for each in free]
        self._load = [pool.load.copy() for pool in fleet.pools]
        self._ready = [pool.ready.copy() for pool in fleet.pools]
        self._cores_of_job = cores_of_job
        self._siblings: dict[tuple[str, str], set[str]] = {}
        self._begun = begun
        self._last = _Queue(None, [], whole=False)
        self._full: set[Hashable] = set()

    def place(
        self, key: ClassKey, options: Iterable[Option], members: Members, count: int, claimed: Frees = NOTHING
    ) -> list[Placed]:
        """Places members of a class by options that are equally good; stops where no node has room for one more.

        Args:
            key: The class.
            options: Ways to start a member.
            members: Of the class; those placed are taken out.
            count: How many to place at most.
            claimed: What they must leave to others where they would bring an instance in; none if empty.
        """
        count = min(count, members.left)
        offers = [self._offers.of(option) for option in options]
        resets = key.kind is ActionKind.ENV_RESET
        queue = self._queue(key, offers, count, claimed)
        placed: list[Placed] = []
        while queue and len(placed) < count:
            member = members.head()
            if len(offers) == 1 and not resets and not member.failed_on:
                rank, _, node, room = queue[0]
                following = _place_of(offers, min(queue[1:3], default=None))
                placed.append(Placed(members.pop(), offers[0], node, rank, following))
                self._book(offers[0], node, member)
                if room > 1:
                    heapq.heapreplace(queue, _Entry(rank + offers[0].step, 0, node, room - 1))
                else:
                    heapq.heappop(queue)
                continue
            chosen = (self._beside(offers, queue, member) if resets else None) or self._choose(offers, queue, member)
            if chosen is None:
                break
            rank, number, node, room = chosen
            offer = offers[number]
            placed.append(Placed(members.pop(), offer, node, rank, _place_of(offers, queue[0] if queue else None)))
            self._book(offer, node, member)
            if room > 1:
                step = self._cores_of_job(key.job) if resets else offer.step
                heapq.heappush(queue, _Entry(rank + step, number, node, room - 1))
        return placed

    def _queue(self, key: ClassKey, offers: Sequence[Offer], count: int, claimed: Frees) -> list[_Entry]:
        """The best nodes with room as a heap; what the last placement left of it where that was by an alike offer."""
        alike = offers[0].alike if len(offers) == 1 and not claimed and key.kind is not ActionKind.ENV_RESET else None
        last = self._last
        if alike is not None and alike == last.alike and (last.whole or len(last.entries) >= count + MOST_TRIES):
            return last.entries
        # Others that are alike may follow.
        most = count + MOST_TRIES + (self._following if alike is not None else 0)
        found = [list(self._entries(key, number, offer, most, claimed)) for number, offer in enumerate(offers)]
        entries = list(chain.from_iterable(found))
        heapq.heapify(entries)
        self._last = _Queue(alike, entries, whole=all(len(each) < most for each in found))
        return entries

    def could_place(self, option: Option) -> bool:
        """Returns whether the most that is free on any nodes is enough for a member; cheaper to ask than to try."""
        offer = self._offers.of(option)
        if offer.alike in self._full:
            return False
        free = self._free[offer.place.pool]
        could = all(free[:, column].max() >= units for column, units in offer.charged)
        if not could:
            # Nothing comes back while members are placed.
            self._full.add(offer.alike)
        return could

    def manager_of(self, place: Place, node: int) -> Manager:
        """The manager that hosts a service on a node."""
        pool = self._pools[place.pool]
        return pool.managers[node][pool.hosts[place.host].manager]

    def why(self, placed: Placed) -> str:
        """The rule by which a member's node was chosen, its rank by that rule, and the node that came next."""
        action, offer, _, rank, following = placed
        if action.request.kind is ActionKind.ENV_RESET:
            rule = "busy cores expected there"
        elif offer.option.setup_s:
            rule = "seconds until it is set up there"
        elif not offer.charged:
            rule = "attempts that run there"
        else:
            rule = f"{'least' if offer.packs else 'most'} of the node left free"
        if following is None:
            return f"{rule}: {abs(rank):.3g}; no other node has room"
        other, node, its_rank = following
        return (
            f"{rule}: {abs(rank):.3g}; next is {self.manager_of(other.place, node).manager_id} with {abs(its_rank):.3g}"
        )

    def _entries(self, key: ClassKey, number: int, offer: Offer, most: int, claimed: Frees) -> Iterator[_Entry]:
        """The best nodes with room, as many as are asked for.

        They are ranked by load for sandboxes, packed for what is booked by units, else spread.
        """
        where = offer.place.pool
        pool, free, ready = self._pools[where], self._free[where], self._ready[where]
        if claimed and offer.option.setup_s:
            free = free - claimed[where]
        nodes = nodes_with_room(offer, pool, free, ready)
        if not len(nodes):
            return iter(())
        ranks = self._ranks(key, offer, nodes)
        if len(nodes) > most:
            best = np.argpartition(ranks, most)[:most]
            nodes, ranks = nodes[best], ranks[best]
        room = room_on(nodes, offer, pool, free, ready)
        return map(_Entry, ranks.tolist(), repeat(number), nodes.tolist(), room.tolist())

    def _ranks(self, key: ClassKey, offer: Offer, nodes: Integers) -> Floats:
        place = offer.place
        if key.kind is ActionKind.ENV_RESET:
            return self._load[place.pool][nodes]
        if offer.option.setup_s:
            waits: Floats = self._pools[place.pool].set_up_s[nodes, place.host]
            return waits
        if not offer.charged:
            pool = self._pools[place.pool]
            running: Floats = pool.attempts[nodes, pool.hosts[place.host].manager].astype(np.float64)
            return running
        left = left_after(nodes, offer, self._free[place.pool])
        return left if offer.packs else -left

    def _beside(self, offers: Sequence[Offer], queue: list[_Entry], member: Action) -> _Entry | None:
        """Takes the node where the last sandbox with the same set-up began; None if there is none, or it is crowded."""
        home = self._begun.node_of(member.request.set_up)
        if home is None:
            return None
        found = next((at for at, each in enumerate(queue) if self._node(offers, each) is home), None)
        if found is None:
            return None
        entry = queue[found]
        place = offers[entry.offer].place
        crowded = entry.rank > queue[0].rank + CROWDING * self._pools[place.pool].cores
        failed = member.failed_on == self.manager_of(place, entry.node).manager_id
        if crowded or failed or not self._has_room(offers, entry):
            return None
        queue[found] = queue[-1]
        queue.pop()
        heapq.heapify(queue)
        return entry

    def _choose(self, offers: Sequence[Offer], queue: list[_Entry], member: Action) -> _Entry | None:
        """Takes the best node with room that the member need not avoid; if all those tried are to be avoided, the best.

        A node whose room other offers have used up leaves the queue.
        """
        passed: list[_Entry] = []
        chosen = None
        while queue and chosen is None and len(passed) < MOST_TRIES:
            entry = heapq.heappop(queue)
            if not self._has_room(offers, entry):
                continue
            if self._avoids(member, offers[entry.offer].place, entry.node):
                passed.append(entry)
            else:
                chosen = entry
        if chosen is None and passed:
            chosen = passed.pop(0)
        for entry in passed:
            heapq.heappush(queue, entry)
        return chosen

    def _node(self, offers: Sequence[Offer], entry: _Entry) -> Node:
        return self._pools[offers[entry.offer].place.pool].nodes[entry.node]

    def _has_room(self, offers: Sequence[Offer], entry: _Entry) -> bool:
        """Returns whether other offers have left room for one by this one."""
        offer = offers[entry.offer]
        free = self._free[offer.place.pool]
        return len(offers) == 1 or all(free[entry.node, column] >= units for column, units in offer.charged)

    def _avoids(self, member: Action, place: Place, node: int) -> bool:
        resets = member.request.kind is ActionKind.ENV_RESET
        if not resets and not member.failed_on:
            return False
        manager_id = self.manager_of(place, node).manager_id
        return member.failed_on == manager_id or (resets and manager_id in self._siblings_of(member))

    def _book(self, offer: Offer, node: int, member: Action) -> None:
        pool, host = offer.place.pool, offer.place.host
        for column, units in offer.charged:
            self._free[pool][node, column] -= units
        if host in self._pools[pool].brings_in and not offer.option.setup_s:
            self._ready[pool][node, host] -= 1
        if member.request.kind is ActionKind.ENV_RESET:
            self._load[pool][node] += self._cores_of_job(member.request.key.job_id)
            self._siblings_of(member).add(self.manager_of(offer.place, node).manager_id)
            self._begun.begin(member.request.set_up, self._pools[pool].nodes[node])

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


def _home(trajectory: Trajectory) -> str:
    """Returns the node of a trajectory's sandbox, which is there or being made."""
    making = trajectory.occupied
    return trajectory.manager_id or (making.manager_id if making is not None else "")
