"""Which engine, how many trajectories it has, and what they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from callsheet.managers.inference.settings import DEFAULT_ENGINE, Engine, EngineUrls
from callsheet.options.common import comma_separated, whole_numbers
from callsheet.options.declaration import Setting, check_least

ALL_AT_ONCE = 0
"""The bound of a client that sends everything at once."""
THROUGH_CALLSHEET = -1
"""In place of a bound: through Callsheet too, by a manager that does not tell what the engine's KV cache holds."""
EMBEDDED_KV_TOKENS = 8_192
"""KV cache of the embedded engine; a server has its own."""


def numbers(text: str) -> tuple[float, ...]:
    """Reads numbers with commas between them; raises ValueError that says so."""
    try:
        return tuple(map(float, comma_separated(text)))
    except ValueError as error:
        raise ValueError(f"{text!r} must be numbers with commas between them") from error


@dataclass(frozen=True, slots=True)
class KvBenchSettings:
    """Which engine, and sizes of the load; times in seconds."""

    engine: Engine = DEFAULT_ENGINE
    engine_options: Annotated[
        tuple[str, ...],
        Setting(
            "A setting of that driver's own; repeatable.", flag="--engine-option", metavar="NAME=VALUE", repeatable=True
        ),
    ] = ()
    urls: EngineUrls = ()
    server: Annotated[
        str | None,
        Setting(
            "Instead of --url: starts a server with this command line, in which {port} is filled in.", metavar="COMMAND"
        ),
    ] = None
    demands: Annotated[
        tuple[float, ...],
        Setting(
            "Contexts of live trajectories by the tokens that the KV cache holds, one after another, with commas.",
            metavar="NUMBER,...",
            default="0.75,2,3",
            text=str,
            parse=numbers,
        ),
    ] = (0.75, 2.0, 3.0)
    bounds: Annotated[
        tuple[int, ...],
        Setting(
            "Requests that plain clients send at once, one after another, with commas; 0 sends all. -1 goes through "
            "Callsheet, without KV admission. The best counts.",
            metavar="NUMBER,...",
            default="0,4",
            text=str,
            parse=whole_numbers,
        ),
    ] = (ALL_AT_ONCE, 4)
    rounds: Annotated[int, Setting("How often each runs; every second round in reverse order.", least=1)] = 1
    warm_up_s: Annotated[float, Setting("What a run does before it counts.", least=0)] = 25.0
    measure_s: Annotated[float, Setting("What of a run counts.", least=0.1)] = 60.0
    turns: Annotated[int, Setting("Generations of a trajectory.", least=2)] = 6
    context: Annotated[int, Setting("Tokens of its first prompt, on average.", least=8)] = 800
    observed: Annotated[int, Setting("Tokens that a tool call adds to the next prompt, on average.", least=2)] = 100
    tokens: Annotated[int, Setting("New tokens of each generation.", least=1)] = 24
    tool_s: Annotated[float, Setting("What half of the tool calls take at least.", least=0.001)] = 1.5
    tool_spread: Annotated[float, Setting("Standard deviation of the logarithm of that.", least=0)] = 1.0
    seed: Annotated[int, Setting("Chance comes from it.", least=0)] = 0

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            ValueError: One is wrong; the message names it.
        """
        check_least(self)
        if (self.engine != DEFAULT_ENGINE) != bool(self.urls or self.server):
            raise ValueError(f"engine: {self.engine}: a server needs --url or --server, the embedded engine neither")
        if self.urls and self.server:
            raise ValueError("server: must not be given with --url")
        if len(self.urls) > 1:
            raise ValueError(f"urls: {len(self.urls)} are given; one engine is measured")
        if not self.demands or min(self.demands) <= 0:
            raise ValueError(f"demands: {self.demands}: at least one must be given, and each must be above 0")
        if not self.bounds or min(self.bounds) < THROUGH_CALLSHEET:
            raise ValueError(f"bounds: {self.bounds}: at least one must be given, and none may be below -1")

    @property
    def mean_context(self) -> float:
        """Tokens that a trajectory holds at the end of a generation, on average."""
        return self.context + self.tokens + (self.turns - 1) / 2 * (self.observed + self.tokens)

    @property
    def longest_context(self) -> int:
        """The most that one may come to hold."""
        return int(1.3 * self.context) + self.turns * (int(1.5 * self.observed) + self.tokens)

    def live(self, demand: float, kv_tokens: int) -> int:
        """Trajectories that live at once at a demand, on a cache of so many tokens."""
        return max(1, round(demand * kv_tokens / self.mean_context))
