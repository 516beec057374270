"""How much the gateway benchmark runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from callsheet.options.declaration import AtLeast, Setting, check_least


@dataclass(frozen=True, slots=True)
class GatewayBenchSettings:
    """Sizes of the gateway benchmark.

    Attributes:
        branching: Share of conversations in which sub-agents make branches.
        restarts: Share of conversations whose gateway is restarted after each call, in one process.
        shortened: Share of replies of which the harness sends back only the beginning.
    """

    conversations: Annotated[int, Setting("Conversations.", least=1)] = 1_000
    calls: Annotated[int, Setting("The most calls of a conversation, branches left out; at least 6.", least=6)] = 14
    in_process: Annotated[
        bool, Setting("Leave out HTTP, scheduler and processes: conversations and engine alone.", flag="--in-process")
    ] = False
    kills: Annotated[int, Setting("How often the gateway is killed meanwhile.", least=0)] = 3
    seed: Annotated[int, Setting("Everything is drawn from it.", least=0)] = 0
    branching: Annotated[float, AtLeast(0)] = 0.3
    restarts: Annotated[float, AtLeast(0)] = 0.1
    shortened: Annotated[float, AtLeast(0)] = 0.02

    def __post_init__(self) -> None:
        """Checks the sizes.

        Raises:
            ValueError: One breaks its rule.
        """
        check_least(self)
