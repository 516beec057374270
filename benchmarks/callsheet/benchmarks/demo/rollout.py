"""Rolls an episode out: generate, act, observe, until the agent is done, then reward."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from callsheet.benchmarks.demo.conversation import DemoConversation, thinking_tokens
from callsheet.benchmarks.demo.episodes import Episode
from callsheet.benchmarks.demo.measurements import ActionRecord, record_of
from callsheet.benchmarks.demo.modes import DemoMode
from callsheet.benchmarks.demo.policy import Decision, DecisionResult
from callsheet.client import (
    ActionKind,
    Command,
    CommandResult,
    Demand,
    Failed,
    FailureKind,
    Job,
    Outcome,
    Sampling,
    Succeeded,
    Timeouts,
    Trajectory,
    Where,
)

T = TypeVar("T")

# A trajectory that waits for a reserved core may wait for nearly the whole run.
_PATIENCE_S = 900.0
_PROGRAM_TIMEOUT_S = 120.0


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
    """Runs one episode as one trajectory of a job.

    Attributes:
        rollout: How it went, so far.
    """

    def __init__(self, job: Job, episode: Episode, mode: DemoMode, on_action: Callable[[ActionRecord], None]) -> None:
        self.rollout = EpisodeResult()
        self._job = job
        self._episode = episode
        self._mode = mode
        self._on_action = on_action
        self._conversation = DemoConversation(episode.introduction)
        self._thinking = random.Random(episode.seed)

    async def run(self) -> EpisodeResult:
        """Runs it to its end; a trajectory that is lost on the way is a result, not an error."""
        try:
            async with self._job.trajectory(self._episode.name) as trajectory:
                core_taken = await self._reset(trajectory)
                await self._act(trajectory)
                await self._reward(trajectory)
            if self._mode.holds_core:
                self.rollout.held_core_s = time.monotonic() - core_taken
            await self._ask_scorer()
        except EpisodeLostError as error:
            self.rollout.lost = str(error)
        return self.rollout

    async def _reset(self, trajectory: Trajectory) -> float:
        """Creates the sandbox; returns the time at which that began to run."""
        outcome = await trajectory.env_reset(
            files=self._episode.files,
            set_up=self._episode.set_up,
            demand=self._mode.reset,
            label=f"{self._episode.family}-reset",
            task=self._episode.task,
            timeouts=_timeouts(_PROGRAM_TIMEOUT_S),
        )
        self._record(ActionKind.ENV_RESET, "reset", outcome)
        self.rollout.start_wait_s = outcome.timeline.queue_s
        result = _value(outcome)
        if result.set_up is not None:
            self._conversation.add_text(result.set_up.stdout.decode(errors="replace"))
        return time.monotonic() - outcome.timeline.execution_s

    async def _act(self, trajectory: Trajectory) -> None:
        policy = self._episode.policy()
        turn = next(policy, None)
        while turn is not None:
            await self._think(trajectory)
            observation = await self._step(trajectory, turn)
            if self.rollout.turns == 0 and turn.label == "test":
                self.rollout.bug_confirmed = observation.exit_code == 1
            self.rollout.turns += 1
            try:
                turn = policy.send(observation)
            except StopIteration:
                turn = None

    async def _think(self, trajectory: Trajectory) -> None:
        outcome = await trajectory.generate(
            self._conversation.prompt(),
            Sampling(max_new_tokens=thinking_tokens(self._thinking), seed=self._thinking.getrandbits(32)),
            label="think",
            task=self._episode.task,
            timeouts=_timeouts(_PROGRAM_TIMEOUT_S),
        )
        self._record(ActionKind.GENERATE, "think", outcome)
        self._conversation.add_thinking(_value(outcome).token_ids)

    async def _step(self, trajectory: Trajectory, turn: Decision) -> DecisionResult:
        self._conversation.add_text(_shown(turn.command))
        outcome = await trajectory.env_step(
            turn.command,
            demand=self._mode.in_sandbox,
            label=turn.label,
            task=self._episode.task,
            timeouts=_timeouts(turn.start_to_close_s),
        )
        self._record(ActionKind.ENV_STEP, turn.label, outcome)
        observation = _observe(outcome)
        self._conversation.add_text(observation.output)
        return observation

    async def _reward(self, trajectory: Trajectory) -> None:
        outcome = await trajectory.reward_tests(
            self._episode.reward,
            files=self._episode.reward_files,
            where=Where.IN_SANDBOX,
            background=self._episode.background,
            demand=self._mode.in_sandbox,
            label=f"{self._episode.family}-suite",
            task=self._episode.task,
            timeouts=_timeouts(_PROGRAM_TIMEOUT_S),
        )
        self._record(ActionKind.REWARD, "suite", outcome)
        if not _is_own_failure(outcome):
            self.rollout.score = _value(outcome).score

    async def _ask_scorer(self) -> None:
        outcome = await self._job.reward_model(
            self._conversation.prompt(),
            demand=Demand(),
            label="scorer",
            task=self._episode.task,
            timeouts=_timeouts(_PROGRAM_TIMEOUT_S),
        )
        self._record(ActionKind.REWARD, "scorer", outcome)
        self.rollout.model_score = _value(outcome).score

    def _record(self, kind: ActionKind, label: str, outcome: Outcome[T]) -> None:
        record = record_of(kind, label, outcome)
        self.rollout.records.append(record)
        self._on_action(record)


def _timeouts(start_to_close_s: float) -> Timeouts:
    return Timeouts(
        schedule_to_start_s=_PATIENCE_S,
        start_to_close_s=start_to_close_s,
        schedule_to_close_s=_PATIENCE_S + 4 * start_to_close_s,
    )


def _value(outcome: Outcome[T]) -> T:
    """The value of an action that must succeed for the episode to go on."""
    if isinstance(outcome, Succeeded):
        return outcome.value
    if isinstance(outcome, Failed):
        raise EpisodeLostError(f"{outcome.kind.value}: {outcome.reason}: {outcome.message}")
    raise EpisodeLostError(f"{type(outcome).__name__.lower()}: {outcome}")


def _is_own_failure(outcome: Outcome[T]) -> bool:
    """Whether an action failed by what the agent did, so that the episode goes on."""
    return isinstance(outcome, Failed) and outcome.kind is not FailureKind.INFRA


def _observe(outcome: Outcome[CommandResult]) -> DecisionResult:
    """What the agent sees of a command. A failure that is not the service's own is something to learn from."""
    if isinstance(outcome, Failed) and _is_own_failure(outcome):
        return DecisionResult(None, f"{outcome.kind.value}: {outcome.message}\n")
    result = _value(outcome)
    output = (result.stdout + result.stderr).decode(errors="replace")
    return DecisionResult(result.exit_code if result.signal is None else None, output)


def _shown(command: Command) -> str:
    program = command.program if isinstance(command.program, str) else " ".join(command.program)
    return f"$ {program}\n"
