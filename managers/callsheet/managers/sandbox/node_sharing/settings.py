"""How a node is shared."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeSharingSettings:
    """Settings of `NodeSharing`.

    Attributes:
        beta: CPU seconds of rank that one second of waiting is worth. A command's slowdown stays at most
            1 + 1 / beta while that is feasible; with 0 no command is ever overdue.
        quantum_s: CPU seconds that a new command may attain before others are compared with it.
        growth: Factor between the levels of attained CPU. Large, so that a command that has attained much goes after
            all that are likely to end soon, but does not have to share with others like it.
        claim_growth: An overdue command that is promoted may attain this fraction more before it is compared again.
        max_stall_s: Longest time in the background with next to no CPU; then a command gets a turn in the foreground
            whatever its rank.
        use_memory_s: Seconds in the foreground after which measured use counts as much as the predicted one.
        overfill: Cores by which the foreground may exceed the node before somebody is demoted for it, so that small
            errors of predicted use move nobody. More than a fraction of a core slows everybody down for the last.
    """

    beta: float = 0.2
    quantum_s: float = 1.0
    growth: float = 12.0
    claim_growth: float = 0.05
    max_stall_s: float = 30.0
    use_memory_s: float = 1.0
    overfill: float = 0.05

    def __post_init__(self) -> None:
        """Raises ValueError naming field, value and rule."""
        for name, above in (("quantum_s", 0.0), ("growth", 1.0), ("max_stall_s", 0.0), ("use_memory_s", 0.0)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > above):
                raise ValueError(f"{name}: {value}: must be finite and more than {above:g}")
        for name in ("beta", "claim_growth", "overfill"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: {value}: must be finite and at least 0")
