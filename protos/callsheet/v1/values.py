"""Parts that the generated values (`*_values.py`) have in common."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, TypeVar

from google.protobuf import duration_pb2, timestamp_pb2

TIMED: Final = ("cpu", "memory", "gpu")
"""Resources that are held for a time."""
K = TypeVar("K")
V = TypeVar("V")


def seconds(value: duration_pb2.Duration | timestamp_pb2.Timestamp) -> float:
    """Returns a duration, or a time since 1970, in seconds."""
    return value.seconds + value.nanos / 1e9


def mapping(found: Mapping[K, V]) -> dict[K, V]:
    """Returns a map of a message as a dict.

    To walk over an empty map costs more than all else here, and protobuf's maps are made to dicts quickest so.
    """
    return {each: found[each] for each in found} if found else {}


class CostMethods:
    """Methods of `Cost`."""

    __slots__ = ()
    held: Mapping[str, float]
    used: Mapping[str, float]

    def money(self, prices: Mapping[str, float]) -> float:
        """Returns the cost in money: time is paid as it was held, all else as it was used.

        Args:
            prices: Money for one unit, by resource. "calls" is the price of a call of any service without one of its
                own; a resource without a price is free.
        """
        timed = sum(self.held.get(resource, 0.0) * prices.get(resource, 0.0) for resource in TIMED)
        counted = (
            amount * prices.get(resource, prices.get(resource.partition(":")[0], 0.0))
            for resource, amount in self.used.items()
            if resource not in TIMED
        )
        return timed + sum(counted)


class SchedulerMethods:
    """Methods of `SchedulerStatus`."""

    __slots__ = ()
    managers: tuple[Any, ...]

    def shared_units(self, node_id: str, resource: str) -> int:
        """Returns the units of a node that its managers share among their attempts. They are never free."""
        managers = [each for each in self.managers if each.node_id == node_id]
        pools = [[service.shared.get(resource, 0) for service in each.services] for each in managers]
        return sum(max(pool, default=0) for pool in pools)


class TimelineMethods:
    """Methods of `Timeline`."""

    __slots__ = ()
    waited_s: Mapping[str, float]

    @property
    def waiting_s(self) -> float:
        """All waits after the dispatch. With queue, execution and overhead their sum is the time from submit to end."""
        return sum(self.waited_s.values())


class EngineWeightsMethods:
    """Methods of `EngineWeights`."""

    __slots__ = ()
    standing: Enum

    @property
    def may_serve(self) -> bool:
        """Returns whether the engine may serve them."""
        return self.standing.name in {"INITIAL", "PROVED"}


class RolloutMethods:
    """Methods of `RolloutStatus`."""

    __slots__ = ()
    version: int
    service: str
    engines: tuple[Any, ...]

    @property
    def done(self) -> bool:
        """Returns whether there are engines, and all of them have proved the version."""
        return bool(self.engines) and all(engine.state.name == "PROVED" for engine in self.engines)

    @property
    def settled(self) -> bool:
        """Returns whether there are engines, and each has proved the version or has failed to."""
        return bool(self.engines) and all(engine.state.name in {"PROVED", "QUARANTINED"} for engine in self.engines)

    def __str__(self) -> str:
        """One line: version, service, and where each engine is and why."""
        engines = [f"{each.manager_id}: {each.state.value} {each.reason}".strip() for each in self.engines]
        return f"version {self.version} for {self.service}: " + ("; ".join(engines) or "there is no engine")
