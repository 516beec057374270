"""The trace format, JSON lines with one trajectory each in files that may be compressed, and scenarios resampled."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, TextIO, cast

from callsheet.benchmarks.simulator.scenario import Generation, Mode, Rollout, Scenario, ScenarioJob, Turn, Work
from callsheet.benchmarks.simulator.validation import NOTHING_ELSE, InputError, validated
from callsheet.benchmarks.simulator.workloads.parameters import Workload, load
from callsheet.benchmarks.simulator.workloads.scenarios import assemble, make_cluster
from callsheet.scheduler.core.words.model import ActionKind
from pydantic import Field

# A line beyond this is no trajectory but a mistake; it bounds memory.
_LONGEST_LINE = 64 * 1024 * 1024
# What a command uses at least, in cores: nothing runs on none.
_LEAST_USE = 0.01
_SHORTEST_S = 1e-4
Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]

_SAME = (
    *("label", "parallel_fraction", "max_width", "adaptive", "peak_memory_mb", "service", "quota", "tokens"),
    *("timeout_s", "fails"),
)
"""Common fields of an action of a trace and of the simulator's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAction:
    """An action of a trace; see docs/reference/trace-format.md."""

    __pydantic_config__ = NOTHING_ELSE
    label: str
    duration_s: Seconds
    cpu_s: Seconds | None = None
    parallel_fraction: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    max_width: Annotated[int, Field(ge=1)] = 1
    adaptive: bool = False
    in_sandbox: bool | None = None
    peak_memory_mb: Count = 0
    service: str = ""
    quota: str = ""
    tokens: Count = 0
    timeout_s: Annotated[float, Field(ge=1e-3)] = math.inf
    fails: Count = 0
    act_s: Seconds | None = None

    def work(self, kind: ActionKind, where: str) -> Work:
        """The action as the simulator has it.

        Raises:
            InputError: It has no CPU time, or more than its duration.
        """
        duration_s = max(self.duration_s, _SHORTEST_S)
        facts: dict[str, Any] = {name: getattr(self, name) for name in _SAME}
        if self.service or self.quota:
            return Work(kind=kind, service_s=duration_s, in_sandbox=bool(self.in_sandbox), **facts)
        if self.cpu_s is None or self.cpu_s > duration_s:
            raise InputError(f"{where}: {self.label}: cpu_s", self.cpu_s, f"must be between 0 and {duration_s:g}")
        cpu_s = max(self.cpu_s, _LEAST_USE * duration_s)
        usual = kind in (ActionKind.ENV_STEP, ActionKind.ENV_RESET)
        in_sandbox = usual if self.in_sandbox is None else self.in_sandbox
        return Work(kind=kind, cpu_s=cpu_s, use=cpu_s / duration_s, in_sandbox=in_sandbox, **facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep(RecordedAction):
    """An action of a turn."""

    __pydantic_config__ = NOTHING_ELSE
    kind: Literal["env_step", "tool_call"]


@dataclass(frozen=True, slots=True)
class RecordedGeneration:
    """The generation of a turn."""

    __pydantic_config__ = NOTHING_ELSE
    seconds: Seconds = 0.0
    prompt_tokens: Count = 0
    output_tokens: Count = 0
    cached_tokens: Count = 0
    policy_versions: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A turn of a trace."""

    __pydantic_config__ = NOTHING_ELSE
    generation: RecordedGeneration
    actions: tuple[RecordedStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTrajectory:
    """A line of a trace."""

    __pydantic_config__ = NOTHING_ELSE
    id: str
    job: str = ""
    group: str = ""
    task: str = ""
    image: str = ""
    memory_mb: Count = 0
    policy_version: Count = 0
    arrives_s: Seconds = 0.0
    reset: RecordedAction | None = None
    turns: Annotated[tuple[RecordedTurn, ...], Field(min_length=1)]
    rewards: tuple[RecordedAction, ...] = ()

    def rollout(self, where: str) -> Rollout:
        """The trajectory as the simulator has it; raises `InputError` as `RecordedAction.work` does."""
        turns = []
        for turn in self.turns:
            works = (step.work(ActionKind[step.kind.upper()], where) for step in turn.actions)
            turns.append(Turn(Generation(turn.generation.seconds), tuple(works)))
        return Rollout(
            name=self.id,
            job=self.job,
            group=self.group or self.id,
            task=self.task or self.id,
            image=self.image,
            memory_mb=self.memory_mb,
            arrives=self.arrives_s,
            reset=self.reset.work(ActionKind.ENV_RESET, where) if self.reset is not None else None,
            turns=tuple(turns),
            rewards=tuple(reward.work(ActionKind.REWARD, where) for reward in self.rewards),
        )


def read_trace(path: Path) -> tuple[Rollout, ...]:
    """Reads a trace's trajectories; a file that ends in .gz is unpacked.

    Raises:
        InputError: A line is not as docs/reference/trace-format.md says, or there is none.
        OSError: The file cannot be read.
    """
    recorded: dict[str, Rollout] = {}
    for where, trajectory in _recorded(path):
        if trajectory.id in recorded:
            raise InputError(f"{where}.id", trajectory.id, "must differ from the ids before")
        recorded[trajectory.id] = trajectory.rollout(where)
    if not recorded:
        raise InputError(path.name, "", "must hold at least one trajectory")
    return tuple(recorded.values())


def recorded_acts(path: Path) -> dict[str, list[float]]:
    """The ACT of external actions when they were recorded, by kind, where the trace tells it; see `read_trace`."""
    found: dict[str, list[float]] = {}
    for _, trajectory in _recorded(path):
        steps = [(step.kind, step) for turn in trajectory.turns for step in turn.actions]
        resets = [("env_reset", each) for each in [trajectory.reset] if each is not None]
        for kind, action in [*resets, *steps, *(("reward", each) for each in trajectory.rewards)]:
            if action.act_s is not None:
                found.setdefault(kind, []).append(action.act_s)
    return found


def _recorded(path: Path) -> Iterator[tuple[str, RecordedTrajectory]]:
    """Each line of a trace, and where it is."""
    with _open(path) as file:
        for number, line in enumerate(_lines(file, path.name), start=1):
            if line.strip():
                where = f"{path.name}:{number}"
                yield where, validated(RecordedTrajectory, line, where)


def _open(path: Path) -> TextIO:
    # With or without the mark that some programs put in front.
    if path.suffix == ".gz":
        return cast(TextIO, gzip.open(path, "rt", encoding="utf-8-sig"))
    return path.open(encoding="utf-8-sig")


def _lines(file: TextIO, name: str) -> Iterator[str]:
    try:
        while line := file.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE:
                raise InputError(name, f"{line[:40]}...", f"must have lines shorter than {_LONGEST_LINE} characters")
            yield line
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise InputError(name, str(error), "must be UTF-8 text, packed by gzip if it ends in .gz") from error


def scenario(
    path: Path,
    workload: str | Workload,
    *,
    mode: Mode = Mode.ONESHOT,
    trajectories: int | None = None,
    seed: int = 1,
    cores: int | None = None,
    nodes: int | None = None,
    gb_per_core: float | None = None,
    gpus: int | None = None,
    generation_scale: float = 1.0,
    reward_mix: str | None = None,
    horizon_s: float | None = None,
) -> Scenario:
    """A scenario of a trace on a workload's machines.

    As many trajectories as asked for are drawn with replacement by the seed; where no number is given, each is taken
    once.

    Args:
        path: The trace; docs/reference/trace-format.md describes the format.
        workload: Gives machines, services and quotas.
        trajectories: How many; None takes all that the trace has.
        reward_mix: "none" leaves the recorded rewards out.

    The other arguments are as those of `workloads.scenario`.

    Raises:
        InputError: The trace or an argument is not right.
        OSError: The trace cannot be read.
    """
    recorded = read_trace(path)
    parameters = load(workload) if isinstance(workload, str) else workload
    if trajectories is not None and trajectories < 1:
        raise InputError("trajectories", trajectories, "must be at least 1")
    if not 0.0 < generation_scale < float("inf"):
        raise InputError("generation_scale", generation_scale, "must be above 0 and finite")
    if reward_mix not in (None, "none"):
        raise InputError("reward_mix", reward_mix, 'must be "none" or not given, as the trajectories have rewards')
    whole = tuple(_named_job(rollout, parameters) for rollout in recorded)
    return assemble(
        parameters,
        _resample(whole, seed, trajectories, generation_scale, reward_mix == "none"),
        _shares_of(whole, parameters),
        mode=mode,
        live=trajectories or len(whole),
        seed=seed,
        cluster=make_cluster(parameters.cluster, cores, nodes, gpus, gb_per_core=gb_per_core),
        horizon_s=horizon_s,
    )


def _resample(
    recorded: Sequence[Rollout], seed: int, count: int | None, scale: float, without_rewards: bool
) -> Iterator[Rollout]:
    """Endless: first each once if no count was asked for, and then always drawn with replacement."""
    random = Random(f"{seed}/resample")
    ordered = chain(recorded if count is None else (), iter(lambda: random.choice(recorded), None))
    for number, rollout in enumerate(ordered):
        turns = tuple(
            replace(turn, generation=replace(turn.generation, seconds=scale * turn.generation.seconds))
            for turn in rollout.turns
        )
        name = f"{rollout.name}#{number}"
        rewards = () if without_rewards else rollout.rewards
        yield replace(rollout, name=name, group=f"{rollout.group}#{number}", turns=turns, rewards=rewards)


def _named_job(rollout: Rollout, workload: Workload) -> Rollout:
    return rollout if rollout.job else replace(rollout, job=workload.jobs[0].name)


def _shares_of(recorded: Sequence[Rollout], workload: Workload) -> tuple[ScenarioJob, ...]:
    """Jobs of the trace; those the workload knows keep their weight and priority. Resampled ones have no siblings."""
    known = {job.name: ScenarioJob(job.name, weight=job.weight, priority=job.priority) for job in workload.jobs}
    names = dict.fromkeys(rollout.job for rollout in recorded)
    return tuple(known.get(name, ScenarioJob(name)) for name in names)
