"""The ways in which a class of actions can be started on a fleet: pools, services and widths."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from callsheet.scheduler.core.state.held_memory import units_by_need
from callsheet.scheduler.core.state.ready import ClassKey
from callsheet.scheduler.core.words.model import CPU, GPU, ResourceDemand, SpeedUp
from callsheet.scheduler.core.words.registration import is_meant
from callsheet.scheduler.planner.fleet.likeness import Host, Place, shared_column, slot_column
from callsheet.scheduler.planner.fleet.pools import MILLI, Fleet, Pool
from callsheet.scheduler.planner.question.instance import Option, OptionBlock
from callsheet.scheduler.planner.question.price import MARGINAL_EFFICIENCY_FLOOR
from callsheet.v1.names import ANY_IMAGE_SERVICE

# Widths tried of one elastic resource, and of each where several are elastic.
MAX_WIDTHS = 8
MAX_WIDTHS_OF_SEVERAL = 3
# Estimates that differ by less of themselves make no other options.
ALIKE = 0.02
# An action that may do with nothing of a resource is slower by this without it.
SLOWDOWN_WITH_NOTHING = 2.0


class Estimate(NamedTuple):
    """Estimates for a member of a class.

    Attributes:
        duration_s: Seconds that it takes with its fewest units.
        use: Cores that it uses with its fewest units.
        amdahl_fraction: Its parallel fraction, if its demand gives no curve of its own; None to believe the demand.
        memory_mib: The booked memory of a sandbox if memory is given by need; 0 for its demand.
    """

    duration_s: float
    use: float
    amdahl_fraction: float | None = None
    memory_mib: int = 0

    def is_like(self, other: Estimate) -> bool:
        """Returns whether options made with the other estimate are as good."""
        mine = (self.duration_s, self.use, self.amdahl_fraction or 0.0)
        others = (other.duration_s, other.use, other.amdahl_fraction or 0.0)
        return all(abs(one - two) <= ALIKE * one for one, two in zip(mine, others, strict=True))


class Chunk(NamedTuple):
    """How units of a column lie on nodes, in chunks of a width.

    A member of width u takes floor(u / w) of the chunks of w units that are whole on some node. Such rows keep a plan
    from counting units that lie scattered; for widths that divide each other they are exact.
    """

    pool: int
    column: int
    width: int


class Ready(NamedTuple):
    """Attempts that find what they need on a node, such as a model in memory."""

    pool: int
    host: int


@dataclass(slots=True, eq=False)
class Rows:
    """The rows of an instance beyond the fleet's columns.

    Attributes:
        first: Index of the first of them in an instance.
        further: Their indexes, in order.
    """

    first: int
    further: dict[Chunk | Ready, int] = field(default_factory=dict)

    def of(self, row: Chunk | Ready) -> int:
        """Index of a row; it is added if it is new."""
        return self.further.setdefault(row, self.first + len(self.further))


class Width(NamedTuple):
    """Units of each demanded resource, and how much faster than with the fewest that is."""

    units: dict[str, int]
    gain: float


def option_block(key: ClassKey, estimate: Estimate, fleet: Fleet, rows: Rows) -> OptionBlock:
    """All options of a class; empty if nothing in the fleet can serve it."""
    options: list[Option] = []
    for number, pool in enumerate(fleet.pools):
        for service, host in enumerate(pool.hosts):
            if not host.set_up and key.kind in host.kinds and _is_meant(pool, host, key.service):
                place = fleet.place_with(pool, service, key.set_up)
                where = Place(number, place, f"{pool.name}/{host.service}")
                options += _options_at(key, estimate, pool, where, rows)
    return OptionBlock.of(options)


def _is_meant(pool: Pool, host: Host, name: str) -> bool:
    """Returns whether a class may go to a service.

    A service for any image takes only classes whose service its manager does not also have by name.
    """
    if host.service != ANY_IMAGE_SERVICE:
        return is_meant(host.service, name)
    named = any(each.service == name and each.manager == host.manager for each in pool.hosts)
    return not named and is_meant(host.service, name)


def _options_at(key: ClassKey, estimate: Estimate, pool: Pool, where: Place, rows: Rows) -> Iterator[Option]:
    host = pool.hosts[where.host]
    for width in widths(key.demand.entries, most_units(pool, host), estimate.amdahl_fraction):
        use = min(estimate.use * width.gain, key.demand.most_cores())
        booked = width.units
        if host.by_need:
            booked = units_by_need(key.kind, booked, estimate.memory_mib)
        charges = _charges(booked, use, pool, where, rows)
        if charges is None:
            continue
        seconds = estimate.duration_s / width.gain
        if where.host not in pool.brings_in:
            yield Option(where, width.units, seconds, 0.0, tuple(charges.items()))
            continue
        at_once = {**charges, rows.of(Ready(where.pool, where.host)): 1}
        yield Option(where, width.units, seconds, 0.0, tuple(at_once.items()))
        set_up_s = pool.cold_s(where.host)
        if set_up_s is not None:
            yield Option(where, width.units, seconds, set_up_s, tuple(charges.items()))


def most_units(pool: Pool, host: Host) -> dict[str, int]:
    """The most units that a grant can have on a node of a pool, by resource."""
    own = zip(pool.columns[: pool.resources], pool.capacity.tolist(), strict=False)
    return {**dict(own), **dict(host.shared)}


def widths(entries: Sequence[ResourceDemand], most: dict[str, int], amdahl_fraction: float | None) -> list[Width]:
    """Sets of units within a demand and a node, each wide enough to be worth it.

    Args:
        entries: The demand.
        most: Units that a node has, by resource.
        amdahl_fraction: Learned parallel fraction; None to believe the demand's curves.
    """
    if any(entry.min_units > most.get(entry.resource, 0) for entry in entries):
        return []
    elastic = sum(entry.elastic for entry in entries)
    limit = MAX_WIDTHS if elastic <= 1 else MAX_WIDTHS_OF_SEVERAL
    choices = [list(_widths_of(entry, most.get(entry.resource, 0), amdahl_fraction, limit)) for entry in entries]
    found = []
    for chosen in itertools.product(*choices):
        units = {entry.resource: count for entry, (count, _) in zip(entries, chosen, strict=True) if count}
        gain = 1.0
        for _, each in chosen:
            gain *= each
        found.append(Width(units, gain))
    return found


def _widths_of(
    entry: ResourceDemand, most: int, amdahl_fraction: float | None, limit: int
) -> Iterator[tuple[int, float]]:
    """(units, gain): the fewest, doublings of them, and the most, as long as more units help enough."""
    if not entry.elastic:
        yield entry.min_units, 1.0
        return
    if not entry.min_units:
        yield 0, 1.0 / SLOWDOWN_WITH_NOTHING
    first, last = max(entry.min_units, 1), min(entry.max_units, most)
    learned = entry.speed_up.points or amdahl_fraction is None
    curve = entry.speed_up if learned else SpeedUp(amdahl_fraction or 0.0)
    reached = (0, 0.0)
    found = 0
    units = first
    while units <= last and found < limit:
        gain = curve.at(units, entry.min_units)
        if found and (gain - reached[1]) * first < MARGINAL_EFFICIENCY_FLOOR * (units - reached[0]):
            return
        yield units, gain
        found += 1
        reached = (units, gain)
        units = min(units * 2, last) if units < last else last + 1


def _charges(booked: dict[str, int], use: float, pool: Pool, where: Place, rows: Rows) -> dict[int, int] | None:
    """Units by row, for an expected use of cores; None if the pool lacks a resource that is not shared."""
    host = pool.hosts[where.host]
    shared = dict(host.shared)
    charges: dict[int, int] = {}
    for resource, units in booked.items():
        if resource in shared:
            continue
        column = pool.column(resource)
        if column < 0:
            return None
        charges[pool.first_row + column] = units
        if units > 1 and int(pool.capacity[column]) // units > 0 and _comes_in_widths(resource):
            for chunk in _chunks(units):
                charges[rows.of(Chunk(where.pool, column, chunk))] = units // chunk
    if host.slots:
        charges[pool.first_row + pool.column(slot_column(host))] = 1
    if CPU in shared and CPU in booked:
        column = pool.column(shared_column(host))
        charges[pool.first_row + column] = min(max(round(use * MILLI), 1), int(pool.capacity[column]))
    return charges


def _comes_in_widths(resource: str) -> bool:
    """Returns whether a resource comes in a few small widths, so that its spread over nodes needs rows of its own."""
    return resource in {CPU, GPU}


def _chunks(units: int) -> Iterator[int]:
    """Powers of two up to a width, and the width itself."""
    chunk = 2
    while chunk < units:
        yield chunk
        chunk *= 2
    yield units
