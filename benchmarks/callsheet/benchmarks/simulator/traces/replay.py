"""Makes scenarios of recorded trajectories, resampled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random

from callsheet.benchmarks.simulator.scenario import Mode, Rollout, Scenario, ScenarioJob
from callsheet.benchmarks.simulator.traces.trajectories import read_trace
from callsheet.benchmarks.simulator.validation import InputError
from callsheet.benchmarks.simulator.workloads.parameters import Workload, load
from callsheet.benchmarks.simulator.workloads.scenarios import assemble, make_cluster


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
        cluster=make_cluster(parameters.cluster, cores, nodes, gpus, generation_scale, gb_per_core=gb_per_core),
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
