"""RollArt's experiments (arXiv 2512.22560): slow environments, redundancy, shared reward GPUs, busy environments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random
from statistics import fmean

from callsheet.benchmarks.simulator import workloads
from callsheet.benchmarks.simulator.calibration.table import Experiment, FittedParameter, bisect, fitted_row, row
from callsheet.benchmarks.simulator.policies.os_sharing import OS_SHARING, STATIC_SERVICES
from callsheet.benchmarks.simulator.policies.tangram import tangram
from callsheet.benchmarks.simulator.policy import (
    EndFacts,
    EngineStatus,
    LiveRollout,
    Policy,
    PolicyFactory,
    Task,
    World,
)
from callsheet.benchmarks.simulator.scenario import (
    Cluster,
    CpuNodes,
    Generation,
    Mode,
    Rollout,
    Scenario,
    ScenarioJob,
    Turn,
    Work,
)
from callsheet.benchmarks.simulator.simulation import simulate
from callsheet.benchmarks.simulator.workloads.parameters import Workload
from callsheet.scheduler.core.words.model import ActionKind


class Lockstep:
    """Holds every action until all live trajectories have one, and then gives all to the usual policy."""

    name = "lockstep"

    def __init__(self, world: World) -> None:
        self._inner: Policy = OS_SHARING(world)
        self._live: set[LiveRollout] = set()
        self._held: list[Task] = []

    def arrived(self, live: LiveRollout) -> None:
        """A trajectory joins the batch."""
        self._live.add(live)
        self._inner.arrived(live)

    def ready(self, task: Task) -> None:
        """Holds an action until the batch is complete."""
        self._held.append(task)
        self._release()

    def ended(self, task: Task, facts: EndFacts) -> None:
        """An action ended; one that was cancelled while it was held is forgotten."""
        if task in self._held:
            self._held.remove(task)
        else:
            self._inner.ended(task, facts)

    def route(self, live: LiveRollout, generation: Generation, engines: Sequence[EngineStatus]) -> int:
        """As the usual policy."""
        return self._inner.route(live, generation, engines)

    def finished(self, live: LiveRollout) -> None:
        """A trajectory leaves the batch."""
        self._live.discard(live)
        self._inner.finished(live)
        self._release()

    def woken(self) -> None:
        """As the usual policy."""
        self._inner.woken()

    def _release(self) -> None:
        if self._held and {task.live for task in self._held} >= self._live:
            held, self._held = self._held, []
            for task in held:
                self._inner.ready(task)


LOCKSTEP = PolicyFactory(Lockstep.name, Lockstep, OS_SHARING.applies)


_SOURCE = "RollArt, arXiv 2512.22560"
_SEED = 1
_BATCH = 128
_JOB = "rollout"

# Slow environments.
_TURNS = 30
_LATENCY_S = 10.0

# Redundancy.
_QUORUM = 8
_GROUPS_NEEDED = 32
_TASK_VARIANCE = 0.51
_SEEDS = range(1, 13)


def slow_environments() -> Experiment:
    """Latency N(10 s, sigma) added to every environment step: trajectories on their own against batches."""
    published = {1: 1.23, 3: 1.51, 5: 1.69, 7: 2.18, 10: 2.27}
    generation_s = bisect(lambda value: _gain_over_batches(10.0, value), published[10], 0.01, 10.0, steps=7)
    return Experiment(
        name="environment latency N(10 s, sigma): time of batched interaction by that of single trajectories",
        source=_SOURCE,
        assumptions=f"{_BATCH} trajectories of {_TURNS} turns, cores enough, generations of one length",
        fitted=(FittedParameter("generation_s", generation_s, "s a turn", "gain at sigma 10 s"),),
        rows=tuple(
            (fitted_row if sigma == 10 else row)(f"sigma {sigma} s", gain, _gain_over_batches(sigma, generation_s))
            for sigma, gain in published.items()
        ),
    )


def _gain_over_batches(sigma_s: float, generation_s: float) -> float:
    scenario = _latency_scenario(sigma_s, generation_s)
    return simulate(scenario, LOCKSTEP).step_s / simulate(scenario, OS_SHARING).step_s


def _latency_scenario(sigma_s: float, generation_s: float) -> Scenario:
    random = Random(_SEED)

    def turn() -> Turn:
        latency = max(1e-3, random.gauss(_LATENCY_S, sigma_s))
        step = Work(ActionKind.ENV_STEP, "step", cpu_s=0.01 * latency, use=0.01)
        return Turn(Generation(generation_s), (step,))

    turns = [tuple(turn() for _ in range(_TURNS)) for _ in range(_BATCH)]
    rollouts = [_rollout(f"{number}", f"{number}", of_one) for number, of_one in enumerate(turns)]
    cluster = Cluster(cpu=(CpuNodes(1, _BATCH),))
    return _scenario(cluster, rollouts, ScenarioJob(_JOB))


def redundancy() -> Experiment:
    """More groups and more siblings than the batch needs; stragglers are cancelled."""
    published = {
        (32, 10): 1.16,
        (32, 12): 1.30,
        (34, 8): 1.11,
        (34, 10): 1.38,
        (34, 12): 1.52,
        (36, 8): 1.24,
        (36, 10): 1.51,
        (36, 12): 1.62,
    }
    most = (36, 12)
    sd = bisect(lambda value: _gain_of_redundancy(most, value), published[most], 0.05, 1.0, steps=7)
    return Experiment(
        name=f"redundancy: time of {_GROUPS_NEEDED} groups of {_QUORUM} by that with more groups and siblings",
        source=_SOURCE,
        assumptions=(
            f"log-normal lengths of trajectories, {_TASK_VARIANCE:.0%} of the variance between tasks (Terminal-Bench); "
            f"means over {len(_SEEDS)} seeds"
        ),
        fitted=(FittedParameter("sd_of_log_length", sd, "", "36 groups of 12"),),
        rows=tuple(
            (fitted_row if shape == most else row)(
                f"{shape[0]} groups of {shape[1]}", gain, _gain_of_redundancy(shape, sd)
            )
            for shape, gain in published.items()
        ),
    )


def _gain_of_redundancy(shape: tuple[int, int], sd: float) -> float:
    needed = (_GROUPS_NEEDED, _QUORUM)
    return fmean(_mean_step_s(needed, sd, seed) / _mean_step_s(shape, sd, seed) for seed in _SEEDS)


@cache
def _mean_step_s(shape: tuple[int, int], sd: float, seed: int) -> float:
    groups, siblings = shape
    random = Random(f"{seed}/{shape}")
    rollouts = []
    for group in range(groups):
        shared = math.sqrt(_TASK_VARIANCE) * random.gauss()
        for sibling in range(siblings):
            score = shared + math.sqrt(1.0 - _TASK_VARIANCE) * random.gauss()
            turn = Turn(Generation(100.0 * math.exp(sd * score)), ())
            rollouts.append(_rollout(f"{group}-{sibling}", f"{group}", (turn,)))
    job = ScenarioJob(_JOB, group_size=siblings, quorum=_QUORUM, groups_needed=_GROUPS_NEEDED)
    return simulate(_scenario(Cluster(), rollouts, job), tangram()).step_s


def software_step() -> Experiment:
    """A step of software tasks: what its reward GPUs and its environments do meanwhile."""
    usual, faster = (simulate(_judged(scale, jobs=1), STATIC_SERVICES) for scale in (1.0, 0.25))
    shared = simulate(_judged(1.0, jobs=3), tangram())
    busy = (0.15, 0.47)
    return Experiment(
        name=f"{_BATCH} software tasks, their environments and their judge",
        source=f"{_SOURCE}; ARL-Tangram, arXiv 2603.13019, for the upper end of busy environments",
        assumptions="workload `coding`, cores enough; a judge of one GPU that takes 1.1 s a call, on 4 GPUs",
        fitted=(),
        rows=(
            row("environments: busy part of a trajectory's life", busy, usual.environment_busy),
            row("environments: the same with generation four times as fast", busy, faster.environment_busy),
            row(
                "dedicated reward GPUs: part of the rollout they work",
                (0.058, 0.074),
                usual.gpu_used,
                "the last trajectory ends late here; published steps are shorter",
            ),
            row(
                "reward GPUs shared by three jobs on demand: part of the time held that they work",
                0.88,
                shared.gpu_used / shared.gpu_held,
                "held on demand means only for calls and restores here",
            ),
        ),
    )


@cache
def _judged(scale: float, jobs: int) -> Scenario:
    """Coding with a judge as its reward; several jobs start at once."""
    return workloads.scenario(
        _judged_workload(jobs), trajectories=jobs * _BATCH, seed=_SEED, cores=1024, gpus=4, generation_scale=scale
    )


def _judged_workload(jobs: int) -> Workload:
    coding, search = workloads.load("coding"), workloads.load("deepsearch")
    (job,) = coding.jobs
    judge = search.jobs[0].reward_mixes["judge"]
    models = tuple(replace(model, slots=1) for model in search.cluster.models)
    judged = [
        replace(job, name=f"{job.name}-{number}", reward_mixes={"judge": judge}, reward_mix="judge")
        for number in range(jobs)
    ]
    cluster = replace(coding.cluster, models=models, gpus=4, gpus_per_node=4)
    return replace(coding, jobs=tuple(judged), cluster=cluster)


def _rollout(name: str, group: str, turns: tuple[Turn, ...]) -> Rollout:
    return Rollout(name, _JOB, group, task=group, turns=turns)


def _scenario(cluster: Cluster, rollouts: list[Rollout], job: ScenarioJob) -> Scenario:
    return Scenario(
        workload="calibration",
        mode=Mode.ONESHOT,
        seed=_SEED,
        cluster=cluster,
        jobs=(job,),
        rollouts=tuple(rollouts),
        live=len(rollouts),
    )
