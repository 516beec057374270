"""Models that are there serve the calls that wait for them before they give way to others.

To load an instance evicts idle ones, and calls that wait for those have to load them again. So units of an idle
instance are claimed by the calls that wait for its model, and other calls of their job start there only without a
set-up. The claim ends once no call waits for the model, or once only calls wait that are not late while others are. To
serve a queue to its end before a switch keeps set-ups rare (exhaustive service, as in polling systems with
switch-over times).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.planner.fleet.offers import Offer, make_offer, nodes_with_room, place_of, room_on
from callsheet.scheduler.planner.fleet.placement import Frees
from callsheet.scheduler.planner.fleet.pools import Fleet
from callsheet.scheduler.planner.question.instance import OptionBlock
from callsheet.scheduler.planner.round.competition import Servable


class Waiting(NamedTuple):
    """A class, how many of its members are late, and for how many seconds the oldest of them has been."""

    servable: Servable
    late: int
    overdue_s: float


class Claims:
    """Claims of waiting calls on the idle instances of one moment."""

    def __init__(self, fleet: Fleet, free: Frees, waiting: Sequence[Waiting]) -> None:
        """Starts from what is free and who waits."""
        self._fleet = fleet
        self._free = free
        some_bring_in = any(pool.brings_in for pool in fleet.pools)
        self._waiting = [each for each in waiting if some_bring_in and _evicts(fleet, each.servable)]
        self._known: dict[tuple[str, int, bool], Frees] = {}

    def on(self, job: str, priority: int, *, late: bool) -> Frees:
        """Units that a member of a job must leave alone where it would have to bring an instance in; none if empty.

        Args:
            job: Its job; another job's claims are left to the fair shares.
            priority: Its priority class; what is less urgent claims nothing from it.
            late: Whether it is late; then only those who are late, too, claim anything.
        """
        if not self._waiting:
            return []
        key = (job, priority, late)
        if key not in self._known:
            self._known[key] = self._claimed(*key)
        return self._known[key]

    def _claimed(self, job: str, priority: int, late: bool) -> Frees:
        claimed = [np.zeros_like(each) for each in self._free]
        for (ready, block), late_count, _ in self._waiting:
            left = late_count if late else ready.count
            if ready.key.job != job or ready.key.priority > priority:
                continue
            for offer in _at_once(self._fleet, block):
                pool, number = self._fleet.pools[offer.place.pool], offer.place.pool
                nodes = nodes_with_room(offer, pool, self._free[number], pool.ready)
                room = room_on(nodes, offer, pool, self._free[number], pool.ready)
                for node, members in zip(nodes.tolist(), room.tolist(), strict=True):
                    taken = min(members, left)
                    claimed[number][node] += taken * offer.need
                    left -= taken
        return claimed


def some_there(fleet: Fleet, block: OptionBlock) -> bool:
    """Returns whether an instance that could serve a class is there, busy or not: its members will get their turn."""
    return any(
        (fleet.pools[place.pool].instances[:, place.host] > 0).any()
        for place in {place_of(option) for option in block.options}
        if place.host in fleet.pools[place.pool].brings_in
    )


def _evicts(fleet: Fleet, servable: Servable) -> bool:
    """Returns whether a set-up of a class evicts something: set-ups of models do, those of sandboxes do not."""
    return servable.ready.key.kind is not ActionKind.ENV_RESET and any(
        place.host in fleet.pools[place.pool].brings_in for place in map(place_of, servable.block.options)
    )


def _at_once(fleet: Fleet, block: OptionBlock) -> Iterator[Offer]:
    """The narrowest way to start a member at each place where an instance can be ready."""
    seen = set()
    for option in block.options:
        place = place_of(option)
        pool = fleet.pools[place.pool]
        if place not in seen and place.host in pool.brings_in and not option.setup_s:
            seen.add(place)
            yield make_offer(option, pool)
