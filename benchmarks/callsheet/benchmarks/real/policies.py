"""The policies that can run for real: what their actions demand, and how the service is started for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from callsheet.benchmarks.real.rollouts import Demands
from callsheet.client import Demand
from callsheet.client.demand import Hold, Resource
from callsheet.deploy.roles import Role

_MEMORY_MIB: Final = 64
_MEMORY: Final = Resource("memory", _MEMORY_MIB, hold=Hold.TRAJECTORY)
_ONE_CORE: Final = Demand(cpu=1)


@dataclass(frozen=True, slots=True)
class RealPolicy:
    """One policy.

    Attributes:
        simulated: The simulator's policy of the same kind; sandboxes are there before their commands, so pods are warm.
        arguments: Command line arguments of the service's processes.
        sleeps: Whether its commands sleep instead of using the CPU, for the comparison with Ray.
    """

    name: str
    simulated: str
    demands: Demands
    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sleeps: bool = False


_SHARED: Final = Demands(reset=Demand(_MEMORY, cpu=1), step=_ONE_CORE)
_WHOLE_CORES: Final[Mapping[str, tuple[str, ...]]] = {
    Role.SCHEDULER: ("--planner", "first-come"),
    Role.SANDBOX: ("--share-cores", "reserved"),
}

POLICIES: Final = (
    RealPolicy("callsheet", "callsheet", _SHARED),
    RealPolicy(
        "reserve_1",
        "reserve_1",
        Demands(reset=Demand(_MEMORY, Resource("cpu", 1, hold=Hold.TRAJECTORY)), step=Demand(), reserves=1),
        _WHOLE_CORES,
    ),
    RealPolicy("fixed_1", "fixed_1_warm", _SHARED, _WHOLE_CORES),
    RealPolicy("os_sharing", "os_sharing", _SHARED, {str(Role.SANDBOX): ("--share-cores", "plain")}),
    RealPolicy("callsheet_asleep", "callsheet", _SHARED, sleeps=True),
)
"""What runs through the service. Ray runs beside it, asleep as well."""
