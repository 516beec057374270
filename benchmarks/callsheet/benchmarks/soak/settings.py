"""How long a soak takes, and how hard it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from callsheet.options.common import comma_separated
from callsheet.options.declaration import Setting, check_least

SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"


@dataclass(frozen=True, slots=True)
class SoakSettings:
    """Sizes of a soak; times in seconds."""

    duration_s: Annotated[float, Setting("Seconds in all; each database gets its part.", least=1)] = 600.0
    databases: Annotated[
        tuple[str, ...],
        Setting(
            "Journals, one after another, with commas.",
            metavar="NAME,...",
            default=f"{SQLITE},{POSTGRESQL}",
            text=str,
            parse=comma_separated,
        ),
    ] = (SQLITE, POSTGRESQL)
    samples: Annotated[int, Setting("Looks at memory and disk for each database.", least=6)] = 20
    actions_per_s: Annotated[int, Setting("Small actions a second that are aimed at.", least=1)] = 200
    unread_sessions: Annotated[int, Setting("Client streams that are never read.", least=0)] = 4
    seed: Annotated[int, Setting("Chance comes from it.", least=0)] = 0

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            ValueError: One is wrong; the message names it.
        """
        check_least(self)
        if not self.databases or not set(self.databases) <= {SQLITE, POSTGRESQL}:
            raise ValueError(f"databases: {self.databases} must be some of {SQLITE} and {POSTGRESQL}")
