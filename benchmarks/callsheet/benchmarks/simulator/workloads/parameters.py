"""The parameters of a workload, as its file gives them. Times in seconds, memory in MB."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from callsheet.benchmarks.simulator.scenario import EngineType, Model, Quota
from callsheet.benchmarks.simulator.workloads.distributions import Distribution
from callsheet.scheduler.core.model import ActionKind, PriorityClass

# The mix that is always there: no reward at all.
NO_REWARD = "none"


@dataclass(frozen=True, slots=True)
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
    share: float
    duration_s: Distribution
    use: float
    task_variance: float
    parallel_fraction: Distribution
    max_width: int
    adaptive: bool
    in_sandbox: bool
    peak_memory_mb: Distribution
    services: Mapping[str, float]
    calls: Distribution
    quota: str
    tokens: Distribution
    timeout_s: float
    fault_probability: float


@dataclass(frozen=True, slots=True)
class GenerationParameters:
    """A turn of the policy model. Seconds and tokens are drawn at one score: long turns write many tokens.

    Attributes:
        first_context: Tokens of context at the first turn.
        context_growth: Tokens added per turn, beyond those written.
    """

    seconds: Distribution
    output_tokens: Distribution
    first_context: int
    context_growth: int


@dataclass(frozen=True, slots=True)
class ProfileParameters:
    """A sort of task within a job; `share` is how many of the job's groups have it.

    Attributes:
        turns_task_variance: Share of the variance of the turns' score that all siblings of a task share.
        actions_per_turn: Submitted together after a generation.
        final_answer: The last turn is an answer and has no actions.
    """

    name: str
    share: float
    turns: Distribution
    turns_task_variance: float
    generation: GenerationParameters
    actions_per_turn: Distribution
    final_answer: bool
    actions: tuple[ActionParameters, ...]


@dataclass(frozen=True, slots=True)
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
    share: float
    weight: float
    priority: PriorityClass
    group_size: int
    quorum: int
    max_staleness: int
    tasks: int
    memory_mb: int
    image: str
    arrival_spread_s: float
    reset: ActionParameters | None
    profiles: tuple[ProfileParameters, ...]
    reward_mixes: Mapping[str, tuple[ActionParameters, ...]]
    reward_mix: str


@dataclass(frozen=True, slots=True)
class ClusterParameters:
    """The machines taken where a caller names none.

    Attributes:
        cores: Of all CPU nodes together.
        cores_per_node: Largest CPU node.
        gpus: For services; where there are none, those of the engines count instead.
        engines: For generations given in tokens; empty: generations take their drawn seconds.
    """

    cores: int
    cores_per_node: int
    numa_nodes: int
    memory_mb_per_core: int
    pull_s: float
    pulls_at_once: int
    gpus: int
    gpus_per_node: int
    models: tuple[Model, ...]
    quotas: tuple[Quota, ...]
    engines: tuple[EngineType, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """A whole workload file.

    Attributes:
        trajectories: Of a step at its published size.
        horizon_s: Virtual seconds of a sustained run.
    """

    name: str
    trajectories: int
    horizon_s: float
    cluster: ClusterParameters
    jobs: tuple[JobParameters, ...]
