"""How large the sandbox benchmark is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from callsheet.managers.sandbox.settings import FEWEST_MEMORY_MIB, Isolation, IsolationOption
from callsheet.options.common import whole_numbers
from callsheet.options.declaration import AtLeast, Setting, check_least


@dataclass(frozen=True, slots=True)
class SandboxBenchSettings:
    """Sizes of the sandbox benchmark.

    Attributes:
        concurrent: Sandboxes that are asked for at once where there must be many.
    """

    sandboxes: Annotated[
        tuple[int, ...],
        Setting("Numbers of live sandboxes, with commas.", default="1,100,500", text=str, parse=whole_numbers),
    ] = (1, 100, 500)
    isolation: IsolationOption = Isolation.BUBBLEWRAP
    samples: Annotated[int, Setting("Of everything that takes milliseconds.", least=1)] = 50
    long_actions: Annotated[int, Setting("Commands of one second, one after another.", least=1)] = 7
    memory_mib: Annotated[int, Setting("Limit of each sandbox.", least=1)] = 32
    concurrent: Annotated[int, AtLeast(1)] = 8

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: One is too small; the message names it.
        """
        check_least(self)
        if not self.sandboxes or min(self.sandboxes) < 1:
            raise ValueError(f"sandboxes: {self.sandboxes} must be at least one number, and each at least 1")
        if self.memory_mib < FEWEST_MEMORY_MIB:
            raise ValueError(f"memory_mib: {self.memory_mib} must be at least {FEWEST_MEMORY_MIB}")
