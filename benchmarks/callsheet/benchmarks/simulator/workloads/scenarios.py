"""Makes scenarios: trajectories on machines, in one of the two modes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from callsheet.benchmarks.simulator.scenario import (
    Cluster,
    CpuNodes,
    EngineType,
    GpuNodes,
    Mode,
    Rollout,
    Scenario,
    ScenarioJob,
)
from callsheet.benchmarks.simulator.validation import InputError
from callsheet.benchmarks.simulator.workloads.parameters import ClusterParameters, Workload, load
from callsheet.benchmarks.simulator.workloads.sampling import draw_rollouts

# About a gigabyte of drawn trajectories.
_MOST_TURNS = 1_500_000


def scenario(
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
    """Draws a scenario; what is None comes from the workload's file.

    Args:
        workload: Name of one that comes with Callsheet, or parameters.
        mode: One step of that many trajectories, or that many live ones until the horizon.
        trajectories: Of the step, or live at once.
        seed: The same seed gives the same trajectories, whatever the machines.
        cores: Of all CPU nodes together.
        nodes: CPU nodes; None takes as few as the file's largest node allows.
        gb_per_core: Memory of a CPU node for each core, in GB (1,000 MB).
        gpus: For services; of a workload without services, for its engines.
        generation_scale: How many times slower the policy model is.
        reward_mix: A named mix of rewards; "none" leaves them out.
        horizon_s: Virtual seconds of a sustained run.

    Raises:
        InputError: An argument is out of its range; the message names it, its value and the rule.
    """
    parameters = load(workload) if isinstance(workload, str) else workload
    if not 0.0 < generation_scale < float("inf"):
        raise InputError("generation_scale", generation_scale, "must be above 0 and finite")
    rollouts = draw_rollouts(parameters, seed, reward_mix=reward_mix, generation_scale=generation_scale)
    return assemble(
        parameters,
        rollouts,
        job_shares(parameters),
        mode=mode,
        live=_at_least_one("trajectories", trajectories, parameters.trajectories),
        seed=seed,
        cluster=make_cluster(parameters.cluster, cores, nodes, gpus, generation_scale, gb_per_core=gb_per_core),
        horizon_s=horizon_s,
    )


def assemble(
    workload: Workload,
    rollouts: Iterator[Rollout],
    jobs: tuple[ScenarioJob, ...],
    *,
    mode: Mode,
    live: int,
    seed: int,
    cluster: Cluster,
    horizon_s: float | None,
) -> Scenario:
    """A scenario of the first of endless rollouts: as many as are live, and in sustained mode as can be needed."""
    sustained = mode is Mode.SUSTAINED
    horizon = workload.horizon_s if horizon_s is None else horizon_s
    if not horizon > 0.0:
        raise InputError("horizon_s", horizon, "must be above 0")
    taken = take_for_horizon(rollouts, live, horizon, cluster.engines) if sustained else islice(rollouts, live)
    return Scenario(
        workload=workload.name,
        mode=mode,
        seed=seed,
        cluster=cluster,
        jobs=jobs,
        rollouts=tuple(taken),
        live=live,
        horizon_s=horizon if sustained else float("inf"),
    )


def job_shares(workload: Workload) -> tuple[ScenarioJob, ...]:
    """The workload's jobs as a scenario has them."""
    return tuple(
        ScenarioJob(
            job.name,
            weight=job.weight,
            priority=job.priority,
            group_size=job.group_size,
            quorum=job.quorum,
        )
        for job in workload.jobs
    )


def take_for_horizon(
    rollouts: Iterable[Rollout], live: int, horizon_s: float, engines: tuple[EngineType, ...]
) -> Iterator[Rollout]:
    """As many rollouts as no policy can use up in the horizon, or as memory should hold.

    However fast, `live` places finish no more than `live * horizon_s` seconds of trajectories that run alone, and each
    place is then in the middle of one more. Beyond `_MOST_TURNS` a simulation goes round instead.
    """
    needed, turns, beyond = live * horizon_s, 0, 0
    for taken, rollout in enumerate(rollouts):
        if beyond >= live or (turns > _MOST_TURNS and taken >= live):
            return
        beyond += needed <= 0.0
        turns += len(rollout.turns)
        needed -= max(alone_s(rollout, engines), 1e-3)
        yield rollout


def alone_s(rollout: Rollout, engines: tuple[EngineType, ...] = ()) -> float:
    """Seconds from begin to end with nothing else in the world and every action at its best width."""
    generation = sum(
        _fastest_s(turn.generation.output_tokens, engines) if engines else turn.generation.seconds
        for turn in rollout.turns
    )
    actions = sum(max((work.alone_s(work.max_width) for work in turn.actions), default=0.0) for turn in rollout.turns)
    reset = rollout.reset.alone_s(rollout.reset.max_width) if rollout.reset else 0.0
    return reset + generation + actions + max((work.alone_s(work.max_width) for work in rollout.rewards), default=0.0)


def make_cluster(
    parameters: ClusterParameters,
    cores: int | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    generation_scale: float = 1.0,
    *,
    gb_per_core: float | None = None,
) -> Cluster:
    """The machines of a workload, with other numbers where given.

    Raises:
        InputError: A number is out of its range.
    """
    total = _at_least_one("cores", cores, parameters.cores)
    count = _at_least_one("nodes", nodes, -(-total // parameters.cores_per_node))
    if count > total:
        raise InputError("nodes", count, f"must not exceed cores, {total}")
    if gb_per_core is not None and not 0.0 < gb_per_core < float("inf"):
        raise InputError("gb_per_core", gb_per_core, "must be above 0 and finite")
    memory_mb = parameters.memory_mb_per_core if gb_per_core is None else round(gb_per_core * 1_000)
    accelerators = _at_least_one("gpus", gpus, parameters.gpus)
    largest = max((model.gpus for model in parameters.models), default=0)
    if parameters.models and accelerators < largest:
        raise InputError("gpus", accelerators, f"must be at least {largest}, what the largest model takes")
    engines = parameters.engines
    if gpus is not None and not parameters.models:
        engines = _scale_counts(engines, gpus)
    return Cluster(
        cpu=_cpu_nodes(parameters, total, count, memory_mb),
        gpu=_gpu_nodes(parameters, accelerators) if parameters.models else (),
        models=parameters.models,
        quotas=parameters.quotas,
        engines=tuple(_slow_down(engine, generation_scale) for engine in engines),
        pull_s=parameters.pull_s,
        pulls_at_once=parameters.pulls_at_once,
    )


def _cpu_nodes(parameters: ClusterParameters, cores: int, nodes: int, memory_mb_per_core: int) -> tuple[CpuNodes, ...]:
    """Nodes as alike as the number of cores allows."""
    if not nodes:
        return ()
    each, larger = divmod(cores, nodes)
    sizes = [(larger, each + 1), (nodes - larger, each)]
    return tuple(
        CpuNodes(
            count, size, size * memory_mb_per_core, parameters.numa_nodes if size % parameters.numa_nodes == 0 else 1
        )
        for count, size in sizes
        if count
    )


def _gpu_nodes(parameters: ClusterParameters, gpus: int) -> tuple[GpuNodes, ...]:
    full, rest = divmod(gpus, parameters.gpus_per_node)
    nodes = [GpuNodes(full, parameters.gpus_per_node), GpuNodes(1, rest)]
    return tuple(node for node in nodes if node.count and node.gpus)


def _scale_counts(engines: tuple[EngineType, ...], gpus: int) -> tuple[EngineType, ...]:
    """Engines of every type in the file's proportions, at least one of each, on about that many GPUs."""
    whole = sum(engine.count * engine.gpus for engine in engines)
    return tuple(replace(engine, count=max(1, round(engine.count * gpus / whole))) for engine in engines)


def _slow_down(engine: EngineType, scale: float) -> EngineType:
    return replace(
        engine,
        prefill_tokens_per_s=engine.prefill_tokens_per_s / scale,
        step_s=engine.step_s * scale,
        step_per_sequence_s=engine.step_per_sequence_s * scale,
    )


def _fastest_s(output_tokens: int, engines: tuple[EngineType, ...]) -> float:
    """A generation alone on its best engine with its whole prefix cached: no policy does better."""
    return min(output_tokens * (engine.step_s + engine.step_per_sequence_s) for engine in engines)


def _at_least_one(field: str, given: int | None, default: int) -> int:
    if given is not None and given < 1:
        raise InputError(field, given, "must be at least 1")
    return default if given is None else given
