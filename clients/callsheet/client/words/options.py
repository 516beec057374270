"""Keyword arguments of an action of any kind, its demand, and how a model samples.

A demand is a vector over resources, each entry fixed or elastic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Final, TypedDict, TypeGuard

from callsheet.client.errors import invalid
from callsheet.client.words.arguments import instance, no_unknown
from callsheet.v1.action_values import Hold, Retry, Sampling, Timeouts, Unservable

_MILLI: Final = 1000
# Thousandths are 64-bit numbers on the wire.
_MOST_UNITS: Final = (2**63 - 1) // _MILLI
# Of a decimal fraction that a float can only come close to.
_ROUNDING: Final = 1e-9
_UNITS_RULE: Final = "units are a number"


_HINTS: Final = {each.name: f"pass sampling=Sampling({each.name}=...)" for each in fields(Sampling)} | {
    "max_tokens": "pass sampling=Sampling(max_new_tokens=...)",
    "in_sandbox": "pass where=Where.IN_SANDBOX or where=Where.FRESH",
    "timeout": "pass timeouts=Timeouts(start_to_close_s=...)",
    "timeout_s": "pass timeouts=Timeouts(start_to_close_s=...)",
}


@dataclass(frozen=True, slots=True)
class Elastic:
    """A range of units, with the gain from more than the fewest; see `Resource`.

    Attributes:
        min_units: The fewest units it runs with.
        max_units: The most units it can use.
        amdahl_fraction: Amdahl's parallel fraction, 0 (no gain) to 1 (linear).
        speed_up: Measured instead: units to (time at `min_units` / time at these units). Neither means linear.
        hold: How long the units are held.

    Raises:
        InvalidArgumentError: Units are no numbers. What else is wrong is told once the range has a resource.
    """

    min_units: int | float
    max_units: int | float
    amdahl_fraction: float | None = None
    speed_up: Mapping[int, float] | None = None
    hold: Hold = Hold.ACTION

    def __post_init__(self) -> None:
        """Checks the rules that hold for every resource."""
        for name, units in (("min_units", self.min_units), ("max_units", self.max_units)):
            if not _is_number(units):
                raise invalid(f"elastic.{name}", units, _UNITS_RULE)


@dataclass(frozen=True, slots=True)
class Resource:
    """The need for one resource.

    Units are whole, but "cpu" has thousandths: `Demand(cpu=0.5)` is half a core. A grant is whole. Where cores are
    reserved, a fraction is rounded up; where a manager shares them, no more than the fraction is charged.

    Attributes:
        name: "cpu" (cores), "memory" (MiB), "gpu" (devices), or any name that managers register.
        min_units: The fewest units it runs with; 0 or more.
        max_units: The most units it can use; None means `min_units`: not elastic.
        amdahl_fraction: Amdahl's parallel fraction, 0 (no gain) to 1 (linear).
        speed_up: Points (units, time at `min_units` / time at these units) with increasing units, measured instead.
            Neither means linear.
        hold: How long the units are held.

    Raises:
        InvalidArgumentError: A number out of its range, or two speed-up curves.
    """

    name: str
    min_units: int | float
    max_units: int | float | None = None
    amdahl_fraction: float | None = None
    speed_up: tuple[tuple[int, float], ...] = ()
    hold: Hold = Hold.ACTION

    def __post_init__(self) -> None:
        """Checks the rules that need no knowledge of any manager."""
        if not instance("demand.resource", self.name, str, "text: the name of a resource"):
            raise invalid("demand.resource", self.name, "a resource has a name")
        where = f"demand.{self.name}"
        instance(f"{where}.hold", self.hold, Hold, "a Hold: Hold.ACTION or Hold.TRAJECTORY")
        object.__setattr__(self, "min_units", self._checked(f"{where}.min_units", self.min_units))
        if self.max_units is not None:
            object.__setattr__(self, "max_units", self._checked(f"{where}.max_units", self.max_units))
        if self.max_units is not None and self.max_units < self.min_units:
            raise invalid(f"{where}.max_units", self.max_units, f"at least min_units ({self.min_units})")
        if self.amdahl_fraction is not None and not (
            _is_number(self.amdahl_fraction) and 0 <= self.amdahl_fraction <= 1
        ):
            raise invalid(f"{where}.amdahl_fraction", self.amdahl_fraction, "between 0 and 1")
        if self.amdahl_fraction is not None and self.speed_up:
            raise invalid(f"{where}.speed_up", self.speed_up, "amdahl_fraction and speed_up exclude each other")
        self._check_points(where)

    @property
    def min_milli_units(self) -> int:
        """`min_units` in thousandths."""
        return round(self.min_units * _MILLI)

    @property
    def max_milli_units(self) -> int:
        """`max_units` in thousandths; 0 if the resource is not elastic."""
        return round((self.max_units or 0) * _MILLI)

    def _checked(self, where: str, given: object) -> int | float:
        """Units as one of Python's numbers: those of other libraries may overflow when they are multiplied."""
        if not _is_number(given):
            raise invalid(where, given, _UNITS_RULE)
        units = int(given) if isinstance(given, Integral) else float(given)
        if units < 0:
            raise invalid(where, units, "units are 0 or more")
        if units > _MOST_UNITS:
            raise invalid(where, units, f"units are at most {_MOST_UNITS}")
        if self.name != "cpu" and units != int(units):
            raise invalid(where, units, 'units are whole: only those of "cpu" have fractions')
        if abs(units * _MILLI - round(units * _MILLI)) > _ROUNDING * max(units, 1):
            raise invalid(where, units, "cores come in thousandths")
        return units

    def _check_points(self, where: str) -> None:
        if not _are_points(self.speed_up):
            raise invalid(f"{where}.speed_up", self.speed_up, "points of whole units and a number each")
        units = [point for point, _ in self.speed_up]
        if any(later <= earlier for earlier, later in pairwise(units)) or min(units, default=1) < 1:
            raise invalid(f"{where}.speed_up", self.speed_up, "units are at least 1 and strictly increase")
        if not all(gain > 0 and math.isfinite(gain) for _, gain in self.speed_up):
            raise invalid(f"{where}.speed_up", self.speed_up, "a speed-up is above 0 and finite")


class Demand:
    """A vector over resources, each named once.

    Resources whose name is a Python identifier can be given by keyword; any other, or one that is held by the
    trajectory, as a `Resource`:

        Demand(cpu=0.5)
        Demand(cpu=Elastic(1, 4, amdahl_fraction=0.9), memory=256)
        Demand(Resource("memory", 512, hold=Hold.TRAJECTORY), Resource("gpu.h100", 1), cpu=2)

    `Demand()` asks for nothing but a slot of the service.

    Attributes:
        resources: The entries, in the order they were given.

    Raises:
        InvalidArgumentError: A resource named twice, or an entry that is wrong in itself.
    """

    __slots__ = ("resources",)

    def __init__(self, *entries: Resource, **units: int | float | Elastic) -> None:
        resources = (*entries, *(_named(name, need) for name, need in units.items()))
        seen: set[str] = set()
        for index, resource in enumerate(resources):
            instance(f"demand[{index}]", resource, Resource, "a Resource; units are given by name, as in Demand(cpu=1)")
            if resource.name in seen:
                raise invalid("demand.resource", resource.name, "each resource is named once")
            seen.add(resource.name)
        self.resources: tuple[Resource, ...] = resources

    def __eq__(self, other: object) -> bool:
        """Demands are equal if their entries are, in the same order."""
        return isinstance(other, Demand) and self.resources == other.resources

    def __hash__(self) -> int:
        """By the entries."""
        return hash(self.resources)

    def __repr__(self) -> str:
        """As it could have been written."""
        return f"Demand({', '.join(map(repr, self.resources))})"


def _is_number(value: object) -> TypeGuard[int | float]:
    if isinstance(value, Real) and not isinstance(value, Integral):
        return not math.isnan(value)
    return isinstance(value, Integral) and not isinstance(value, bool)


def _are_points(points: object) -> bool:
    return isinstance(points, Sequence) and all(
        isinstance(point, Sequence) and len(point) == 2 and isinstance(point[0], Integral) and _is_number(point[1])
        for point in points
    )


def _named(name: str, need: int | float | Elastic) -> Resource:
    if not isinstance(need, Elastic):
        return Resource(name, need)
    gains: object = need.speed_up or {}
    if not (isinstance(gains, Mapping) and _are_points(tuple(gains.items()))):
        raise invalid(f"demand.{name}.speed_up", gains, "a mapping of whole units to a number each")
    points = tuple(sorted(gains.items()))
    return Resource(name, need.min_units, need.max_units, need.amdahl_fraction, points, need.hold)


class ActionOptions(TypedDict, total=False):
    """Keyword arguments that every action takes.

    Attributes:
        action_id: The idempotency key, unique in the job; None makes a new one. A submit under the id of an earlier one
            with the same body attaches to it.
        label: Class of work for prediction and reports, for instance "pytest" or "edit".
        task: The task (prompt) it belongs to; siblings of a group share it.
        demand: Its units; None takes the kind's default.
        timeouts: Its deadlines; None takes the server's defaults.
        retry: Its retries; None takes the server's defaults.
        weight: Weight in the mean completion time; above 0. A job's fair share is another thing: `open_job(share=)`.
        unservable: Its treatment if no registered manager can ever serve it.
        expected_duration_s: Hint: expected execution time at the fewest units, in seconds.
        traceparent: The caller's span, as W3C Trace Context writes it; the scheduler's spans of the action become its
            children. None or empty is for none.
    """

    action_id: str | None
    label: str
    task: str
    demand: Demand | None
    timeouts: Timeouts | None
    retry: Retry | None
    weight: float
    unservable: Unservable
    expected_duration_s: float | None
    traceparent: str | None


_KNOWN: Final = tuple(ActionOptions.__annotations__)


def check_options(given: Mapping[str, Any], verb: Sequence[str] = ()) -> None:
    """Refuses keyword arguments that no action takes.

    Args:
        given: The keyword arguments.
        verb: Names of the verb's own arguments, for the hint.

    Raises:
        InvalidArgumentError: One is not known; the rule names the nearest that is.
    """
    no_unknown(given, _KNOWN, _HINTS, verb)
