"""Makes scenarios: trajectories drawn from a workload's parameters, on machines, in one of the two modes.

Every trajectory has a random stream of its own, named by seed, job, group and sibling: the k-th is the same however
many are drawn and whatever the cluster is. What siblings share comes from a stream named by their task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, islice
from random import Random

from callsheet.benchmarks.simulator.scenario import (
    Cluster,
    CpuNodes,
    Generation,
    GpuNodes,
    Mode,
    Rollout,
    Scenario,
    ScenarioJob,
    Turn,
    Work,
)
from callsheet.benchmarks.simulator.validation import InputError
from callsheet.benchmarks.simulator.workloads.parameters import (
    NO_REWARD,
    ActionParameters,
    ClusterParameters,
    JobParameters,
    ProfileParameters,
    Workload,
    load,
)
from callsheet.scheduler.core.words.model import ActionKind

# About a gigabyte of drawn trajectories.
_MOST_TURNS = 1_500_000
_TURNS = "turns"
# A fault that comes back so often is no fault of the machines any more.
_MOST_FAULTS = 5


def draw_rollouts(
    workload: Workload, seed: int, *, reward_mix: str | None = None, generation_scale: float = 1.0
) -> Iterator[Rollout]:
    """An endless sequence of trajectories, siblings in a row, jobs by their shares.

    Args:
        workload: Its parameters.
        seed: The same seed gives the same trajectories.
        reward_mix: For the jobs that know it; None takes each job's own. "none" leaves out rewards.
        generation_scale: Factor on the drawn seconds of generations.

    Raises:
        InputError: No job of the workload knows the reward mix.
    """
    samplers = [_JobSampler(job, seed, _rewards_of(job, reward_mix), generation_scale) for job in workload.jobs]
    known = sorted({NO_REWARD, *(name for job in workload.jobs for name in job.reward_mixes)})
    if reward_mix is not None and reward_mix not in known:
        raise InputError("reward_mix", reward_mix, f"must be one of {', '.join(known)}")
    return _interleave(samplers)


def _rewards_of(job: JobParameters, reward_mix: str | None) -> tuple[ActionParameters, ...]:
    mixes = {NO_REWARD: (), **job.reward_mixes}
    return mixes.get(job.reward_mix if reward_mix is None else reward_mix, mixes[job.reward_mix])


def _interleave(samplers: list[_JobSampler]) -> Iterator[Rollout]:
    """Groups of the job that is furthest behind its share come next."""
    drawn = [0] * len(samplers)
    while True:
        behind = min(range(len(samplers)), key=lambda index: drawn[index] / samplers[index].job.share)
        group = samplers[behind].next_group()
        drawn[behind] += len(group)
        yield from group


@dataclass(slots=True)
class _Task:
    """What siblings share: their profile, a score for each class of actions, and Amdahl's fractions."""

    name: str
    profile: ProfileParameters
    stream: str
    _scores: dict[str, float] = field(default_factory=dict)
    _fractions: dict[str, float] = field(default_factory=dict)

    def score(self, label: str) -> float:
        """The shared score of a class."""
        found = self._scores.get(label)
        if found is None:
            found = self._scores[label] = Random(f"{self.stream}/{label}").gauss()
        return found

    def parallel_fraction(self, action: ActionParameters) -> float:
        """Amdahl's fraction of a class, in [0, 1]."""
        found = self._fractions.get(action.label)
        if found is None:
            drawn = action.parallel_fraction.at(Random(f"{self.stream}/{action.label}/parallel").gauss())
            found = self._fractions[action.label] = min(drawn, 1.0)
        return found


class _JobSampler:
    def __init__(
        self, job: JobParameters, seed: int, rewards: tuple[ActionParameters, ...], generation_scale: float
    ) -> None:
        self.job = job
        self._stream = f"{seed}/{job.name}"
        self._rewards = rewards
        self._generation_scale = generation_scale
        self._groups = 0
        self._tasks: dict[int, _Task] = {}
        self._cumulative = {
            profile.name: list(accumulate(action.share for action in profile.actions)) for profile in job.profiles
        }

    def next_group(self) -> list[Rollout]:
        group = self._groups
        self._groups += 1
        task = self._task(
            Random(f"{self._stream}/group/{group}").randrange(self.job.tasks) if self.job.tasks else group
        )
        return [self._rollout(f"{self.job.name}-{group}", sibling, task) for sibling in range(self.job.group_size)]

    def _task(self, number: int) -> _Task:
        if self.job.tasks and number in self._tasks:
            return self._tasks[number]
        stream = f"{self._stream}/task/{number}"
        shares = [profile.share for profile in self.job.profiles]
        (profile,) = Random(stream).choices(self.job.profiles, shares)
        task = _Task(f"{profile.name}-{number}", profile, stream)
        if self.job.tasks:
            self._tasks[number] = task
        return task

    def _rollout(self, group: str, sibling: int, task: _Task) -> Rollout:
        name = f"{group}-{sibling}"
        random = Random(f"{self._stream}/{name}")
        images = {"none": "", "job": self.job.name, "task": task.name}
        reset = _draw_action(self.job.reset, task, random) if self.job.reset else None
        return Rollout(
            name=name,
            job=self.job.name,
            group=group,
            task=task.name,
            image=images[self.job.image],
            memory_mb=self.job.memory_mb,
            reset=reset,
            turns=self._draw_turns(task, random),
            rewards=tuple(work for action in self._rewards for work in _draw_reward(action, task, random)),
        )

    def _draw_turns(self, task: _Task, random: Random) -> tuple[Turn, ...]:
        profile = task.profile
        score = _correlated(profile.turns_task_variance, task.score(_TURNS), random)
        count = max(1, round(profile.turns.at(score)))
        turns = []
        for turn in range(count):
            generation = Generation(self._generation_scale * profile.generation.seconds.at(random.gauss()))
            last = profile.final_answer and turn == count - 1
            turns.append(Turn(generation, () if last else self._draw_actions(task, random)))
        return tuple(turns)

    def _draw_actions(self, task: _Task, random: Random) -> tuple[Work, ...]:
        profile = task.profile
        if not profile.actions:
            return ()
        count = max(1, round(profile.actions_per_turn.at(random.gauss())))
        chosen = random.choices(profile.actions, cum_weights=self._cumulative[profile.name], k=count)
        return tuple(_draw_action(action, task, random) for action in chosen)


def _draw_reward(action: ActionParameters, task: _Task, random: Random) -> Iterator[Work]:
    if not action.services:
        yield _draw_action(action, task, random)
        return
    count = min(len(action.services), max(1, round(action.calls.at(random.gauss()))))
    for service in _draw_different(action.services, count, random):
        yield _draw_action(action, task, random, service)


def _draw_different(popularity: Mapping[str, float], count: int, random: Random) -> list[str]:
    """That many different names, popular ones more often: the smallest of exponential clocks run at those rates."""
    clocks = {name: random.expovariate(rate) for name, rate in popularity.items()}
    return sorted(clocks, key=clocks.__getitem__)[:count]


def _draw_action(action: ActionParameters, task: _Task, random: Random, service: str = "") -> Work:
    duration = action.duration_s.at(_correlated(action.task_variance, task.score(action.label), random))
    computes = action.use > 0.0
    return Work(
        kind=action.kind,
        label=action.label,
        cpu_s=duration * action.use,
        use=action.use if computes else 1.0,
        parallel_fraction=task.parallel_fraction(action),
        max_width=action.max_width,
        adaptive=action.adaptive,
        in_sandbox=action.kind in (ActionKind.ENV_STEP, ActionKind.ENV_RESET),
        peak_memory_mb=round(action.peak_memory_mb.at(random.gauss())),
        service=service or next(iter(action.services), ""),
        quota=action.quota,
        service_s=0.0 if computes else duration,
        tokens=round(action.tokens.at(random.gauss())),
        timeout_s=action.timeout_s,
        fails=_draw_faults(action.fault_probability, random),
    )


def _draw_faults(probability: float, random: Random) -> int:
    faults = 0
    while faults < _MOST_FAULTS and random.random() < probability:
        faults += 1
    return faults


def _correlated(shared_variance: float, shared_score: float, random: Random) -> float:
    if not shared_variance:
        return random.gauss()
    return math.sqrt(shared_variance) * shared_score + math.sqrt(1.0 - shared_variance) * random.gauss()


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
        gpus: For services.
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
        cluster=make_cluster(parameters.cluster, cores, nodes, gpus, gb_per_core=gb_per_core),
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
    taken = take_for_horizon(rollouts, live, horizon) if sustained else islice(rollouts, live)
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
    return tuple(ScenarioJob(job.name, weight=job.weight, priority=job.priority) for job in workload.jobs)


def take_for_horizon(rollouts: Iterable[Rollout], live: int, horizon_s: float) -> Iterator[Rollout]:
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
        needed -= max(alone_s(rollout), 1e-3)
        yield rollout


def alone_s(rollout: Rollout) -> float:
    """Seconds from begin to end with nothing else in the world and every action at its best width."""
    generation = sum(turn.generation.seconds for turn in rollout.turns)
    actions = sum(max((work.alone_s(work.max_width) for work in turn.actions), default=0.0) for turn in rollout.turns)
    reset = rollout.reset.alone_s(rollout.reset.max_width) if rollout.reset else 0.0
    return reset + generation + actions + max((work.alone_s(work.max_width) for work in rollout.rewards), default=0.0)


def make_cluster(
    parameters: ClusterParameters,
    cores: int | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
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
    return Cluster(
        cpu=_cpu_nodes(parameters, total, count, memory_mb),
        gpu=_gpu_nodes(parameters, accelerators) if parameters.models else (),
        models=parameters.models,
        quotas=parameters.quotas,
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


def _at_least_one(field: str, given: int | None, default: int) -> int:
    if given is not None and given < 1:
        raise InputError(field, given, "must be at least 1")
    return default if given is None else given
