"""Finds the units that an option of a fleet takes of nodes: once for each option, because rounds place by few options.

An offer takes two or three of a pool's columns. To look at one column after another is several times as fast as to
pick those columns out of the array and look at them at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from callsheet.scheduler.planner.fleet.likeness import SHARED_CPU, Place
from callsheet.scheduler.planner.fleet.pools import Fleet, Pool
from callsheet.scheduler.planner.question.instance import Floats, Integers, Option

PLENTY = 1 << 40
MOST_OFFERS = 8192


class Offer(NamedTuple):
    """An option on the nodes of its pool.

    Attributes:
        option: The option.
        place: Where it is.
        need: What a member takes of each column of the pool.
        charged: (column, units) of those that it takes anything of.
        packs: Whether it takes units of the node's own, not only of what is shared, or slots.
        ranked: (column, 1 / what a node has of it) of those by which nodes are ranked: what is booked by units,
            otherwise all charged ones.
        milli_use: Thousandths of the cores that a manager shares which a member is expected to use.
        step: By how much a node's rank changes with each member.
        alike: Offers that are alike here take the same of the same nodes.
    """

    option: Option
    place: Place
    need: Integers
    charged: tuple[tuple[int, int], ...]
    packs: bool
    ranked: tuple[tuple[int, float], ...]
    milli_use: int
    step: float
    alike: Hashable


class Offers:
    """The offers of a fleet's options; forgotten when its pools become others."""

    def __init__(self, fleet: Fleet) -> None:
        """Starts with none."""
        self._fleet = fleet
        self._generation = -1
        # An offer has its option, so that no other object can come to have its id.
        self._known: dict[int, Offer] = {}

    def of(self, option: Option) -> Offer:
        """The offer of an option."""
        if self._generation != self._fleet.generation or len(self._known) >= MOST_OFFERS:
            self._generation = self._fleet.generation
            self._known.clear()
        known = self._known.get(id(option))
        if known is None:
            known = self._known[id(option)] = make_offer(option, self._fleet.pools[place_of(option).pool])
        return known


def make_offer(option: Option, pool: Pool) -> Offer:
    """An option's offer."""
    need = need_of(option, pool)
    charged = [(column, units) for column, units in enumerate(need.tolist()) if units]
    packed = [each for each in charged if each[0] < pool.resources]
    ranked = [(column, 1.0 / max(int(pool.capacity[column]), 1)) for column, _ in packed or charged]
    shares = [units * per_node for (_, units), (_, per_node) in zip(packed or charged, ranked, strict=True)]
    step = -sum(shares) if packed else max(shares, default=0.0) or 1.0
    use = sum(units for column, units in charged if pool.columns[column].startswith(SHARED_CPU))
    place = place_of(option)
    alike = (place.pool, place.host, option.setup_s > 0.0, *charged)
    return Offer(option, place, need, tuple(charged), bool(packed), tuple(ranked), use, step, alike)


def place_of(option: Option) -> Place:
    """Returns the place of an option of a fleet.

    Raises:
        TypeError: The option is of no fleet.
    """
    if not isinstance(option.place, Place):
        raise TypeError(f"{option.place!r} is not a place of a fleet")
    return option.place


def need_of(option: Option, pool: Pool) -> Integers:
    """Returns the units that a member takes of each column of its pool."""
    need = np.zeros(len(pool.columns), np.int64)
    for row, units in option.charges:
        if pool.first_row <= row < pool.first_row + len(pool.columns):
            need[row - pool.first_row] = units
    return need


def fitting(free: Integers, need: Integers) -> Integers:
    """How many members with a need fit on each node, shape (nodes,)."""
    charged = np.flatnonzero(need)
    if not len(charged):
        return np.full(len(free), PLENTY, np.int64)
    fits: Integers = np.maximum((free[:, charged] // need[charged]).min(axis=1), 0)
    return fits


def nearest_node(
    pools: Sequence[Pool], free: Sequence[Integers], needs: Iterable[tuple[int, Integers]]
) -> tuple[int, int, Integers]:
    """The node that lacks the least of a need, as a share of what a node has: (pool, node, need).

    Args:
        pools: The pools.
        free: What is free of each.
        needs: (pool, what a member takes of each column there); at least one.
    """
    found = []
    for number, need in needs:
        lacking = np.maximum(need - free[number], 0) / np.maximum(pools[number].capacity, 1)
        shortage = lacking.sum(axis=1)
        node = int(np.argmin(shortage))
        found.append((float(shortage[node]), number, node, need))
    _, pool, node, need = min(found, key=lambda each: each[0])
    return pool, node, need


def nodes_with_room(offer: Offer, pool: Pool, free: Integers, ready: Integers) -> Integers:
    """The nodes on which a member could start by an offer.

    Args:
        offer: An offer of the pool.
        pool: The pool.
        free: What is free, as `Pool.free`.
        ready: What needs no set-up, as `Pool.ready`.
    """
    host = offer.place.host
    fits = np.ones(len(free), np.bool_)
    for column, units in offer.charged:
        fits &= free[:, column] >= units
    if host in pool.brings_in:
        there = ready[:, host]
        fits &= there == 0 if offer.option.setup_s else there > 0
        if offer.option.setup_s and host in pool.batched:
            fits &= pool.set_up_s[:, host] > 0.0
    return fits.nonzero()[0]


def room_on(nodes: Integers, offer: Offer, pool: Pool, free: Integers, ready: Integers) -> Integers:
    """How many members could start on each of some nodes that have room for one; see `nodes_with_room`."""
    host = offer.place.host
    room = np.full(len(nodes), PLENTY, np.int64)
    for column, units in offer.charged:
        np.minimum(room, free[:, column].take(nodes) // units, out=room)
    if host in pool.brings_in and not offer.option.setup_s:
        room = np.minimum(room, ready[nodes, host])
    return room


def left_after(nodes: Integers, offer: Offer, free: Integers) -> Floats:
    """Returns the units that one more member would leave on nodes, as shares of what each node has.

    Returns:
        The sum of the shares if the offer packs, so that the fullest node has the least; otherwise the least share.
    """
    needed = dict(offer.charged)
    combine = np.add if offer.packs else np.minimum
    left: Floats = np.full(len(nodes), 0.0 if offer.packs else np.inf)
    for column, per_node in offer.ranked:
        combine(left, (free[:, column].take(nodes) - needed[column]) * per_node, out=left)
    return left
