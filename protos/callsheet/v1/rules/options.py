"""Rules for options of every action: demand, timeouts and retries. Each raises RefusedError INVALID_ARGUMENT."""

from __future__ import annotations

from typing import Final

from callsheet.v1 import action_pb2
from callsheet.v1.refusals import invalid
from callsheet.v1.rules.fields import at_least, few, identifier, known, seconds, within

MILLI: Final = 1000
"""Thousandths of a unit."""
DEFAULT_SCHEDULE_TO_START: Final = 1800.0
DEFAULT_START_TO_CLOSE: Final = 600.0
DEFAULT_SCHEDULE_TO_CLOSE: Final = 3600.0
_CPU: Final = "cpu"
# Durations divided by the product of all speed-ups must stay finite.
_MIN_SPEED_UP: Final = 0.01
_MAX_SPEED_UP: Final = 1e6
_MAX_SPEED_UP_POINTS: Final = 256
# The widths of elastic resources are planned together, each with each.
_MAX_ELASTIC: Final = 4
# Every round looks at all of them for each class that waits.
_MAX_RESOURCES: Final = 64
_HOLDS: Final = frozenset(action_pb2.Hold.values())


def check_demand(demand: action_pb2.Demand, *, of_reset: bool) -> None:
    """Checks a demand; only an env_reset may hold resources for its trajectory."""
    few("demand.resources", len(demand.resources), _MAX_RESOURCES, "entries")
    names: set[str] = set()
    ranges = 0
    for index, entry in enumerate(demand.resources):
        path = f"demand.resources[{index}]"
        if identifier(f"{path}.resource", entry.resource) in names:
            raise invalid(f"{path}.resource", entry.resource, "is named twice")
        names.add(entry.resource)
        _check_units(path, entry)
        if known(f"{path}.hold", entry.hold, _HOLDS) == action_pb2.HOLD_TRAJECTORY and not of_reset:
            raise invalid(f"{path}.hold", "HOLD_TRAJECTORY", "is only for env_reset")
        least, most = whole_units(entry)
        ranges += most > least
        if entry.HasField("speed_up"):
            if most == least and entry.speed_up.WhichOneof("curve"):
                rule = "is only for an elastic entry: its most units, rounded up, must be above its fewest"
                raise invalid(f"{path}.speed_up", entry.speed_up.WhichOneof("curve"), rule)
            _check_speed_up(f"{path}.speed_up", entry.speed_up)
    if ranges > _MAX_ELASTIC:
        raise invalid("demand.resources", f"{ranges} elastic entries", f"must have at most {_MAX_ELASTIC} of them")


def whole_units(entry: action_pb2.ResourceDemand) -> tuple[int, int]:
    """Returns the fewest and the most units of an entry, rounded up to whole ones."""
    return -(-entry.min_milli_units // MILLI), -(-(entry.max_milli_units or entry.min_milli_units) // MILLI)


def _check_units(path: str, entry: action_pb2.ResourceDemand) -> None:
    for side in ("min_milli_units", "max_milli_units"):
        units = at_least(f"{path}.{side}", getattr(entry, side), 0)
        if units % MILLI and entry.resource != _CPU:
            rule = f"must be a multiple of {MILLI}: only {_CPU!r} has fractions, and {entry.resource!r} whole units"
            raise invalid(f"{path}.{side}", units, rule)
    if 0 < entry.max_milli_units < entry.min_milli_units:
        rule = f"must be 0 or at least min_milli_units ({entry.min_milli_units})"
        raise invalid(f"{path}.max_milli_units", entry.max_milli_units, rule)


def _check_speed_up(path: str, speed_up: action_pb2.SpeedUp) -> None:
    curve = speed_up.WhichOneof("curve")
    if curve is None:
        raise invalid(path, "", "must have exactly one of amdahl_fraction and table")
    if curve == "amdahl_fraction":
        within(f"{path}.amdahl_fraction", speed_up.amdahl_fraction, 0.0, 1.0)
        return
    points = speed_up.table.points
    if not 0 < len(points) <= _MAX_SPEED_UP_POINTS:
        raise invalid(f"{path}.table.points", f"{len(points)} points", f"must have 1 to {_MAX_SPEED_UP_POINTS} points")
    least = 1
    for index, point in enumerate(points):
        at_least(f"{path}.table.points[{index}].units", point.units, least)
        within(f"{path}.table.points[{index}].speed_up", point.speed_up, _MIN_SPEED_UP, _MAX_SPEED_UP)
        least = point.units + 1


def check_timeouts(timeouts: action_pb2.Timeouts) -> None:
    """Checks the four deadlines and that they nest."""
    start = seconds("timeouts.schedule_to_start", timeouts.schedule_to_start)
    execute = seconds("timeouts.start_to_close", timeouts.start_to_close)
    close = seconds("timeouts.schedule_to_close", timeouts.schedule_to_close) or default_close(start, execute)
    heartbeat = seconds("timeouts.heartbeat", timeouts.heartbeat)
    for name, value in (("schedule_to_start", start), ("start_to_close", execute), ("heartbeat", heartbeat)):
        if value > close:
            raise invalid(f"timeouts.{name}", f"{value} s", f"must nest in schedule_to_close ({close} s)")
    if heartbeat and execute and heartbeat > execute:
        raise invalid("timeouts.heartbeat", f"{heartbeat} s", f"must nest in start_to_close ({execute} s)")


def default_close(start: float, execute: float) -> float:
    """Returns the schedule_to_close, in seconds, of an action that has none: its other deadlines must fit."""
    return max(DEFAULT_SCHEDULE_TO_CLOSE, (start or DEFAULT_SCHEDULE_TO_START) + execute)


def check_retry(retry: action_pb2.RetryPolicy) -> None:
    """Checks attempts and backoff."""
    at_least("retry.max_attempts", retry.max_attempts, 0)
    if retry.backoff_multiplier:
        at_least("retry.backoff_multiplier", retry.backoff_multiplier, 1.0)
    seconds("retry.initial_backoff", retry.initial_backoff)
    seconds("retry.max_backoff", retry.max_backoff)
