"""Every policy of the simulator, by name."""

from __future__ import annotations

from callsheet.benchmarks.simulator.policies.callsheet import CALLSHEET
from callsheet.benchmarks.simulator.policies.os_sharing import OS_SHARING
from callsheet.benchmarks.simulator.policy import PolicyFactory

POLICIES: dict[str, PolicyFactory] = {factory.name: factory for factory in (CALLSHEET, OS_SHARING)}
