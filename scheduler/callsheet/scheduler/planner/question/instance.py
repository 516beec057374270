"""The question of a planning round: classes of waiting actions, the ways to start them, and their resources.

Members of a class are interchangeable and alike nodes are one pool, so the size of an instance follows from classes,
pools and widths, never from the number of actions. Costs are in weighted seconds, times in seconds.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
# Arrays of charges have at least so many columns, so that most blocks have equally many and are put together quickly.
USUAL_CHARGES = 8


@dataclass(frozen=True, slots=True)
class ResourceRow:
    """Something that members use up: one row of the model.

    Attributes:
        name: Unique in the instance, for instance "cpu@pool-0".
        kind: What it is, whatever the pool, for instance "cpu"; fair shares are by kind.
        capacity: Units there are.
        free: Units that the round can hand out.
        other_weight: Weight of what waits for it outside the model, such as pinned commands in the background.
        hold_s: How long its units are held on average.
        returns: (seconds from now, units) that are expected back, for forecasts; `hold_s` tells of all others.
        priced: False for rows that only describe how units lie on nodes; their units are priced elsewhere.
    """

    name: str
    kind: str
    capacity: int
    free: int
    other_weight: float = 0.0
    hold_s: float = 1.0
    priced: bool = True
    returns: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Option:
    """One way to start a member of a class.

    Attributes:
        place: Where, for a reader and for placement: a pool, and a service there.
        units: What the grant would hold, by resource.
        duration_s: Predicted execution time.
        setup_s: Time before it can execute: an image pull, a model load, the prefill of a lost prefix.
        charges: (index of a resource of the instance, units it takes of it).
    """

    place: Hashable
    units: Mapping[str, int]
    duration_s: float
    setup_s: float = 0.0
    charges: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class OptionBlock:
    """The options of a class as arrays, so that a round costs little; made once and kept as long as the fleet is alike.

    Attributes:
        options: The options.
        duration_s: Shape (options,).
        setup_s: Shape (options,).
        resource: Indexes of the charged resources, shape (options, most charges); -1 where there are fewer.
        amount: Units charged, of the same shape; 0 where there are fewer.
        shortest_s: The shortest of the durations; infinite if there is no option.
        touched: Every resource that an option charges, shape (touched,).
        rows: The same as a set.
        touched_unit_s: Fewest units that an option charges of it, times how long that option holds them.
        one_way: Whether all options take equally long and hold the same units, so that any node with room is as good.
        substitute: (option, another one of its place that charges no more of anything), shape (pairs, 2).
    """

    options: tuple[Option, ...]
    duration_s: Floats
    setup_s: Floats
    resource: Integers
    amount: Integers
    shortest_s: float
    touched: Integers
    rows: frozenset[int]
    touched_unit_s: Floats
    one_way: bool
    substitute: Integers

    @staticmethod
    def of(options: Sequence[Option]) -> OptionBlock:
        """Makes the arrays."""
        most = max(USUAL_CHARGES, *(len(option.charges) for option in options), 0)
        least: dict[int, tuple[int, float]] = {}
        resource = np.full((len(options), most), -1, np.int64)
        amount = np.zeros((len(options), most), np.int64)
        for place, option in enumerate(options):
            for column, (index, units) in enumerate(option.charges):
                resource[place, column] = index
                amount[place, column] = units
                charge = (units, option.setup_s + option.duration_s)
                least[index] = min(charge, least.get(index, charge))
        return OptionBlock(
            tuple(options),
            np.array([option.duration_s for option in options], np.float64),
            np.array([option.setup_s for option in options], np.float64),
            resource,
            amount,
            min((option.duration_s for option in options), default=float("inf")),
            np.array(list(least), np.int64),
            frozenset(least),
            np.array([units * seconds for units, seconds in least.values()], np.float64),
            len({option.setup_s + option.duration_s for option in options}) <= 1
            and all(option.units == options[0].units for option in options),
            _substitutes(options, resource, amount),
        )


def _substitutes(options: Sequence[Option], resource: Integers, amount: Integers) -> Integers:
    """See `OptionBlock.substitute`; options of one place follow each other."""
    found = [np.zeros((0, 2), np.int64)]
    for _, group in groupby(range(len(options)), key=lambda index: options[index].place):
        alike = list(group)
        found.append(alike[0] + _no_more(resource[alike], amount[alike]))
    return np.concatenate(found)


def _no_more(resource: Integers, amount: Integers) -> Integers:
    """Pairs (option, another one that charges no more); of those that charge the same the first is the other one."""
    rows, column = np.unique(resource, return_inverse=True)
    charged = np.zeros((len(resource), len(rows)), np.int64)
    charged[np.arange(len(resource))[:, None], column.reshape(resource.shape)] = amount
    found = (charged[:, None, :] >= charged[None, :, :]).all(axis=2)
    found &= ~np.triu(found.T)
    pairs: Integers = np.argwhere(found)
    return pairs


@dataclass(frozen=True, slots=True, eq=False)
class PlanningClass:
    """Interchangeable waiting actions.

    Attributes:
        key: What they have in common.
        job: Their job.
        priority: Smaller goes first, strictly.
        count: How many there are.
        weight: Mean weight of a member.
        block: How they can be started.
        limits: Most members that can start now by each option, wherever units lie; shape (options,).
        overdue_s: How long ago the oldest of them should have had its turn, however long it takes; 0 if none is late.
        waited_s: How long they have waited so far on average, for forecasts.
    """

    key: Hashable
    job: str
    priority: int
    count: int
    weight: float
    block: OptionBlock
    limits: Integers
    overdue_s: float = 0.0
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobShare:
    """A job's claim on what is short.

    Attributes:
        weight: Its weight among jobs of its priority class.
        used: Units it holds now, by kind of resource.
    """

    weight: float
    used: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class PlanningInstance:
    """A planning round's question.

    Attributes:
        resources: Rows.
        classes: Waiting actions.
        shares: By job; jobs that are not named have weight 1 and use nothing.
        dispatch_cap: Most members to start in this round.
    """

    resources: tuple[ResourceRow, ...]
    classes: tuple[PlanningClass, ...]
    shares: Mapping[str, JobShare] = field(default_factory=dict)
    dispatch_cap: int = 1_000_000
