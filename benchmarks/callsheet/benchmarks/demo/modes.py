"""The two ways in which the demo runs the same workload: Callsheet's, and one core reserved per trajectory."""

from __future__ import annotations

from dataclasses import dataclass

from callsheet.client import Hold
from callsheet.client.words.options import Demand, Resource
from callsheet.managers.sandbox.settings import CoreSharing

SANDBOX_MEMORY_MIB = 192
_MEMORY = Resource("memory", SANDBOX_MEMORY_MIB, hold=Hold.TRAJECTORY)


@dataclass(frozen=True, slots=True)
class DemoMode:
    """Demands of each kind of action.

    Attributes:
        name: For people and job ids.
        description: One line for people.
        reset: Demand of env_reset.
        in_sandbox: Demand of env_step and of test suites in the sandbox.
        share_cores: How the sandbox manager divides its cores.
        holds_core: Whether a trajectory keeps its core from env_reset to its end.
        tokens_per_s: The pace of thoughts: by default that of a model which can decide such things, for one request on
            an engine's GPUs.
    """

    name: str
    description: str
    reset: Demand
    in_sandbox: Demand
    share_cores: CoreSharing
    holds_core: bool
    tokens_per_s: float = 100.0


CALLSHEET = DemoMode(
    name="callsheet",
    description="all actions share the cores, ranked; a trajectory holds memory only",
    reset=Demand(_MEMORY, cpu=1),
    in_sandbox=Demand(cpu=1),
    share_cores=CoreSharing.RANKED,
    holds_core=False,
)
RESERVED = DemoMode(
    name="reserved",
    description="a trajectory holds one core from its env_reset to its end",
    reset=Demand(_MEMORY, Resource("cpu", 1, hold=Hold.TRAJECTORY)),
    # These run on the core that the sandbox holds.
    in_sandbox=Demand(),
    share_cores=CoreSharing.RESERVED,
    holds_core=True,
)
