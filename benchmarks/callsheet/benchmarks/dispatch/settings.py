"""How much the dispatch benchmark measures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from callsheet.options.declaration import Setting, check_least


@dataclass(frozen=True, slots=True)
class RaySettings:
    """How much work Ray gets.

    Attributes:
        windows: Calls in flight to try, each `ray.get` taking a whole window; the best of them counts.
        repetitions: Measurements of each window; their median counts.
    """

    calls: Annotated[int, Setting("Calls in one of Ray's repetitions.", flag="--ray-calls", least=1)] = 4000
    windows: tuple[int, ...] = (1000, 4000)
    repetitions: int = 3


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """Sizes of the dispatch benchmark.

    Attributes:
        idle_warm_up: Unmeasured actions before each repetition.
        ray: Ray's share.
    """

    actions: Annotated[int, Setting("Actions in one repetition of the throughput.", least=1)] = 20_000
    in_flight: Annotated[int, Setting("Actions under way meanwhile.", least=1)] = 2_000
    repetitions: Annotated[int, Setting("Repetitions; their medians count.", least=1)] = 3
    idle_samples: Annotated[int, Setting("Actions of the idle latency.", least=1)] = 900
    idle_warm_up: int = 100
    burst: Annotated[int, Setting("Actions submitted at once.", least=1)] = 10_000
    seed: Annotated[int, Setting("Action ids are drawn from it.", least=0)] = 0
    ray: RaySettings = field(default_factory=RaySettings)

    def __post_init__(self) -> None:
        check_least(self)
