"""The parameters of a workload, and the files that they are read from. Times in seconds, memory in MB."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Annotated, Literal, TypeAlias

from callsheet.benchmarks.simulator.scenario import EngineType, Model, Quota
from callsheet.benchmarks.simulator.validation import NOTHING_ELSE, InputError, validated
from callsheet.benchmarks.simulator.workloads.distributions import Constant, Distribution, read_distribution
from callsheet.scheduler.core.words.model import ActionKind, PriorityClass
from pydantic import BeforeValidator, Field, PlainValidator

# The mix that is always there: no reward at all.
NO_REWARD = "none"
_NOTHING, _ONE = Constant(0.0), Constant(1.0)
Drawn: TypeAlias = Annotated[Distribution, PlainValidator(read_distribution)]
Kind: TypeAlias = Annotated[ActionKind, BeforeValidator(lambda name: ActionKind[name.upper()])]
Priority: TypeAlias = Annotated[PriorityClass, BeforeValidator(lambda name: PriorityClass[name.upper()])]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionParameters:
    """A class of actions.

    Attributes:
        share: How often it is chosen, relative to the others of its list; rewards of a mix are all submitted instead.
        duration_s: Seconds it takes alone: on one core, on its service, or at its outside API.
        use: Cores it uses then, in (0, 1]; 0 for calls.
        task_variance: float of the variance of its score that all siblings of a task share.
        parallel_fraction: Amdahl's fraction, drawn once per task.
        services: Models it may call, each with its popularity; empty for others.
        calls: How many different services a reward calls (and how many actions that makes).
        fault_probability: Chance that an attempt fails in a way its kind retries.
    """

    __pydantic_config__ = NOTHING_ELSE
    kind: Kind
    label: str
    share: float = 1.0
    duration_s: Drawn
    use: float = 0.0
    task_variance: float = 0.0
    parallel_fraction: Drawn = _NOTHING
    max_width: int = 1
    adaptive: bool = False
    peak_memory_mb: Drawn = _NOTHING
    services: Mapping[str, float] = field(default_factory=dict)
    calls: Drawn = _ONE
    quota: str = ""
    tokens: Drawn = _NOTHING
    timeout_s: float = float("inf")
    fault_probability: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationParameters:
    """A turn of the policy model. Seconds and tokens are drawn at one score: long turns write many tokens.

    Attributes:
        first_context: Tokens of context at the first turn.
        context_growth: Tokens added per turn, beyond those written.
    """

    __pydantic_config__ = NOTHING_ELSE
    seconds: Drawn
    output_tokens: Drawn
    first_context: int
    context_growth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileParameters:
    """A sort of task within a job; `share` is how many of the job's groups have it.

    Attributes:
        turns_task_variance: float of the variance of the turns' score that all siblings of a task share.
        actions_per_turn: Submitted together after a generation.
        final_answer: The last turn is an answer and has no actions.
    """

    __pydantic_config__ = NOTHING_ELSE
    name: str
    share: float = 1.0
    turns: Drawn
    turns_task_variance: float = 0.0
    generation: GenerationParameters
    actions_per_turn: Drawn = _ONE
    final_answer: bool = True
    actions: Annotated[tuple[ActionParameters, ...], Field(alias="action")] = ()


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

    __pydantic_config__ = NOTHING_ELSE
    name: str
    share: float = 1.0
    weight: float = 1.0
    priority: Priority = PriorityClass.TRAIN
    group_size: int = 1
    quorum: int = 0
    tasks: int = 0
    memory_mb: int = 0
    image: Literal["none", "job", "task"] = "none"
    arrival_spread_s: float = 0.0
    reset: ActionParameters | None = None
    profiles: Annotated[tuple[ProfileParameters, ...], Field(alias="profile")]
    reward_mixes: Annotated[Mapping[str, tuple[ActionParameters, ...]], Field(alias="rewards")] = field(
        default_factory=dict
    )
    reward_mix: str = NO_REWARD


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterParameters:
    """The machines taken where a caller names none.

    Attributes:
        cores: Of all CPU nodes together.
        cores_per_node: Largest CPU node.
        gpus: For services; where there are none, those of the engines count instead.
        engines: For generations given in tokens; empty: generations take their drawn seconds.
    """

    __pydantic_config__ = NOTHING_ELSE
    cores: int = 0
    cores_per_node: int = 256
    numa_nodes: int = 1
    memory_mb_per_core: int = 9_600
    pull_s: float = 0.0
    pulls_at_once: int = 8
    gpus: int = 0
    gpus_per_node: int = 8
    models: Annotated[tuple[Model, ...], Field(alias="model")] = ()
    quotas: Annotated[tuple[Quota, ...], Field(alias="quota")] = ()
    engines: Annotated[tuple[EngineType, ...], Field(alias="engine")] = ()


@dataclass(frozen=True, slots=True)
class Inclusion:
    """Another workload as a part of one: its jobs divide `share`, and take the given weight and priority."""

    __pydantic_config__ = NOTHING_ELSE
    workload: str
    share: float
    weight: float = 1.0
    priority: Priority = PriorityClass.TRAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A whole workload file.

    Attributes:
        trajectories: Of a step at its published size.
        horizon_s: Virtual seconds of a sustained run.
        include: Other workloads whose jobs and services are its own too.
    """

    __pydantic_config__ = NOTHING_ELSE
    name: str
    trajectories: int
    horizon_s: float
    cluster: ClusterParameters
    jobs: Annotated[tuple[JobParameters, ...], Field(alias="job")] = ()
    include: tuple[Inclusion, ...] = ()


def names() -> tuple[str, ...]:
    """The workloads that come with Callsheet."""
    files = resources.files(__package__).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def load(name: str) -> Workload:
    """One of the workloads that come with Callsheet.

    Raises:
        InputError: There is none of that name.
    """
    if name not in names():
        raise InputError("workload", name, f"must be one of {', '.join(names())}")
    text = (resources.files(__package__) / f"{name}.toml").read_text(encoding="utf-8")
    workload = validated(Workload, {"name": name, **tomllib.loads(text)}, name)
    jobs, cluster = list(workload.jobs), workload.cluster
    for part in workload.include:
        other = load(part.workload)
        share = part.share / sum(job.share for job in other.jobs)
        jobs += [
            replace(job, share=job.share * share, weight=part.weight, priority=part.priority) for job in other.jobs
        ]
        models, quotas = (*cluster.models, *other.cluster.models), (*cluster.quotas, *other.cluster.quotas)
        cluster = replace(cluster, models=models, quotas=quotas)
    return replace(workload, jobs=tuple(jobs), cluster=cluster)
