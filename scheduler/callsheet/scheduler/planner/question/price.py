"""The price rule: the cost of starting and of not starting, for one action and for all options of a round.

An option of weight w that is set up for s seconds, runs for d and takes u_r units of resource r costs
``w * (s + d) + (s + d) * sum_r u_r * W_r / C_r``: its own completion and the delay it causes. W_r is the other weight
that waits for r now, and C_r is the number of units. While the option is set up it delays only other classes, because
its own class could not use those units without a set-up either.

A member that stays queued costs what its best option would cost on an idle fleet, since that is paid later, and its
expected wait. The wait follows from the work that waits for the same resources, scaled by Smith's rule (weight by
duration), so that the short go first if not all can start. An overdue member goes before all others, the longest
overdue first, so that the long ones come to their turn. It therefore always pays to start a member on its best option:
nothing idles that could run something.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from callsheet.scheduler.core.words.model import Demand, ResourceDemand
from callsheet.scheduler.planner.question.instance import Floats, Integers, OptionBlock, PlanningInstance

# Of a wider range only so many widths are tried, evenly spaced.
MAX_OPTIONS = 256
# What is overdue counts as this much shorter than the shortest that is not; of the mean, the shortest is not less than
# the second share, or some costs would be lost beside others.
OVERDUE_SHARE = 1.0 / 16.0
SHORTEST_SHARE = 1.0 / 64.0
MIN_DURATION_S = 1e-3

Seconds = TypeVar("Seconds", float, Floats)

# An extra unit must bring at least this share of what a unit at perfect speed-up would bring.
MARGINAL_EFFICIENCY_FLOOR = 0.1
DEFAULT_DURATION = 1.0


def starting_cost(
    weight: Seconds, setup_s: Seconds, duration_s: Seconds, delay: Seconds, delay_of_others: Seconds
) -> Seconds:
    """The price of an option in weighted seconds.

    Args:
        weight: w, of the action.
        setup_s: s.
        duration_s: d.
        delay: Weighted seconds by which it delays what waits, for each second that it holds its units.
        delay_of_others: The same without its own class.
    """
    return weight * (setup_s + duration_s) + duration_s * delay + setup_s * delay_of_others


@dataclass(frozen=True, slots=True, eq=False)
class OptionTable:
    """Options class by class, each in the order of its block.

    Attributes:
        option_class: Index of the class of each option, shape (options,).
        first: Index of each class's first option, shape (classes,).
        duration_s: Shape (options,).
        setup_s: Shape (options,).
        resource: Indexes of the charged resources, shape (options, most charges); -1 where there are fewer.
        amount: Units charged, of the same shape; 0 where there are fewer.
        substitute: (option, another one of its class that charges no more of anything), shape (pairs, 2).
    """

    option_class: Integers
    first: Integers
    duration_s: Floats
    setup_s: Floats
    resource: Integers
    amount: Integers
    substitute: Integers

    @staticmethod
    def of(instance: PlanningInstance) -> OptionTable:
        """Puts the blocks of an instance's classes one after another."""
        blocks = [each.block for each in instance.classes]
        sizes = np.array([len(block.options) for block in blocks], np.int64)
        first = np.cumsum(sizes) - sizes
        resource, amount = _stacked(blocks, int(sizes.sum()))
        return OptionTable(
            np.repeat(np.arange(len(blocks)), sizes),
            first,
            np.concatenate([block.duration_s for block in blocks]),
            np.concatenate([block.setup_s for block in blocks]),
            resource,
            amount,
            np.concatenate([block.substitute + start for block, start in zip(blocks, first.tolist(), strict=True)]),
        )


def _stacked(blocks: Sequence[OptionBlock], total: int) -> tuple[Integers, Integers]:
    widths = {block.resource.shape[1] for block in blocks}
    if len(widths) == 1:
        return np.concatenate([block.resource for block in blocks]), np.concatenate([block.amount for block in blocks])
    most = max(widths)
    resource = np.full((total, most), -1, np.int64)
    amount = np.zeros((total, most), np.int64)
    start = 0
    for block in blocks:
        count, width = block.resource.shape
        resource[start : start + count, :width] = block.resource
        amount[start : start + count, :width] = block.amount
        start += count
    return resource, amount


@dataclass(frozen=True, slots=True, eq=False)
class OptionCosts:
    """Costs in weighted seconds.

    Attributes:
        table: The options.
        cost: Starting one member that way now, shape (options,).
        own: Its part that the member itself bears, without the delay to others, shape (options,).
        leave: Leaving one member of a class queued, shape (classes,).
    """

    table: OptionTable
    cost: Floats
    own: Floats
    leave: Floats

    @property
    def option_class(self) -> Integers:
        """Index of the class of each option, shape (options,)."""
        return self.table.option_class


@dataclass(frozen=True, slots=True, eq=False)
class _Load:
    """Waiting work at each resource, with a last row for "no resource".

    Attributes:
        capacity: C_r; what "no resource" has is enough for everybody.
        weight: W_r.
        drain_s: Time the resource needs for half of the work that waits for it, and for one more release.
        inverse: 1 / C_r, 0 where units have no price.
        own: Part of W_r that one member of a class is, shape (classes, resources): its weight, divided among the
            resources of a kind that the class can use by their sizes.
    """

    capacity: Floats
    weight: Floats
    drain_s: Floats
    inverse: Floats
    own: Floats


def option_costs(instance: PlanningInstance) -> OptionCosts:
    """Prices every option of an instance, and leaving each class queued.

    Args:
        instance: The round's question; every class has at least one option.
    """
    table = OptionTable.of(instance)
    count = np.array([each.count for each in instance.classes], np.float64)
    weight = np.array([each.weight for each in instance.classes], np.float64)
    load = _load(instance, count, weight)
    seconds = table.setup_s + table.duration_s
    delay = of_others = _delay_rates(table, load, np.ones(len(instance.classes)))
    if table.setup_s.any():
        of_others = _delay_rates(table, load, count)
    each_weight = weight[table.option_class]
    cost = starting_cost(each_weight, table.setup_s, table.duration_s, delay, of_others)
    best = _best_when_idle(table, load, cost)
    best_s = np.maximum(seconds[best], MIN_DURATION_S)
    best_wait = load.drain_s[table.resource[best]].max(axis=1, initial=0.0)
    leave = cost[best] + _expected_waits(instance, count, weight, best_wait, best_s)
    return OptionCosts(table, cost, each_weight * seconds, leave)


def _load(instance: PlanningInstance, count: Floats, each_weight: Floats) -> _Load:
    resources, blocks = instance.resources, [each.block for each in instance.classes]
    capacity = np.array([*(float(each.capacity) for each in resources), 0.0])
    weight = np.array([*(each.other_weight for each in resources), 0.0])
    hold = np.array([*(each.hold_s for each in resources), 0.0])
    priced = np.array([*(each.priced for each in resources), False])
    inverse = np.divide(1.0, capacity, out=np.zeros(len(capacity)), where=(capacity > 0) & priced)
    # One entry for each class and each resource that it touches.
    owner = np.repeat(np.arange(len(blocks)), [len(block.touched) for block in blocks])
    touched = np.concatenate([block.touched for block in blocks])
    kinds = {kind: index for index, kind in enumerate(dict.fromkeys(each.kind for each in resources))}
    kind = np.array([kinds[each.kind] for each in resources], np.int64)[touched]
    group = owner * len(kinds) + kind
    together = np.bincount(group, weights=capacity[touched])[group]
    share = np.divide(capacity[touched], together, out=np.zeros(len(touched)), where=together > 0)
    unit_s = np.concatenate([block.touched_unit_s for block in blocks])
    own = np.zeros((len(blocks), len(capacity)))
    own[owner, touched] = each_weight[owner] * share
    weight += count @ own
    work = np.bincount(touched, weights=count[owner] * share * unit_s, minlength=len(capacity))
    drain_s = np.divide(0.5 * work + hold, capacity, out=np.zeros(len(capacity)), where=capacity > 0)
    capacity[-1] = np.inf
    return _Load(capacity, weight, drain_s, inverse, own)


def _best_when_idle(table: OptionTable, load: _Load, cost: Floats) -> Integers:
    """Each class's cheapest option for which there would be enough if nothing ran; of all if there is none."""
    possible = (table.amount <= load.capacity[table.resource]).all(axis=1)
    some = np.logical_or.reduceat(possible, table.first)
    counted = np.where(possible | ~some[table.option_class], cost, np.inf)
    best: Integers = np.lexsort((counted, table.option_class))[table.first]
    return best


def _delay_rates(table: OptionTable, load: _Load, members: Floats) -> Floats:
    """Delay that each option causes per second of its own, in weighted seconds.

    Args:
        table: The options.
        load: What waits.
        members: How many of each class do not count: an action does not wait for itself.
    """
    others = np.maximum(load.weight - members[:, None] * load.own, 0.0)
    waiting = others[table.option_class[:, None], table.resource]
    rates: Floats = (table.amount * waiting * load.inverse[table.resource]).sum(axis=1)
    return rates


def _expected_waits(
    instance: PlanningInstance, count: Floats, weight: Floats, best_wait: Floats, best_s: Floats
) -> Floats:
    """Returns the waits of queued members for their best options, in weighted seconds by Smith's rule."""
    overdue = np.array([each.overdue_s for each in instance.classes])
    mean_s = float((count * best_s).sum() / count.sum())
    shortest = OVERDUE_SHARE * max(float(best_s.min()), SHORTEST_SHARE * mean_s)
    counted_s = np.where(overdue > 0.0, shortest / (1.0 + overdue), best_s)
    waits: Floats = weight * np.maximum(best_wait, MIN_DURATION_S) * mean_s / counted_s
    return waits


def choose_units(
    demand: Demand,
    weight: float,
    expected_duration: float,
    *,
    free: Mapping[str, int],
    waiting_weight: Mapping[str, float],
    capacity: Mapping[str, int],
) -> dict[str, int]:
    """Units by resource at the lowest price, where there is no set-up.

    Each elastic entry is chosen with the others at their fewest.

    Args:
        demand: What the action asks for; its fewest units must be free.
        weight: The action's weight.
        expected_duration: Seconds at the fewest units; 0 if unknown.
        free: Free units on the node, by resource.
        waiting_weight: Weight of the other actions that wait for a resource.
        capacity: Units of a resource on all nodes.
    """
    units = demand.minimum()
    duration = expected_duration or DEFAULT_DURATION
    for entry in demand.entries:
        if not entry.elastic:
            continue
        others = sum(
            count * waiting_weight.get(resource, 0.0) / max(capacity.get(resource, 1), 1)
            for resource, count in units.items()
            if resource != entry.resource
        )
        rate = waiting_weight.get(entry.resource, 0.0) / max(capacity.get(entry.resource, 1), 1)
        chosen = _cheapest(entry, weight, others, rate, duration=duration, free=free.get(entry.resource, 0))
        if chosen:
            units[entry.resource] = chosen
    return units


def _cheapest(entry: ResourceDemand, weight: float, others: float, rate: float, *, duration: float, free: int) -> int:
    """Units of an elastic entry; `others` is the delay of other entries per second, `rate` that of one of its units."""
    best_units, best_cost = entry.min_units, float("inf")
    previous_gain = 0.0
    first = max(entry.min_units, 1)
    most = min(entry.max_units, free)
    # Megabytes come by the hundred thousand, and a round must stay short.
    step = max((most - first) // MAX_OPTIONS, 1)
    for units in range(first, most + 1, step):
        gain = entry.speed_up.at(units, entry.min_units)
        efficient = units == first or (gain - previous_gain) * first >= MARGINAL_EFFICIENCY_FLOOR * step
        delay = others + units * rate
        cost = starting_cost(weight, 0.0, duration / gain, delay, 0.0)
        if efficient and cost < best_cost - 1e-12:
            best_units, best_cost = units, cost
        previous_gain = gain
    return best_units
