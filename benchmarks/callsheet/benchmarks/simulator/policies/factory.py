"""How a policy is made, and to which scenarios it applies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from callsheet.benchmarks.simulator.policy import Policy, World
from callsheet.benchmarks.simulator.scenario import Scenario


@dataclass(frozen=True, slots=True)
class PolicyFactory:
    """Makes one policy.

    Attributes:
        name: Under which results are reported.
        make: Makes the policy for a world.
        applies: Whether the policy means anything for a scenario; where it does not, its result is null.
    """

    name: str
    make: Callable[[World], Policy]
    applies: Callable[[Scenario], bool] = lambda scenario: True

    def __call__(self, world: World) -> Policy:
        """The policy for that world."""
        return self.make(world)
