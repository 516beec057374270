"""How much the dispatch benchmark measures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from callsheet.benchmarks.dispatch.ray_baseline import RaySettings
from callsheet.options.declaration import Option


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """Sizes of the dispatch benchmark.

    Attributes:
        idle_warm_up: Unmeasured actions before each repetition.
        ray: Ray's share.
    """

    actions: Annotated[int, Option("Actions in one repetition of the throughput.", least=1)] = 20_000
    in_flight: Annotated[int, Option("Actions under way meanwhile.", least=1)] = 2_000
    repetitions: Annotated[int, Option("Repetitions; their medians count.", least=1)] = 3
    idle_samples: Annotated[int, Option("Actions of the idle latency.", least=1)] = 900
    idle_warm_up: int = 100
    burst: Annotated[int, Option("Actions submitted at once.", least=1)] = 10_000
    seed: Annotated[int, Option("Action ids are drawn from it.", least=0)] = 0
    ray: RaySettings = field(default_factory=RaySettings)

    def __post_init__(self) -> None:
        for name in ("actions", "in_flight", "repetitions", "idle_samples", "burst"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least 1")
