"""How many units an elastic action should get: its own completion against the delay it causes.

An option with u units that runs for d(u) seconds costs ``w * (s + d) + (s + d) * sum_r u_r * W_r / C_r``: w is the
action's weight, s its set-up time, W_r the weight that waits for resource r and C_r the units of r there are. Expected
arrivals, which the full rule adds to W_r, are not known to the first planner; neither are set-up times, so s is 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from callsheet.scheduler.core.model import Demand, ResourceDemand

# An extra unit must bring at least this share of what a unit at perfect speed-up would bring.
MARGINAL_EFFICIENCY_FLOOR = 0.1
DEFAULT_DURATION = 1.0
# Of a wider range only so many widths are tried, evenly spaced.
MAX_OPTIONS = 256


def choose_units(
    demand: Demand,
    weight: float,
    expected_duration: float,
    *,
    free: Mapping[str, int],
    waiting_weight: Mapping[str, float],
    capacity: Mapping[str, int],
) -> dict[str, int]:
    """Units by resource at the lowest price; each elastic entry is chosen with the others at their fewest.

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
        fixed = sum(
            count * waiting_weight.get(resource, 0.0) / max(capacity.get(resource, 1), 1)
            for resource, count in units.items()
            if resource != entry.resource
        )
        rate = waiting_weight.get(entry.resource, 0.0) / max(capacity.get(entry.resource, 1), 1)
        chosen = _cheapest(entry, weight + fixed, rate, duration, free.get(entry.resource, 0))
        if chosen:
            units[entry.resource] = chosen
    return units


def _cheapest(entry: ResourceDemand, fixed: float, rate: float, duration: float, free: int) -> int:
    best_units, best_cost = entry.min_units, float("inf")
    previous_gain = 0.0
    first = max(entry.min_units, 1)
    most = min(entry.max_units, free)
    # Megabytes come by the hundred thousand, and a round must stay short.
    step = max((most - first) // MAX_OPTIONS, 1)
    for units in range(first, most + 1, step):
        gain = entry.speed_up.at(units, entry.min_units)
        efficient = units == first or (gain - previous_gain) * first >= MARGINAL_EFFICIENCY_FLOOR * step
        cost = duration / gain * (fixed + units * rate)
        if efficient and cost < best_cost - 1e-12:
            best_units, best_cost = units, cost
        previous_gain = gain
    return best_units
