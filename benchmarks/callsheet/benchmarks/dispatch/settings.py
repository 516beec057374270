"""How much the dispatch benchmark measures."""

from __future__ import annotations

from dataclasses import dataclass, field

from callsheet.benchmarks.dispatch.ray_baseline import RaySettings


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """Sizes of the dispatch benchmark.

    Attributes:
        actions: Actions in one repetition of the throughput measurement.
        in_flight: Actions under way meanwhile.
        repetitions: Repetitions of each measurement; medians over them count.
        idle_samples: Actions of the idle latency, over all repetitions.
        idle_warm_up: Unmeasured actions before each repetition.
        burst: Actions submitted at once.
        seed: Action ids are drawn from it.
        ray: Ray's share.
    """

    actions: int = 20_000
    in_flight: int = 2_000
    repetitions: int = 3
    idle_samples: int = 900
    idle_warm_up: int = 100
    burst: int = 10_000
    seed: int = 0
    ray: RaySettings = field(default_factory=RaySettings)

    def __post_init__(self) -> None:
        for name in ("actions", "in_flight", "repetitions", "idle_samples", "burst"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least 1")
