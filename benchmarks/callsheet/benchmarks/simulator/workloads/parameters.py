"""The parameters of a workload, as its file gives them. Times in seconds, memory in MB."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from callsheet.benchmarks.simulator.input_table import Between
from callsheet.benchmarks.simulator.scenario import EngineType, Model, Quota
from callsheet.benchmarks.simulator.workloads.distributions import Constant, Distribution, read_distribution
from callsheet.scheduler.core.model import ActionKind, PriorityClass

# The mix that is always there: no reward at all.
NO_REWARD = "none"
_NOTHING, _ONE = Constant(0.0), Constant(1.0)
Drawn: TypeAlias = Annotated[Distribution, read_distribution]
Part: TypeAlias = Annotated[float, Between(high=1.0)]
Share: TypeAlias = Annotated[float, Between(low=1e-6)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionParameters:
    """A class of actions.

    Attributes:
        share: How often it is chosen, relative to the others of its list; rewards of a mix are all submitted instead.
        duration_s: Seconds it takes alone: on one core, on its service, or at its outside API.
        use: Cores it uses then, in (0, 1]; 0 for calls.
        task_variance: Share of the variance of its score that all siblings of a task share.
        parallel_fraction: Amdahl's fraction, drawn once per task.
        services: Models it may call, each with its popularity; empty for others.
        calls: How many different services a reward calls (and how many actions that makes).
        fault_probability: Chance that an attempt fails in a way its kind retries.
    """

    kind: ActionKind
    label: str
    share: Share = 1.0
    duration_s: Drawn
    use: Annotated[float, Between(low=1e-3, high=1.0)]
    task_variance: Part = 0.0
    parallel_fraction: Drawn = _NOTHING
    max_width: Annotated[int, Between(low=1)] = 1
    adaptive: bool = False
    in_sandbox: bool
    peak_memory_mb: Drawn = _NOTHING
    services: Mapping[str, float]
    calls: Drawn = _ONE
    quota: str = ""
    tokens: Drawn = _NOTHING
    timeout_s: Annotated[float, Between(low=1e-3)] = float("inf")
    fault_probability: Annotated[float, Between(high=0.9)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParameters:
    """A turn of the policy model. Seconds and tokens are drawn at one score: long turns write many tokens.

    Attributes:
        first_context: Tokens of context at the first turn.
        context_growth: Tokens added per turn, beyond those written.
    """

    seconds: Drawn
    output_tokens: Drawn
    first_context: Annotated[int, Between(low=1)]
    context_growth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileParameters:
    """A sort of task within a job; `share` is how many of the job's groups have it.

    Attributes:
        turns_task_variance: Share of the variance of the turns' score that all siblings of a task share.
        actions_per_turn: Submitted together after a generation.
        final_answer: The last turn is an answer and has no actions.
    """

    name: str
    share: Share = 1.0
    turns: Drawn
    turns_task_variance: Part = 0.0
    generation: GenerationParameters
    actions_per_turn: Drawn = _ONE
    final_answer: bool = True
    actions: tuple[ActionParameters, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobParameters:
    """A job.

    Attributes:
        share: Of the scenario's trajectories, relative to other jobs.
        tasks: How many different tasks its groups draw from; 0: every group has its own.
        memory_mb: Held by a sandbox between actions.
        image: "task": every task has its own root filesystem, "job": all share one, "none": there is no sandbox.
        arrival_spread_s: Trajectories want to start at a time uniform in [0, this].
        reward_mixes: What is submitted at a trajectory's end, by the mix's name.
        reward_mix: The one taken by default.
    """

    name: str
    share: Share = 1.0
    weight: Share = 1.0
    priority: PriorityClass
    group_size: int
    quorum: int
    max_staleness: int = 0
    tasks: int = 0
    memory_mb: int = 0
    image: str
    arrival_spread_s: float = 0.0
    reset: ActionParameters | None
    profiles: tuple[ProfileParameters, ...]
    reward_mixes: Mapping[str, tuple[ActionParameters, ...]]
    reward_mix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterParameters:
    """The machines taken where a caller names none.

    Attributes:
        cores: Of all CPU nodes together.
        cores_per_node: Largest CPU node.
        gpus: For services; where there are none, those of the engines count instead.
        engines: For generations given in tokens; empty: generations take their drawn seconds.
    """

    cores: int = 0
    cores_per_node: Annotated[int, Between(low=1)] = 256
    numa_nodes: Annotated[int, Between(low=1)] = 1
    memory_mb_per_core: Annotated[int, Between(low=1)] = 9_600
    pull_s: float = 0.0
    pulls_at_once: Annotated[int, Between(low=1)] = 8
    gpus: int
    gpus_per_node: int
    models: tuple[Model, ...]
    quotas: tuple[Quota, ...]
    engines: tuple[EngineType, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A whole workload file.

    Attributes:
        trajectories: Of a step at its published size.
        horizon_s: Virtual seconds of a sustained run.
    """

    name: str
    trajectories: Annotated[int, Between(low=1)]
    horizon_s: Annotated[float, Between(low=1)]
    cluster: ClusterParameters
    jobs: tuple[JobParameters, ...]
