"""How large the storms of resets are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from callsheet.managers.sandbox.settings import FEWEST_MEMORY_MIB
from callsheet.options.common import whole_numbers
from callsheet.options.declaration import Setting, check_least


@dataclass(frozen=True, slots=True)
class StormSettings:
    """Sizes of the storms; each is run with each number of images and of hosts."""

    resets: Annotated[
        tuple[int, ...], Setting("Resets at once, with commas.", default="100,1000", text=str, parse=whole_numbers)
    ] = (100, 1_000)
    images: Annotated[
        tuple[int, ...], Setting("Different images, with commas.", default="1,20", text=str, parse=whole_numbers)
    ] = (1, 20)
    hosts: Annotated[
        tuple[int, ...],
        Setting(
            "Managers, as of hosts, with commas.",
            default="1,3",
            text=str,
            parse=whole_numbers,
        ),
    ] = (1, 3)
    memory_mib: Annotated[int, Setting("Limit of each sandbox.", least=FEWEST_MEMORY_MIB)] = 16

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            ValueError: One is too small; the message names it.
        """
        check_least(self)
        for name in ("resets", "images", "hosts"):
            numbers = getattr(self, name)
            if not numbers or min(numbers) < 1:
                raise ValueError(f"{name}: {numbers} must be at least one number, and each at least 1")
