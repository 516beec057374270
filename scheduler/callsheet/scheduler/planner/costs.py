"""What starting and not starting cost: the price rule for all options of a round at once.

An option of weight w that is set up for s seconds, runs for d and takes u_r units of resource r costs
``w * (s + d) + (s + d) * sum_r u_r * (W_r + A_r(s + d) / 2) / C_r``: its own completion and the delay it causes. W_r is
the other weight that waits for r now, A_r the weight expected to arrive while it runs, C_r the units there are. While
it is set up it delays other classes only: its own could not use those units without being set up either.

Leaving a member queued costs what its best option would cost on an idle fleet, since that is paid later, and its
expected wait. The wait follows from the work that waits for the same resources, scaled by Smith's rule (weight by
duration), so that where not all can start the short go first. What is overdue goes before all else, the longest overdue
first, so that the long come to their turn. Starting a member on its best option therefore always pays: nothing idles
that could run something.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from callsheet.scheduler.planner.instance import Floats, Integers, PlanningClass, PlanningInstance, Resource

# What is overdue counts as this much shorter than the shortest that is not; of the mean, the shortest is not less than
# the second share, or some costs would be lost beside others.
OVERDUE_SHARE = 1.0 / 16.0
SHORTEST_SHARE = 1.0 / 64.0
MIN_DURATION_S = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class OptionCosts:
    """Costs in weighted seconds; the options of all classes stand one after another.

    Attributes:
        option_class: Index of the class of each option, shape (options,).
        cost: Starting one member that way now, shape (options,).
        leave: Leaving one member of a class queued, shape (classes,).
        rate: Price of holding one unit of each resource for a second, shape (resources,).
    """

    option_class: Integers
    cost: Floats
    leave: Floats
    rate: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Load:
    """What waits at each resource, with a last row for "no resource".

    Attributes:
        capacity: C_r; what "no resource" has is enough for everybody.
        weight: W_r.
        drain_s: Time the resource needs for half of the work that waits for it, and for one more release.
        inverse: 1 / C_r, 0 where units have no price.
        share: By class, the share of each touched resource among those of its kind that the class can use.
    """

    capacity: Floats
    weight: Floats
    drain_s: Floats
    inverse: Floats
    share: tuple[Floats, ...]


def option_costs(instance: PlanningInstance) -> OptionCosts:
    """Prices every option of an instance, and leaving each class queued.

    Args:
        instance: The round's question; every class has at least one option.
    """
    load = _load(instance)
    arrivals = _ArrivalCurves(instance.resources)
    costs: list[Floats] = []
    best_cost = np.empty(len(instance.classes))
    best_s = np.empty(len(instance.classes))
    best_wait = np.empty(len(instance.classes))
    for place, each in enumerate(instance.classes):
        seconds = each.block.setup_s + each.block.duration_s
        cost = each.weight * seconds + each.block.duration_s * _delay_rate(each, load, place, arrivals, 1)
        if each.block.setup_s.any():
            cost = cost + each.block.setup_s * _delay_rate(each, load, place, arrivals, each.count)
        best = _best_when_idle(each, load, cost)
        best_cost[place], best_s[place] = cost[best], max(float(seconds[best]), MIN_DURATION_S)
        best_wait[place] = load.drain_s[each.block.resource[best]].max(initial=0.0)
        costs.append(cost)
    leave = best_cost + _expected_waits(instance, best_wait, best_s)
    sizes = [len(each.block.options) for each in instance.classes]
    rate = load.weight * load.inverse
    return OptionCosts(np.repeat(np.arange(len(sizes)), sizes), np.concatenate(costs), leave, rate[:-1])


def _load(instance: PlanningInstance) -> _Load:
    resources = instance.resources
    capacity = np.array([*(float(each.capacity) for each in resources), 0.0])
    weight = np.array([*(each.other_weight for each in resources), 0.0])
    hold = np.array([*(each.hold_s for each in resources), 0.0])
    priced = np.array([*(each.priced for each in resources), False])
    kinds = {kind: index for index, kind in enumerate({each.kind for each in resources})}
    kind_of = np.array([kinds[each.kind] for each in resources], np.int64)
    inverse = np.divide(1.0, capacity, out=np.zeros(len(capacity)), where=(capacity > 0) & priced)
    work = np.zeros(len(capacity))
    shares = []
    for each in instance.classes:
        touched = each.block.touched
        size = capacity[touched]
        by_kind = np.bincount(kind_of[touched], weights=size, minlength=len(kinds))[kind_of[touched]]
        share = np.divide(size, by_kind, out=np.zeros(len(touched)), where=by_kind > 0)
        weight[touched] += each.weight * each.count * share
        work[touched] += each.count * share * each.block.touched_units * each.block.touched_s
        shares.append(share)
    drain_s = np.divide(0.5 * work + hold, capacity, out=np.zeros(len(capacity)), where=capacity > 0)
    capacity[-1] = np.inf
    return _Load(capacity, weight, drain_s, inverse, tuple(shares))


def _best_when_idle(each: PlanningClass, load: _Load, cost: Floats) -> int:
    """The cheapest option for which there would be enough if nothing ran; the cheapest of all if there is none."""
    block = each.block
    possible = (block.amount <= load.capacity[block.resource]).all(axis=1)
    return int(np.argmin(np.where(possible, cost, np.inf))) if possible.any() else int(np.argmin(cost))


class _ArrivalCurves:
    """A_r(d) for all resources at once; see `Arrivals`."""

    def __init__(self, resources: tuple[Resource, ...]) -> None:
        rates = [each.arrivals.rate for each in resources]
        self.none = not any(rates)
        self._rate = np.array([*rates, 0.0])
        # A limit beyond any arrivals of a round stands for none.
        self._limit = np.array([*(min(each.arrivals.limit, 1e12) for each in resources), 1.0])

    def within(self, resource: Integers, seconds: Floats) -> Floats:
        """Weight that arrives at each resource, shape (options, charges), while an option runs, shape (options,)."""
        limit = self._limit[resource]
        ratio = np.divide(self._rate[resource], limit, out=np.zeros(limit.shape), where=limit > 0)
        arrived: Floats = -limit * np.expm1(-ratio * seconds[:, None])
        return arrived


def _delay_rate(each: PlanningClass, load: _Load, place: int, arrivals: _ArrivalCurves, members: int) -> Floats:
    """Delay that each option of a class causes per second of its own, in weighted seconds.

    Args:
        each: The class.
        load: What waits.
        place: Index of the class.
        arrivals: What is expected.
        members: How many of the class do not count: an action does not wait for itself.
    """
    block = each.block
    if not block.resource.shape[1]:
        return np.zeros(len(block.options))
    others = load.weight.copy()
    others[block.touched] -= each.weight * members * load.share[place]
    waiting = np.maximum(others, 0.0)[block.resource]
    if not arrivals.none:
        waiting = waiting + 0.5 * arrivals.within(block.resource, block.setup_s + block.duration_s)
    rates: Floats = (block.amount * waiting * load.inverse[block.resource]).sum(axis=1)
    return rates


def _expected_waits(instance: PlanningInstance, best_wait: Floats, best_s: Floats) -> Floats:
    """What members left queued wait for their best options, in weighted seconds by Smith's rule."""
    count = np.array([each.count for each in instance.classes], np.float64)
    weight = np.array([each.weight for each in instance.classes])
    overdue = np.array([each.overdue_s for each in instance.classes])
    mean_s = float((count * best_s).sum() / count.sum())
    shortest = OVERDUE_SHARE * max(float(best_s.min()), SHORTEST_SHARE * mean_s)
    counted_s = np.where(overdue > 0.0, shortest / (1.0 + overdue), best_s)
    waits: Floats = weight * np.maximum(best_wait, MIN_DURATION_S) * mean_s / counted_s
    return waits
