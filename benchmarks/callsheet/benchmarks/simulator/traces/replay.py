"""Makes scenarios of traces: recorded trajectories resampled, or recorded requests given a workload's actions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from random import Random

from callsheet.benchmarks.simulator.input_table import InputError
from callsheet.benchmarks.simulator.scenario import Generation, Mode, Rollout, Scenario, ScenarioJob, Turn
from callsheet.benchmarks.simulator.traces.lines import read_lines
from callsheet.benchmarks.simulator.traces.requests import AZURE_HEADER, EngineRequest, read_azure, read_mooncake
from callsheet.benchmarks.simulator.traces.trajectories import read_trajectories
from callsheet.benchmarks.simulator.workloads.loader import load
from callsheet.benchmarks.simulator.workloads.parameters import Workload
from callsheet.benchmarks.simulator.workloads.sampling import draw_rollouts
from callsheet.benchmarks.simulator.workloads.scenarios import assemble, job_shares, make_cluster

# Speeds that turn a request's tokens into seconds where the workload has no engines: the median decoding speed of
# TraceLab's published statistics, and an assumption for the prefill.
DECODE_TOKENS_PER_S = 40.7
PREFILL_TOKENS_PER_S = 10_000.0


@dataclass(frozen=True, slots=True)
class Trace:
    """What a file holds: either trajectories or requests, these in the order of their arrivals, the first at 0."""

    trajectories: tuple[Rollout, ...] = ()
    requests: tuple[EngineRequest, ...] = ()


def read_trace(path: Path) -> Trace:
    """Reads a trace, whose format its first line tells.

    Raises:
        InputError: It is none of the formats, a line is wrong, or there is nothing in it.
        OSError: It cannot be read.
    """
    lines = read_lines(path)
    head = _up_to_the_first_that_is_not_empty(lines)
    first, whole = head[-1] if head else "", chain(head, lines)
    if not first.strip():
        raise InputError(path.name, "", "must hold at least one trajectory or request")
    if first.split(",")[0].strip() == AZURE_HEADER[0]:
        trace = Trace(requests=_by_arrival(read_azure(whole, path.name)))
    elif '"input_length"' in first:
        trace = Trace(requests=_by_arrival(read_mooncake(whole, path.name)))
    elif first.lstrip().startswith("{"):
        trace = Trace(trajectories=tuple(read_trajectories(whole, path.name)))
    else:
        raise InputError(
            f"{path.name}:{len(head)}", first[:40], "must begin one of the formats of docs/reference/trace-format.md"
        )
    if not (trace.trajectories or trace.requests):
        raise InputError(path.name, "", "must hold at least one trajectory or request")
    return trace


def _up_to_the_first_that_is_not_empty(lines: Iterator[str]) -> list[str]:
    head = []
    for line in lines:
        head.append(line)
        if line.strip():
            break
    return head


def _by_arrival(requests: Iterable[EngineRequest]) -> tuple[EngineRequest, ...]:
    """Requests in the order of their arrivals, which count from the first one's; traces of many servers are merged."""
    ordered = sorted(requests, key=lambda request: request.arrives_s)
    return tuple(replace(request, arrives_s=request.arrives_s - ordered[0].arrives_s) for request in ordered)


def scenario(
    path: Path,
    workload: str | Workload,
    *,
    mode: Mode = Mode.ONESHOT,
    trajectories: int | None = None,
    seed: int = 1,
    cores: int | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    generation_scale: float = 1.0,
    reward_mix: str | None = None,
    horizon_s: float | None = None,
) -> Scenario:
    """A scenario of a trace on a workload's machines.

    Of recorded trajectories, as many as asked for are drawn with replacement by the seed; where no number is given,
    each is taken once. A recorded request becomes a trajectory of one turn that arrives when it did and has the
    request's tokens; its actions and rewards are drawn from the workload.

    Args:
        path: The trace; docs/reference/trace-format.md describes the formats.
        workload: Gives machines, services and quotas, and what a request does after its generation.
        trajectories: How many; None takes all that the trace has.
        mode: In sustained mode requests' arrival times do not count, as trajectories follow upon each other.
        reward_mix: Of the workload, for requests; recorded trajectories have their own rewards, or none with "none".

    The other arguments are as those of `workloads.scenario`.

    Raises:
        InputError: The trace or an argument is not right.
        OSError: The trace cannot be read.
    """
    trace = read_trace(path)
    parameters = load(workload) if isinstance(workload, str) else workload
    if trajectories is not None and trajectories < 1:
        raise InputError("trajectories", trajectories, "must be at least 1")
    if not 0.0 < generation_scale < float("inf"):
        raise InputError("generation_scale", generation_scale, "must be above 0 and finite")
    if trace.trajectories:
        if reward_mix not in (None, "none"):
            raise InputError("reward_mix", reward_mix, 'must be "none" or not given, as the trajectories have rewards')
        whole = tuple(_named_job(rollout, parameters) for rollout in trace.trajectories)
        _check_references(whole, parameters, path.name)
        rollouts = _resample(whole, seed, trajectories, generation_scale, reward_mix == "none")
        jobs = _shares_of(whole, parameters)
    else:
        drawn = draw_rollouts(parameters, seed, reward_mix=reward_mix)
        rollouts = _follow(trace.requests, drawn, seed, trajectories, generation_scale)
        jobs = job_shares(parameters)
    return assemble(
        parameters,
        rollouts,
        jobs,
        mode=mode,
        live=trajectories or len(trace.trajectories) or len(trace.requests),
        seed=seed,
        cluster=make_cluster(parameters.cluster, cores, nodes, gpus, generation_scale),
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


def _follow(
    requests: Sequence[EngineRequest], drawn: Iterator[Rollout], seed: int, count: int | None, scale: float
) -> Iterator[Rollout]:
    """Endless: requests in their order, round and round; from a place drawn by the seed if a number is asked for."""
    start = 0 if count is None else Random(f"{seed}/start").randrange(len(requests))
    span = requests[-1].arrives_s + requests[-1].arrives_s / len(requests)
    for number, rollout in enumerate(drawn):
        rounds, place = divmod(start + number, len(requests))
        request = requests[place]
        seconds = request.prompt_tokens / PREFILL_TOKENS_PER_S + request.output_tokens / DECODE_TOKENS_PER_S
        generation = Generation(scale * seconds, request.prompt_tokens, request.output_tokens)
        actions = next((turn.actions for turn in rollout.turns if turn.actions), ())
        arrives = rounds * span + request.arrives_s - requests[start].arrives_s
        yield replace(rollout, arrives=arrives, turns=(Turn(generation, actions),))


def _named_job(rollout: Rollout, workload: Workload) -> Rollout:
    return rollout if rollout.job else replace(rollout, job=workload.jobs[0].name)


def _shares_of(recorded: Sequence[Rollout], workload: Workload) -> tuple[ScenarioJob, ...]:
    """Jobs of the trace; those the workload knows keep their weight and priority. Resampled ones have no siblings."""
    known = {job.name: ScenarioJob(job.name, weight=job.weight, priority=job.priority) for job in workload.jobs}
    names = dict.fromkeys(rollout.job for rollout in recorded)
    return tuple(known.get(name, ScenarioJob(name)) for name in names)


def _check_references(recorded: Sequence[Rollout], workload: Workload, name: str) -> None:
    models = {model.name for model in workload.cluster.models} | {""}
    quotas = {quota.name for quota in workload.cluster.quotas} | {""}
    for rollout in recorded:
        for work in rollout.works():
            where = f"{name}: trajectory {rollout.name}"
            if work.service not in models:
                raise InputError(f"{where}: service", work.service, f"must be a model of workload {workload.name}")
            if work.quota not in quotas:
                raise InputError(f"{where}: quota", work.quota, f"must be a quota of workload {workload.name}")
