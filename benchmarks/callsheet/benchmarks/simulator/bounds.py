"""What no policy can beat: bounds on ACT, on the step, and on the throughput of a sustained run.

All are relaxations: an action alone at its best width for ACT; the longest trajectory alone, and the total work over
the capacity, for the step; the slots and the scarcest resource for throughput.

Which actions a run measures is up to its policy, where it ends before all trajectories do. So ACT is bounded by the
best case of the very actions that were measured.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import cycle

from callsheet.benchmarks.simulator.best_case import ServiceDemand, demands, trajectory_s
from callsheet.benchmarks.simulator.measurements import ActFigures
from callsheet.benchmarks.simulator.scenario import Mode, Scenario


def least(bounds: Sequence[ActFigures]) -> ActFigures:
    """What none of several runs can beat: the least of each figure; 0 without any."""
    if not bounds:
        return ActFigures()
    return ActFigures(*(min(getattr(each, field.name) for each in bounds) for field in fields(ActFigures)))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds of times in seconds, and an upper bound of throughput.

    Attributes:
        longest_trajectory_s: End of the last trajectory, if each had the machines to itself; None in sustained runs, as
            are the next two.
        work_s: Total work by capacity, for the resource that is scarcest.
        step_s: The greater of the two.
        trajectories_per_hour: What so many trajectories at once, and the scarcest resource, allow if those that the end
            of the run cuts off are the most expensive ones, and all others finish after the warm-up. None in one-shot
            runs.
    """

    longest_trajectory_s: float | None
    work_s: float | None
    step_s: float | None
    trajectories_per_hour: float | None


def bounds_of(scenario: Scenario) -> Bounds:
    """The bounds of a scenario."""
    if scenario.mode is Mode.SUSTAINED:
        return Bounds(None, None, None, _most_per_hour(scenario))
    longest_s = max((rollout.arrives + trajectory_s(rollout) for rollout in scenario.rollouts), default=0.0)
    work_s = max((_work_s(scenario, demand) for demand in demands(scenario.cluster)), default=0.0)
    return Bounds(longest_s, work_s, max(longest_s, work_s), None)


def _work_s(scenario: Scenario, demand: ServiceDemand) -> float:
    """Seconds that a resource needs for all trajectories."""
    return max(0.0, sum(map(demand.seconds, scenario.rollouts)) - demand.saved_up_s)


def _most_per_hour(scenario: Scenario) -> float | None:
    """Most trajectories that can finish by the horizon, all after the warm-up; None where they take no time."""
    slots = ServiceDemand(lambda rollout: trajectory_s(rollout) / scenario.live)
    most = min(_most_served(scenario, demand) for demand in (slots, *demands(scenario.cluster)))
    if math.isinf(most):
        return None
    return most / (scenario.horizon_s - scenario.warm_up_s) * 3600.0


def _most_served(scenario: Scenario, demand: ServiceDemand) -> float:
    """Most trajectories that a resource can serve by the horizon.

    Trajectories begin in order, each when one ends. So when F have finished, they are F of the first F + live: at best
    all but the most expensive `live` ones.
    """
    seconds = [demand.seconds(rollout) for rollout in scenario.rollouts]
    if not any(seconds):
        return math.inf
    left_s = scenario.horizon_s + demand.saved_up_s
    unfinished: list[float] = []
    served = 0
    for each_s in cycle(seconds):
        if len(unfinished) < scenario.live:
            heapq.heappush(unfinished, each_s)
            continue
        left_s -= heapq.heappushpop(unfinished, each_s)
        if left_s < 0.0:
            break
        served += 1
    return served
