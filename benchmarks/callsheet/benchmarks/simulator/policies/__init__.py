"""Every policy of the simulator, by name."""

from __future__ import annotations

from callsheet.benchmarks.simulator.policies.callsheet import CALLSHEET
from callsheet.benchmarks.simulator.policies.oracle_srpt import ORACLE_SRPT
from callsheet.benchmarks.simulator.policies.os_sharing import OS_SHARING, STATIC_SERVICES
from callsheet.benchmarks.simulator.policies.pods import fixed_size, reservation
from callsheet.benchmarks.simulator.policies.tangram import TangramSettings, tangram
from callsheet.benchmarks.simulator.policy import PolicyFactory

POLICIES: dict[str, PolicyFactory] = {
    factory.name: factory
    for factory in (
        CALLSHEET,
        reservation(1),
        reservation(2),
        reservation(4),
        fixed_size(1),
        fixed_size(4),
        fixed_size(16),
        fixed_size(1, 0.0),
        fixed_size(4, 0.0),
        fixed_size(16, 0.0),
        OS_SHARING,
        STATIC_SERVICES,
        tangram(),
        tangram(TangramSettings(resident_first=True)),
        ORACLE_SRPT,
    )
}
