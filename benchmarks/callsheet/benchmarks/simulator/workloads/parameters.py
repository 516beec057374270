"""The parameters of a workload, and the files that they are read from. Times in seconds, memory in MB.

Distributions are given by what they yield at a standard normal score. A score z stands for the quantile Phi(z). Two
draws correlate by correlating their scores: siblings of a group share a part of theirs, and so the tasks' share of the
variance holds for every distribution (a Gaussian copula).
"""

from __future__ import annotations

import math
import tomllib
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from statistics import NormalDist
from typing import Annotated, Any, Literal, Protocol, TypeAlias

from callsheet.benchmarks.simulator.scenario import Model, Quota
from callsheet.benchmarks.simulator.validation import NOTHING_ELSE, InputError, validated
from callsheet.scheduler.core.words.model import ActionKind, PriorityClass
from pydantic import BeforeValidator, Field, PlainValidator

_STANDARD = NormalDist()

# The mix that is always there: no reward at all.
NO_REWARD = "none"

Kind: TypeAlias = Annotated[ActionKind, BeforeValidator(lambda name: ActionKind[name.upper()])]
Priority: TypeAlias = Annotated[PriorityClass, BeforeValidator(lambda name: PriorityClass[name.upper()])]


class Distribution(Protocol):
    """Something that can be drawn."""

    def at(self, score: float) -> float:
        """The value at the quantile Phi(score)."""


@dataclass(frozen=True, slots=True)
class Constant:
    """Always the same value."""

    value: float

    def at(self, score: float) -> float:
        """The value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform between low and high."""

    low: float
    high: float

    def at(self, score: float) -> float:
        """The value at the quantile Phi(score)."""
        return self.low + (self.high - self.low) * _below(score)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """The logarithm is normal with mean mu and standard deviation sd; clipped to [low, high]."""

    mu: float
    sd: float
    low: float = 0.0
    high: float = math.inf

    def at(self, score: float) -> float:
        """The value at the quantile Phi(score)."""
        return min(max(math.exp(self.mu + self.sd * score), self.low), self.high)


@dataclass(frozen=True, slots=True)
class Geometric:
    """Trials until the first success: 1, 2, ... with the given mean before it is clipped at high."""

    mean: float
    high: float = math.inf

    def at(self, score: float) -> float:
        """The value at the quantile Phi(score)."""
        if self.mean == 1.0:
            return 1.0
        above = max(1.0 - _below(score), 1e-12)
        return min(max(1.0, math.ceil(math.log(above) / math.log(1.0 - 1.0 / self.mean))), self.high)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Given by quantiles (probability, value): log-normal between two of them, constant beyond the ends."""

    points: tuple[tuple[float, float], ...]
    _scores: tuple[float, ...] = field(init=False, repr=False, compare=False)
    _logs: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_scores", tuple(_STANDARD.inv_cdf(probability) for probability, _ in self.points))
        object.__setattr__(self, "_logs", tuple(math.log(value) for _, value in self.points))

    def at(self, score: float) -> float:
        """The value at the quantile Phi(score)."""
        right = bisect_right(self._scores, score)
        if right == 0:
            return self.points[0][1]
        if right == len(self._scores):
            return self.points[-1][1]
        start, end = self._scores[right - 1], self._scores[right]
        part = (score - start) / (end - start)
        return math.exp(self._logs[right - 1] + part * (self._logs[right] - self._logs[right - 1]))


def _below(score: float) -> float:
    return 0.5 * math.erfc(-score / math.sqrt(2.0))


_FORMS: Mapping[str, Callable[..., Distribution]] = {
    "log_normal": LogNormal,
    "uniform": Uniform,
    "geometric": Geometric,
}


def read_distribution(found: Any) -> Distribution:
    """A distribution from a number, or a table with one of the forms and its bounds.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(found, int | float):
        return Constant(float(found))
    if "quantiles" in found:
        return Quantiles(tuple((float(probability), float(value)) for probability, value in found["quantiles"]))
    form = next((form for form in _FORMS if form in found), None)
    if form is None:
        raise ValueError(f"must be a number or a table with one of {', '.join((*_FORMS, 'quantiles'))}")
    values = found[form] if isinstance(found[form], list) else [found[form]]
    bounds = {name: float(value) for name, value in found.items() if name != form}
    return _FORMS[form](*map(float, values), **bounds)


_NOTHING, _ONE = Constant(0.0), Constant(1.0)
Drawn: TypeAlias = Annotated[Distribution, PlainValidator(read_distribution)]


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
    """A turn of the policy model."""

    __pydantic_config__ = NOTHING_ELSE
    seconds: Drawn


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
        reward_mixes: What is submitted at a trajectory's end, by the mix's name.
        reward_mix: The one taken by default.
    """

    __pydantic_config__ = NOTHING_ELSE
    name: str
    share: float = 1.0
    weight: float = 1.0
    priority: Priority = PriorityClass.TRAIN
    group_size: int = 1
    tasks: int = 0
    memory_mb: int = 0
    image: Literal["none", "job", "task"] = "none"
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
        gpus: For services.
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
