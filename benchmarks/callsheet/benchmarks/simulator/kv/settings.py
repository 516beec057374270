"""How large the comparison of KV policies is."""

from __future__ import annotations

from dataclasses import dataclass

from callsheet.benchmarks.simulator.kv.shapes import SHAPES

DEMANDS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
# Seeds that a comparison has at least: one of them says little.
LEAST_SEEDS = 3


@dataclass(frozen=True, slots=True)
class KvSettings:
    """Which scenarios all policies meet.

    Attributes:
        shapes: See `kv.shapes`.
        demands: Tokens of live trajectories' contexts by those that all KV caches hold.
        engines: Engines.
        horizon_s: Virtual seconds of a run; the first quarter counts for nothing.
        prefill_scales: Times the engines' prefill rate; others than 1 only at the highest demand of the first shape.
        processes: Simulations at once.
    """

    seeds: tuple[int, ...]
    shapes: tuple[str, ...] = SHAPES
    demands: tuple[float, ...] = DEMANDS
    engines: int = 4
    horizon_s: float = 3600.0
    prefill_scales: tuple[float, ...] = (1.0, 0.5, 2.0)
    processes: int = 1
