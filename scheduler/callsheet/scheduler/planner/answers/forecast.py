"""How long what waits now would take: rounds of the planner in the planner's own model.

Each round is solved as a real one without time for the solver. Then the clock goes on to when started members are
expected to end, and their units come back. Units in use at the beginning come back when the resource expects them. Of
the others it knows only a mean: they come back as if they were held for exponential times. Nothing new arrives. What
still waits after the last round flows: it is served at the rate that its scarcest resource allows.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from callsheet.scheduler.planner.question.instance import Option, PlanningInstance, ResourceRow
from callsheet.scheduler.planner.solvers.cp_sat import Budget
from callsheet.scheduler.planner.solvers.solve import Solution, solve

MAX_ROUNDS = 60
# Units in use are given back in so many portions.
PORTIONS = 8
# Units that come back within this share of a mean duration of each other are handed out in one round.
STEP_SHARE = 0.1
_NO_SOLVER = Budget(seconds=0.0)


@dataclass(frozen=True, slots=True)
class ClassForecast:
    """Forecast for the members of a class, in seconds from now.

    Attributes:
        key: Name of the class, for a reader.
        waiting: Number of members that wait.
        mean_wait_s: Mean time until they start, of those that can start at all.
        mean_end_s: Mean time until they end, of the same members.
        stuck: Members that can never start because no resource that they need has as many units.
        waited_s: Seconds that they have waited so far.
    """

    key: str
    waiting: int
    mean_wait_s: float
    mean_end_s: float
    stuck: int
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast for the actions that wait, weighted, in seconds from now; see `ClassForecast`.

    Attributes:
        start_now: Members that the next round starts.
    """

    waiting: int
    start_now: int
    mean_wait_s: float
    mean_end_s: float
    stuck: int
    classes: tuple[ClassForecast, ...]


def forecast(instance: PlanningInstance) -> Forecast:
    """Plays rounds until nothing waits or can start any more, at most `MAX_ROUNDS`, and lets the rest flow."""
    drain = _Drain(instance)
    for _ in range(MAX_ROUNDS):
        if not drain.round() or not drain.advance():
            break
    drain.flow()
    return drain.summary()


@dataclass(slots=True)
class _Sums:
    """Sums over the members of a class that started."""

    started: int = 0
    wait_s: float = 0.0
    end_s: float = 0.0


class _Drain:
    """An instance while it drains."""

    def __init__(self, instance: PlanningInstance) -> None:
        self._asked = instance
        self._instance = instance
        self._order = list(range(len(instance.classes)))
        self._now = 0.0
        self._sums = [_Sums() for _ in instance.classes]
        self._start_now = 0
        # (time, order, index of a resource, units)
        self._returns: list[tuple[float, int, int, int]] = []
        for index, each in enumerate(instance.resources):
            self._give_back_later(index, each)

    def round(self) -> bool:
        """Plays a round; False once nothing waits any more."""
        if not self._order:
            return False
        solution = solve(self._instance, _NO_SOLVER)
        if self._now == 0.0:
            self._start_now = sum(each.members for each in solution.started)
        self._book(solution)
        return bool(self._order)

    def advance(self) -> bool:
        """Goes on to the next units that come back, and those shortly after; False if none ever do."""
        if not self._returns:
            return False
        started = sum(sums.started for sums in self._sums)
        ran_s = sum(sums.end_s - sums.wait_s for sums in self._sums)
        until = self._returns[0][0] + STEP_SHARE * ran_s / max(started, 1)
        free = [each.free for each in self._instance.resources]
        while self._returns and self._returns[0][0] <= until:
            self._now, _, index, units = heapq.heappop(self._returns)
            free[index] += units
        self._instance = replace(self._instance, resources=_with_free(self._instance.resources, free))
        return True

    def flow(self) -> None:
        """Serves what still waits and can start, all classes alike, at the rate of the scarcest resource."""
        capacity = [each.capacity for each in self._instance.resources]
        work = [0.0] * len(capacity)
        flowing = []
        for position, each in zip(self._order, self._instance.classes, strict=True):
            fitting = [option for option in each.block.options if _fits(option, capacity)]
            if fitting:
                option = min(fitting, key=lambda way: way.setup_s + way.duration_s)
                flowing.append((position, option, each.count))
                for index, units in option.charges:
                    work[index] += units * each.count * (option.setup_s + option.duration_s)
        drain_s = max((done / units for done, units in zip(work, capacity, strict=True) if done), default=0.0)
        self._now += 0.5 * drain_s
        for position, option, members in flowing:
            self._note(position, option, members)

    def summary(self) -> Forecast:
        """Returns the forecast that the played rounds gave."""
        classes = tuple(
            ClassForecast(
                str(asked.key),
                asked.count,
                sums.wait_s / max(sums.started, 1),
                sums.end_s / max(sums.started, 1),
                asked.count - sums.started,
                asked.waited_s,
            )
            for asked, sums in zip(self._asked.classes, self._sums, strict=True)
        )
        weights = [asked.weight * sums.started for asked, sums in zip(self._asked.classes, self._sums, strict=True)]
        total = max(sum(weights), 1e-12)
        return Forecast(
            sum(each.waiting for each in classes),
            self._start_now,
            sum(weight * each.mean_wait_s for weight, each in zip(weights, classes, strict=True)) / total,
            sum(weight * each.mean_end_s for weight, each in zip(weights, classes, strict=True)) / total,
            sum(each.stuck for each in classes),
            classes,
        )

    def _book(self, solution: Solution) -> None:
        resources, classes = self._instance.resources, self._instance.classes
        free = [each.free for each in resources]
        left = [each.count for each in classes]
        for started in solution.started:
            left[started.class_index] -= started.members
            self._note(self._order[started.class_index], started.option, started.members)
            ends = self._now + started.option.setup_s + started.option.duration_s
            for index, units in started.option.charges:
                free[index] -= units * started.members
                self._push(ends, index, units * started.members)
        waiting = [index for index, members in enumerate(left) if members]
        self._order = [self._order[index] for index in waiting]
        self._instance = replace(
            self._instance,
            resources=_with_free(resources, free),
            # What units lie where is not followed: from the second round on only the rows bound a class.
            classes=tuple(
                replace(classes[index], count=left[index], limits=np.full_like(classes[index].limits, left[index]))
                for index in waiting
            ),
        )

    def _note(self, position: int, option: Option, members: int) -> None:
        sums = self._sums[position]
        sums.started += members
        sums.wait_s += members * self._now
        sums.end_s += members * (self._now + option.setup_s + option.duration_s)

    def _give_back_later(self, index: int, resource: ResourceRow) -> None:
        used = resource.capacity - resource.free
        for time, units in sorted(resource.returns):
            back = min(units, used)
            if back > 0:
                self._push(time, index, back)
                used -= back
        for portion in range(PORTIONS):
            # Rounded so that the portions add up to what is used.
            units = used * (portion + 1) // PORTIONS - used * portion // PORTIONS
            if units > 0:
                quantile = (portion + 0.5) / PORTIONS
                self._push(-resource.hold_s * math.log1p(-quantile), index, units)

    def _push(self, time: float, index: int, units: int) -> None:
        heapq.heappush(self._returns, (time, len(self._returns), index, units))


def _fits(option: Option, capacity: Sequence[int]) -> bool:
    return all(units <= capacity[index] for index, units in option.charges)


def _with_free(resources: Sequence[ResourceRow], free: Sequence[int]) -> tuple[ResourceRow, ...]:
    return tuple(
        each if each.free == units else replace(each, free=units) for each, units in zip(resources, free, strict=True)
    )
