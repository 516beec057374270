"""Planning instances spelled shortly, random tiny ones, and their optimum by trying everything."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from callsheet.scheduler.planner.question.instance import (
    Option,
    OptionBlock,
    PlanningClass,
    PlanningInstance,
    ResourceRow,
)
from callsheet.scheduler.planner.question.price import option_costs
from callsheet.scheduler.planner.solvers.stage import Counts, Leftovers, Stage, make_stage
from hypothesis import strategies as st


def resource(name: str, free: int, *, capacity: int | None = None, hold_s: float = 1.0) -> ResourceRow:
    """A resource called "kind@pool" or just by its kind."""
    return ResourceRow(name, name.partition("@")[0], free if capacity is None else capacity, free, hold_s=hold_s)


def planning_class(
    key: Hashable,
    options: Sequence[Option],
    *,
    count: int = 1,
    weight: float = 1.0,
    job: str = "job",
    priority: int = 2,
    overdue_s: float = 0.0,
    limits: Sequence[int] | None = None,
) -> PlanningClass:
    """A class from its options; without `limits` only the rows bound it."""
    bounds = np.full(len(options), count, np.int64) if limits is None else np.array(limits, np.int64)
    return PlanningClass(key, job, priority, count, weight, OptionBlock.of(options), bounds, overdue_s)


def one_stage(instance: PlanningInstance, *, fair: bool = False) -> Stage:
    """All classes of an instance in one stage, with the jobs' shares or without."""
    costs = option_costs(instance)
    return make_stage(instance, costs, range(len(instance.classes)), Leftovers.of(instance), fair=fair)


def solutions(stage: Stage) -> Iterator[Counts]:
    """Every feasible solution."""
    ranges = [range(int(limit) + 1) for limit in stage.limit]
    for values in itertools.product(*ranges):
        starts = np.array(values, np.int64)
        if stage.feasible(starts):
            yield Counts(starts, stage.objective(starts))


def optimum(stage: Stage) -> float:
    """The least cost of all feasible solutions."""
    return min(counts.objective for counts in solutions(stage))


def optimum_of_all_options(instance: PlanningInstance) -> float:
    """The least cost of a stage with all classes and no shares, by the instance alone."""
    costs = option_costs(instance)
    blocks = [(owner, each.block.options, each.limits.tolist()) for owner, each in enumerate(instance.classes)]
    ways = [(owner, *way) for owner, options, limits in blocks for way in zip(options, limits, strict=True)]
    ranges = [range(min(limit, instance.classes[owner].count) + 1) for owner, _, limit in ways]
    best = float("inf")
    for starts in itertools.product(*ranges):
        left = [each.free for each in instance.resources]
        members = [each.count for each in instance.classes]
        cost = sum(float(costs.leave[owner]) * each.count for owner, each in enumerate(instance.classes))
        for index, ((owner, option, _), count) in enumerate(zip(ways, starts, strict=True)):
            members[owner] -= count
            cost += count * float(costs.cost[index] - costs.leave[owner])
            for row, units in option.charges:
                left[row] -= units * count
        if min(*left, *members, instance.dispatch_cap - sum(starts)) >= 0:
            best = min(best, cost)
    return best


DURATIONS = st.sampled_from([0.1, 0.5, 1.0, 3.0, 10.0, 60.0])


@st.composite
def options(draw: st.DrawFn, resources: int) -> Option:
    """An option that charges some of the resources."""
    charged = draw(st.lists(st.integers(0, resources - 1), max_size=2, unique=True))
    charges = tuple((index, draw(st.integers(1, 3))) for index in charged)
    place = draw(st.sampled_from(["a", "b"]))
    return Option(place, {"cpu": len(charges)}, draw(DURATIONS), draw(st.sampled_from([0.0, 0.0, 2.0])), charges)


@st.composite
def classes(draw: st.DrawFn, name: str, resources: int) -> PlanningClass:
    """A class of at most three members and two options."""
    count = draw(st.integers(1, 3))
    ways = draw(st.lists(options(resources), min_size=1, max_size=2))
    return planning_class(
        name,
        ways,
        count=count,
        weight=draw(st.sampled_from([1.0, 1.0, 2.5])),
        job=draw(st.sampled_from(["job-a", "job-b"])),
        priority=draw(st.sampled_from([1, 2])),
        overdue_s=draw(st.sampled_from([0.0, 20.0])),
        limits=[draw(st.integers(0, count)) for _ in ways],
    )


@st.composite
def instances(draw: st.DrawFn) -> PlanningInstance:
    """At most three classes on at most three resources."""
    resources = [
        resource(f"r{index}@pool", draw(st.integers(0, 5)), capacity=6, hold_s=draw(DURATIONS))
        for index in range(draw(st.integers(1, 3)))
    ]
    members = [draw(classes(f"class-{index}", len(resources))) for index in range(draw(st.integers(1, 3)))]
    return PlanningInstance(tuple(resources), tuple(members), dispatch_cap=draw(st.integers(1, 6)))
