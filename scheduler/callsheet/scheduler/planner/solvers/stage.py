"""One stage of a round as arrays: what the greedy and the CP-SAT model both solve, and what they answer.

A round has a stage for each priority class, strictly in order. Within one, jobs are first kept to their fair shares;
what they leave then goes to whoever can use it, in a stage without shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from callsheet.scheduler.planner.question.instance import Floats, Integers, JobShare, PlanningInstance
from callsheet.scheduler.planner.question.price import OptionCosts
from numpy.typing import NDArray

# An answer this close to its bound, as a share of what could be gained at all, is as good as the best.
SOLVED_GAP = 1e-4

UNLIMITED = 1 << 50


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """Minimise ``sum leave * count + sum (cost - leave) * x`` over counts x.

    Only options that pay (cost below leave) are in it, and of those none that another one of its place outdoes. Rows:
    members of a class, units of a resource, the dispatch cap.

    Attributes:
        options: Index of each option among all options of the instance, shape (n,).
        option_class: Index among the classes of the stage, shape (n,).
        benefit: leave - cost of a member, above 0, shape (n,).
        limit: Most members by option, shape (n,).
        row: Rows charged by an option, shape (n, k); the last row, which is unlimited, where there are fewer.
        amount: Units charged, shape (n, k).
        count: Members of each class.
        leave: Cost of leaving one queued, shape (classes,).
        capacity: Units that a row has, shape (rows,).
    """

    options: Integers
    option_class: Integers
    benefit: Floats
    limit: Integers
    row: Integers
    amount: Integers
    count: Integers
    leave: Floats
    capacity: Integers

    @property
    def baseline(self) -> float:
        """Cost of starting nothing."""
        return float((self.count * self.leave).sum())

    def objective(self, starts: Integers) -> float:
        """Cost of a solution."""
        return self.baseline - float(self.benefit @ starts)

    def used(self, starts: Integers) -> Integers:
        """Units that a solution takes of each row."""
        used = np.bincount(
            self.row.ravel(), weights=(self.amount * starts[:, None]).ravel(), minlength=len(self.capacity)
        )
        return used.astype(np.int64)

    def feasible(self, starts: Integers) -> bool:
        """Returns whether a solution keeps every bound."""
        started = np.bincount(self.option_class, weights=starts, minlength=len(self.count))
        return bool(
            (starts >= 0).all()
            and (starts <= self.limit).all()
            and (started <= self.count).all()
            and (self.used(starts) <= self.capacity).all()
        )


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """A feasible solution of a stage.

    Attributes:
        starts: Members to start by option, shape (options,).
        objective: Its cost.
    """

    starts: Integers
    objective: float


class Status(Enum):
    """How a round was solved; BOUND means that the greedy proved its own solution good enough."""

    EMPTY = "empty"
    BOUND = "bound"
    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    FALLBACK = "fallback"


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A stage's best solution so far.

    Attributes:
        counts: The solution.
        bound: No solution of the stage costs less.
        status: How it was found.
        seconds: What CP-SAT spent on it, in the time that the budget counts.
    """

    counts: Counts
    bound: float
    status: Status
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Leftovers:
    """Members and units that earlier stages of a round left.

    Attributes:
        waiting: Members of each class.
        free: Units of each resource.
        limit: Members that can still start by each option.
        cap: Members that may still be started.
    """

    waiting: Integers
    free: Integers
    limit: Integers
    cap: int

    @staticmethod
    def of(instance: PlanningInstance) -> Leftovers:
        """Before the first stage."""
        return Leftovers(
            np.array([each.count for each in instance.classes], np.int64),
            np.array([each.free for each in instance.resources], np.int64),
            np.concatenate([each.limits for each in instance.classes]),
            instance.dispatch_cap,
        )

    def take(self, stage: Stage, starts: Integers, classes: Sequence[int]) -> None:
        """Books a stage's solution; `classes` are the indexes of its classes in the instance."""
        self.free -= stage.used(starts)[: len(self.free)]
        self.limit[stage.options] -= starts
        started = np.bincount(stage.option_class, weights=starts, minlength=len(classes)).astype(np.int64)
        self.waiting[np.array(classes, np.int64)] -= started
        self.cap -= int(started.sum())


def make_stage(
    instance: PlanningInstance, costs: OptionCosts, classes: Sequence[int], left: Leftovers, *, fair: bool
) -> Stage:
    """A stage for some classes of an instance.

    Args:
        instance: The round's question.
        costs: Its costs.
        classes: Indexes of the classes that take part.
        left: What earlier stages left.
        fair: Whether jobs are kept to their shares.
    """
    chosen = np.array(classes, np.int64)
    local = np.full(len(instance.classes), -1, np.int64)
    local[chosen] = np.arange(len(chosen))
    table = costs.table
    benefit = costs.leave[table.option_class] - costs.cost
    limit = np.minimum(left.limit, left.waiting[table.option_class])
    pays = (local[table.option_class] >= 0) & (benefit > 0.0) & (limit > 0)
    options = np.flatnonzero(pays & ~_outdone(costs, left))
    row, amount = table.resource[options], table.amount[options]
    possible = np.flatnonzero(_most_alone(np.append(left.free, UNLIMITED), row, amount))
    options, row, amount = options[possible], row[possible], amount[possible]
    capacities: list[int] = [*left.free.tolist(), left.cap]
    columns = [row, np.full((len(options), 1), len(capacities) - 1)]
    amounts = [amount, np.ones((len(options), 1), np.int64)]
    if fair:
        share_row, share_amount = _share_rows(instance, table.option_class[options], row, amount, capacities)
        columns.append(share_row)
        amounts.append(share_amount)
    unlimited = len(capacities)
    capacities.append(UNLIMITED)
    charged = np.concatenate(columns, axis=1)
    charged[charged < 0] = unlimited
    amount = np.concatenate(amounts, axis=1)
    charging = amount.any(axis=0)
    charged, amount = charged[:, charging], amount[:, charging]
    capacity = np.array(capacities, np.int64)
    # What a row allows of an option alone: bounds that tighten a model, and options that shares leave nothing.
    limit = np.minimum(limit[options], _most_alone(capacity, charged, amount))
    possible = np.flatnonzero(limit > 0)
    options, limit, charged, amount = options[possible], limit[possible], charged[possible], amount[possible]
    return Stage(
        options,
        local[table.option_class[options]],
        benefit[options],
        limit,
        charged,
        amount,
        left.waiting[chosen],
        costs.leave[chosen],
        capacity,
    )


def _outdone(costs: OptionCosts, left: Leftovers) -> NDArray[np.bool_]:
    """The options in whose place another one costs no more and takes no more: a best solution does without them.

    The other one must have no limit of its own, or it could not take the place of all members.
    """
    option, other = costs.table.substitute.T
    unlimited = left.limit[other] >= left.waiting[costs.option_class[other]]
    outdone = np.zeros(len(costs.cost), np.bool_)
    outdone[option[unlimited & (costs.cost[other] <= costs.cost[option])]] = True
    return outdone


def _most_alone(capacity: Integers, row: Integers, amount: Integers) -> Integers:
    """Members that each option could start if nothing else did, as far as single rows tell."""
    most: Integers = np.where(amount > 0, capacity[row] // np.maximum(amount, 1), UNLIMITED).min(
        axis=1, initial=UNLIMITED
    )
    return most


def _share_rows(
    instance: PlanningInstance, class_of_option: Integers, row: Integers, amount: Integers, capacities: list[int]
) -> tuple[Integers, Integers]:
    """Adds a row for each job and each kind of resource that several jobs want; returns the options' charges of them.

    A job may hold its weight's share of what there is of a kind among the jobs that want it. A share is never below
    what one member needs, or a small job could never run a wide action.
    """
    kinds = dict.fromkeys(each.kind for each in instance.resources if each.priced)
    numbers = {kind: number for number, kind in enumerate(kinds)}
    # The last entry stands for "no resource", which an index of -1 finds.
    kind_of_row = np.array([numbers[each.kind] if each.priced else -1 for each in instance.resources] + [-1], np.int64)
    charged = np.where(amount > 0, kind_of_row[row], -1)
    jobs = list(dict.fromkeys(each.job for each in instance.classes))
    job_of_option = np.array([jobs.index(each.job) for each in instance.classes], np.int64)[class_of_option]
    share_row = np.full(row.shape, -1, np.int64)
    share_amount = np.zeros(row.shape, np.int64)
    for kind, number in numbers.items():
        total = sum(each.capacity for each in instance.resources if each.kind == kind and each.priced)
        wants = {job: (charged == number) & (job_of_option == place)[:, None] for place, job in enumerate(jobs)}
        shares = {job: instance.shares.get(job, JobShare(1.0)) for job, mine in wants.items() if mine.any()}
        if len(shares) < 2:
            continue
        weights = sum(share.weight for share in shares.values())
        for job, share in shares.items():
            mine = wants[job]
            units = max(int(total * share.weight / weights), int(amount[mine].min()))
            share_row[mine] = len(capacities)
            capacities.append(max(units - share.used.get(kind, 0), 0))
            share_amount[mine] = amount[mine]
    return share_row, share_amount
