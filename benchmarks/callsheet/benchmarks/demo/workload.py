"""Runs all episodes of the workload at once, in one mode: generate, act, observe, and reward at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from callsheet.benchmarks.demo.episodes import Episode
from callsheet.benchmarks.demo.measurements import ActionRecord, record_of
from callsheet.benchmarks.demo.modes import DemoMode
from callsheet.benchmarks.demo.policy import label_of
from callsheet.benchmarks.demo.scripted import ScriptedPolicy, timeouts
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.client import (
    Action,
    ActionKind,
    ActionOptions,
    Demand,
    FailureKind,
    Job,
    Outcome,
    Trajectory,
)
from callsheet.client.client import Client
from callsheet.environments import EpisodeFailure, EpisodeTask, run_episode
from callsheet.environments.failures import failure_of_outcome
from callsheet.environments.sandbox_environment import SET_UP_S, SandboxDemands, SandboxEnvironment

# A script ends by itself.
_MOST_TURNS = 10_000


@dataclass(slots=True)
class EpisodeResult:
    """How an episode went.

    Attributes:
        records: Its actions, in the order of their ends.
        turns: Decisions of its agent.
        start_wait_s: How long its env_reset was queued.
        held_core_s: For how long it held a core of its own.
        bug_confirmed: Whether the failing test of a coding episode did fail before anything was changed; None if it was
            not run, or there is none.
        score: Share of tests passed, or 1 or 0 for the game; None if there was none to tell.
        model_score: What the scoring model returned; None if there was none.
        lost: Why it was given up; empty if it came to its end.
    """

    records: list[ActionRecord] = field(default_factory=list)
    turns: int = 0
    start_wait_s: float = 0.0
    held_core_s: float = 0.0
    bug_confirmed: bool | None = None
    score: float | None = None
    model_score: float | None = None
    lost: str = ""

    @property
    def is_solved(self) -> bool:
        """Whether every test passed, or the game was won."""
        return self.score == 1.0


class EpisodeLostError(Exception):
    """The service could not go on with a trajectory; the message says why."""


class EpisodeRunner:
    """Runs one episode as one trajectory of a job, in its environment and with its scripted policy.

    Attributes:
        rollout: How it went, so far.
    """

    def __init__(self, job: Job, episode: Episode, mode: DemoMode, on_action: Callable[[ActionRecord], None]) -> None:
        self.rollout = EpisodeResult()
        self._job = job
        self._episode = episode
        self._mode = mode
        self._on_action = on_action
        self._policy = ScriptedPolicy(episode, mode.tokens_per_s)
        self._core_taken = 0.0

    async def run(self) -> EpisodeResult:
        """Runs it to its end; a trajectory that is lost on the way is a result, not an error."""
        try:
            async with self._job.trajectory(self._episode.name) as trajectory:
                await self._act(trajectory)
            if self._mode.holds_core:
                self.rollout.held_core_s = time.monotonic() - self._core_taken
            await self._ask_scorer()
        except EpisodeLostError as error:
            self.rollout.lost = str(error)
        return self.rollout

    async def _act(self, trajectory: Trajectory) -> None:
        trajectory.observer = self._observe
        demands = SandboxDemands(self._mode.reset, self._mode.in_sandbox)
        environment = SandboxEnvironment(self._episode.world, demands, label_of=label_of)
        record = await run_episode(
            trajectory, environment, EpisodeTask(self._episode.name), self._policy, max_turns=_MOST_TURNS
        )
        self._policy.hear(record.messages)
        self.rollout.turns = self._policy.turns
        self.rollout.bug_confirmed = self._policy.bug_confirmed
        if record.score is not None:
            self.rollout.score = record.score.value
        # A reward that failed by what the agent did leaves no score, and loses nothing.
        rewarded = bool(self.rollout.records) and self.rollout.records[-1].kind is ActionKind.REWARD
        if record.failure is not None and not (rewarded and _is_own(record.failure)):
            raise EpisodeLostError(_told(record.failure))

    async def _ask_scorer(self) -> None:
        outcome = await self._job.reward_model(
            self._policy.conversation.prompt(),
            demand=Demand(),
            label="scorer",
            task=self._episode.task,
            timeouts=timeouts(SET_UP_S),
        )
        self._record(record_of(ActionKind.REWARD, "scorer", outcome))
        failure = failure_of_outcome(outcome)
        if failure is not None:
            raise EpisodeLostError(_told(failure))
        self.rollout.model_score = outcome.unwrap().score

    def _observe(self, action: Action[Any], options: ActionOptions, outcome: Outcome[Any]) -> None:
        """Takes the figures of an action of the trajectory."""
        if action.kind is ActionKind.ENV_RESET:
            self.rollout.start_wait_s = outcome.timeline.queue_s
            self._core_taken = time.monotonic() - outcome.timeline.execution_s
        label = options.get("label", "").removeprefix(f"{self._episode.family}-")
        self._record(record_of(action.kind, label, outcome))

    def _record(self, record: ActionRecord) -> None:
        self.rollout.records.append(record)
        self._on_action(record)


def _is_own(failure: EpisodeFailure) -> bool:
    return failure.kind not in (FailureKind.INFRA, FailureKind.CANCELLED)


def _told(failure: EpisodeFailure) -> str:
    return f"{failure.kind.value}: {failure.reason}: {failure.message}"


@dataclass(frozen=True, slots=True)
class ModeRun:
    """What came of the workload in one mode.

    Attributes:
        mode: The mode.
        rollouts: One per episode, in the order of their ends.
        wall_s: From the start of the first to the end of the last.
        step: What a trainer would log of it, see `Job.step_summary`.
    """

    mode: DemoMode
    rollouts: tuple[EpisodeResult, ...]
    wall_s: float
    step: Mapping[str, float] = field(default_factory=dict)

    @property
    def records(self) -> list[ActionRecord]:
        """All actions."""
        return [record for rollout in self.rollouts for record in rollout.records]


async def run_mode(
    client: Client, job_id: str, episodes: Sequence[Episode], mode: DemoMode, progress: Progress
) -> ModeRun:
    """Runs all episodes concurrently as trajectories of one job, which is closed at the end.

    Args:
        client: Connected to the scheduler.
        job_id: Of the job to open.
        episodes: What to run.
        mode: How to demand cores.
        progress: Told about every episode that ends.

    Raises:
        CallsheetError: The scheduler refused something, or cannot be reached (inside an exception group).
    """
    rollouts: list[EpisodeResult] = []
    actions = 0

    def count(_: ActionRecord) -> None:
        nonlocal actions
        actions += 1

    job = await client.open_job(job_id)
    began = time.monotonic()

    async def run(episode: Episode) -> None:
        rollout = await EpisodeRunner(job, episode, mode, count).run()
        rollouts.append(rollout)
        ended = f"{len(rollouts)} of {len(episodes)} episodes, {actions} actions, {time.monotonic() - began:.0f} s"
        progress(f"{mode.name}: {ended}; {episode.name} {_verdict(rollout)} after {rollout.turns} turns")

    async with job, anyio.create_task_group() as tasks:
        for episode in episodes:
            tasks.start_soon(run, episode)
    return ModeRun(mode, tuple(rollouts), time.monotonic() - began, job.step_summary())


def _verdict(rollout: EpisodeResult) -> str:
    if rollout.lost:
        return f"lost ({rollout.lost})"
    if rollout.score is None:
        return "ended without a score"
    return "solved" if rollout.is_solved else f"ended with score {rollout.score:.3f}"
