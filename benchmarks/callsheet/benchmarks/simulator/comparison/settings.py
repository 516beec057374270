"""What a comparison is of; small enough to be sent to worker processes, which draw the scenario themselves."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated

from callsheet.benchmarks.simulator.scenario import Mode, Scenario
from callsheet.options.declaration import PathRule, Setting


@dataclass(frozen=True, slots=True)
class ScenarioSource:
    """Where the scenario of a seed comes from: a workload, or a trace that is resampled."""

    workload: Annotated[
        str,
        Setting("coding, deepsearch, math, games, mopd or mixed; names the machines of a trace.", default="coding"),
    ]
    mode: Annotated[
        Mode, Setting("One step of N trajectories, or N live ones, replaced as they end.", default=Mode.ONESHOT)
    ]
    trajectories: Annotated[int | None, Setting("N.", default_text="the workload's", least=1)] = None
    cores: Annotated[int | None, Setting("Cores in all.", default_text="the workload's", least=1)] = None
    nodes: Annotated[
        int | None, Setting("CPU nodes that the cores are on.", default_text="as few as will do", least=1)
    ] = None
    gb_per_core: Annotated[
        float | None, Setting("Memory of a CPU node for each core, in GB.", default_text="the workload's", least=0.01)
    ] = None
    gpus: Annotated[int | None, Setting("GPUs of services.", default_text="the workload's", least=1)] = None
    generation_scale: Annotated[float, Setting("How many times slower the policy model is.", least=0.01)] = 1.0
    reward_mix: Annotated[
        str | None, Setting('A mix of its rewards; "none" for none.', flag="--rewards", default_text="the usual one")
    ] = None
    trace: Annotated[
        Path | None,
        Setting("Trajectories from a trace file, resampled.", path=PathRule(exists=True, directory=False, file=True)),
    ] = None

    def scenario(self, seed: int) -> Scenario:
        """Draws the scenario, or returns the last one if it is asked for again: thousands of trajectories take seconds.

        Raises:
            ValueError: The workload, the trace or a number is not valid; the message says which and why.
            OSError: The trace cannot be read.
        """
        return _drawn(self, seed)


@lru_cache(maxsize=1)
def _drawn(source: ScenarioSource, seed: int) -> Scenario:
    # Here, so that the help of the command line needs no extra.
    from callsheet.benchmarks.simulator import traces, workloads

    draw = workloads.scenario if source.trace is None else partial(traces.scenario, source.trace)
    return draw(
        source.workload,
        mode=source.mode,
        trajectories=source.trajectories,
        seed=seed,
        cores=source.cores,
        nodes=source.nodes,
        gb_per_core=source.gb_per_core,
        gpus=source.gpus,
        generation_scale=source.generation_scale,
        reward_mix=source.reward_mix,
    )


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """Which policies meet which scenarios.

    Attributes:
        source: The scenarios.
        seeds: One scenario for each.
        policies: Names, in the order of the report.
        processes: Simulations at once.
    """

    source: ScenarioSource
    seeds: tuple[int, ...]
    policies: tuple[str, ...]
    processes: int = 1

    def __post_init__(self) -> None:
        """Checks what no scenario checks.

        Raises:
            ValueError: There is nothing to run.
        """
        if not self.seeds or not self.policies or self.processes < 1:
            raise ValueError("a comparison needs at least one seed, one policy and one process")


@dataclass(frozen=True, slots=True)
class ComparisonOptions:
    """Which policies are simulated how often, what is run besides, and what becomes of the figures."""

    seed: Annotated[int, Setting("The first seed.", least=0)] = 1
    seeds: Annotated[int, Setting("How many seeds, counting up; every policy meets all.", least=1)] = 1
    policies: Annotated[
        tuple[str, ...],
        Setting("A policy to run; may be given again.", flag="--policy", default_text="all", repeatable=True),
    ] = ()
    check: Annotated[
        str | None,
        Setting("Ranges the figures must be in: a file, or the name of one that comes along.", metavar="FILE"),
    ] = None
    processes: Annotated[int | None, Setting("Simulations at once.", default_text="all cores", least=1)] = None

    @property
    def at_once(self) -> int:
        """Simulations at once."""
        return self.processes or len(os.sched_getaffinity(0))
