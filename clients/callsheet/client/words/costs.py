"""What work cost, by resource, and in money."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TIMED = ("cpu", "memory", "gpu")
"""Resources that are held for a time."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What an action, a trajectory, a group or a job cost; see docs/concepts/costs.md for each resource.

    Attributes:
        held: What was kept from others, used or not: "cpu" in core-seconds, "memory" in GiB-seconds, "gpu" in
            GPU-seconds.
        used: What was used, as far as that was measured: "cpu" and "memory" in the same units, "tokens_in" without
            "tokens_cached", "tokens_out", and "calls:SERVICE".
    """

    held: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)

    def money(self, prices: Mapping[str, float]) -> float:
        """Returns what it is in money: time is paid as it was held, all else as it was used.

        Args:
            prices: Money for one unit, by resource. "calls" is the price of a call of any service without one of its
                own; what has no price is free.
        """
        timed = sum(self.held.get(resource, 0.0) * prices.get(resource, 0.0) for resource in TIMED)
        counted = (
            amount * prices.get(resource, prices.get(resource.partition(":")[0], 0.0))
            for resource, amount in self.used.items()
            if resource not in TIMED
        )
        return timed + sum(counted)


NO_COST = Cost()
