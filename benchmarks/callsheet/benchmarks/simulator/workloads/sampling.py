"""Draws trajectories from a workload's parameters.

Every trajectory has a random stream of its own, named by seed, job, group and sibling: the k-th is the same however
many are drawn and whatever the cluster is. What siblings share comes from a stream named by their task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

from callsheet.benchmarks.simulator.scenario import Generation, Rollout, Turn, Work
from callsheet.benchmarks.simulator.validation import InputError
from callsheet.benchmarks.simulator.workloads.parameters import (
    NO_REWARD,
    ActionParameters,
    GenerationParameters,
    JobParameters,
    ProfileParameters,
    Workload,
)
from callsheet.scheduler.core.words.model import ActionKind

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
        arrives = random.uniform(0.0, self.job.arrival_spread_s) if self.job.arrival_spread_s else 0.0
        images = {"none": "", "job": self.job.name, "task": task.name}
        reset = _draw_action(self.job.reset, task, random) if self.job.reset else None
        return Rollout(
            name=name,
            job=self.job.name,
            group=group,
            task=task.name,
            image=images[self.job.image],
            memory_mb=self.job.memory_mb,
            arrives=arrives,
            reset=reset,
            turns=self._draw_turns(task, random),
            rewards=tuple(work for action in self._rewards for work in _draw_reward(action, task, random)),
        )

    def _draw_turns(self, task: _Task, random: Random) -> tuple[Turn, ...]:
        profile = task.profile
        score = _correlated(profile.turns_task_variance, task.score(_TURNS), random)
        count = max(1, round(profile.turns.at(score)))
        turns, context = [], profile.generation.first_context
        for turn in range(count):
            generation = _draw_generation(profile.generation, context, self._generation_scale, random)
            context += generation.output_tokens + profile.generation.context_growth
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


def _draw_generation(parameters: GenerationParameters, context: int, scale: float, random: Random) -> Generation:
    score = random.gauss()
    seconds = scale * parameters.seconds.at(score)
    return Generation(seconds, context, max(1, round(parameters.output_tokens.at(score))))


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
