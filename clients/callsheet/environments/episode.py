"""One episode from reset to reward, whoever trains or evaluates."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from numbers import Real

from callsheet.client import CallsheetError, Job, NotSucceededError, TrainingSample, Trajectory
from callsheet.environments.environment import (
    AgentEnvironment,
    Environment,
    EpisodeScore,
    EpisodeTask,
)
from callsheet.environments.failures import EpisodeFailure, failure_of
from callsheet.environments.gateway_policy import GatewaySampling
from callsheet.environments.policy import EpisodePolicy, ReplyLimitError
from callsheet.gateway.chat import Message

DEFAULT_MAX_TURNS = 16


class EpisodeEnd(Enum):
    """How an episode ended."""

    DONE = "done"
    """Its environment, or its agent, was done."""
    MAX_TURNS = "max_turns"
    """It had as many replies as it may have. It was scored as it stood."""
    MAX_TOKENS = "max_tokens"
    """No reply fitted any more. It was scored as it stood."""
    FAILED = "failed"
    """A failure ended it; there is no score."""


@dataclass(slots=True)
class EpisodeSeconds:
    """Where an episode's wall-clock seconds went.

    Attributes:
        generate: Waiting for replies; all of a black-box agent's time.
        environment: In reset and step.
        reward: In the reward.
        waiting: In queues of the scheduler, left out of the others. What the gateway waited for is in `generate`.
    """

    generate: float = 0.0
    environment: float = 0.0
    reward: float = 0.0
    waiting: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return self.generate + self.environment + self.reward + self.waiting


@dataclass(slots=True)
class EpisodeRecord:
    """One trajectory's end. Of score and failure there is exactly one.

    Attributes:
        task: Its task.
        trajectory_id: Its trajectory.
        end: How it ended.
        score: What it was worth; None where there is none to trust.
        failure: Why there is no score.
        samples: What the policy said, as a trainer takes it.
        turns: Replies; 0 for a black-box agent.
        messages: The conversation; empty for a black-box agent.
        seconds: Where its time went.
    """

    task: EpisodeTask
    trajectory_id: str
    end: EpisodeEnd = EpisodeEnd.DONE
    score: EpisodeScore | None = None
    failure: EpisodeFailure | None = None
    samples: tuple[TrainingSample, ...] = ()
    turns: int = 0
    messages: tuple[Message, ...] = ()
    seconds: EpisodeSeconds = field(default_factory=EpisodeSeconds)


async def run_episode(
    trajectory: Trajectory,
    environment: Environment | AgentEnvironment,
    task: EpisodeTask,
    policy: EpisodePolicy | None = None,
    *,
    max_turns: int = DEFAULT_MAX_TURNS,
    agent_sampling: GatewaySampling | None = None,
) -> EpisodeRecord:
    """Runs one episode in an open trajectory, and leaves that open. `roll_out` opens and closes one, too.

    Args:
        trajectory: An open trajectory of its own.
        environment: A new one.
        task: What it is about.
        policy: A new one; None for an environment whose agent has a loop of its own.
        max_turns: The most replies of the policy.
        agent_sampling: What is forced on calls of such an agent.

    Returns:
        How it went. Outcomes that are no success, a lost connection and a trajectory that was closed are failures.

    Raises:
        ValueError: There is no policy and the environment needs one, the environment went on without a message, or its
            score is no `EpisodeScore` of finite numbers.
        RefusedError: The environment asked for what breaks a rule.
    """
    if not isinstance(environment, AgentEnvironment) and policy is None:
        raise ValueError(f"policy is None; {type(environment).__name__} needs one for replies")
    record = EpisodeRecord(task, trajectory.trajectory_id)
    try:
        if isinstance(environment, AgentEnvironment):
            await _run_agent(trajectory, environment, record, agent_sampling or GatewaySampling())
        else:
            assert policy is not None
            await _run_turns(trajectory, environment, record, policy, max_turns)
        with _phase(trajectory, record, "reward", environment.reward):
            record.score = _checked(environment, await environment.reward(trajectory))
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            raise
        record.end, record.score, record.failure = EpisodeEnd.FAILED, None, failure
    await _take_samples(trajectory, record, policy)
    return record


async def roll_out(
    job: Job,
    trajectory_id: str,
    environment: Environment | AgentEnvironment,
    task: EpisodeTask,
    policy: EpisodePolicy | None = None,
    *,
    max_turns: int = DEFAULT_MAX_TURNS,
    agent_sampling: GatewaySampling | None = None,
    idle_timeout_s: float | None = None,
    deadline_s: float | None = None,
) -> EpisodeRecord:
    """Runs one episode in a trajectory of its own, which is closed by how the episode ends.

    Args:
        job: Whose trajectory it is.
        trajectory_id: 1 to 256 characters, new in the job.
        environment: As for `run_episode`, like all that follows.
        task: What it is about.
        policy: A new one.
        max_turns: The most replies.
        agent_sampling: What is forced on calls of a black-box agent.
        idle_timeout_s: See `Job.trajectory`.
        deadline_s: See `Job.trajectory`.

    Raises:
        ConnectionLostError: The trajectory could not be opened.
        FailedPreconditionError: It was closed before.
        RefusedError: The environment asked for what breaks a rule.
    """
    record: EpisodeRecord | None = None
    try:
        opened = job.trajectory(trajectory_id, idle_timeout_s=idle_timeout_s, deadline_s=deadline_s)
        async with opened as trajectory:
            record = await run_episode(
                trajectory, environment, task, policy, max_turns=max_turns, agent_sampling=agent_sampling
            )
            if record.failure is not None:
                record.failure.throw()
    except NotSucceededError:
        if record is None:
            raise
    return record


async def _run_turns(
    trajectory: Trajectory, environment: Environment, record: EpisodeRecord, policy: EpisodePolicy, max_turns: int
) -> None:
    with _phase(trajectory, record, "environment", environment.reset):
        beginning = await environment.reset(trajectory)
    record.messages = tuple(beginning.messages)
    while record.turns < max_turns:
        with _phase(trajectory, record, "generate", policy.reply):
            try:
                reply = await policy.reply(trajectory, record.messages, beginning.tools)
            except ReplyLimitError:
                record.end = EpisodeEnd.MAX_TOKENS
                return
        record.turns += 1
        record.messages += (reply,)
        with _phase(trajectory, record, "environment", environment.step):
            observation = await environment.step(trajectory, reply)
        record.messages += tuple(observation.messages)
        if observation.done:
            return
        if not observation.messages:
            raise ValueError(
                f"{type(environment).__name__}.step: an episode that goes on needs a message to go on from"
            )
    record.end = EpisodeEnd.MAX_TURNS


async def _run_agent(
    trajectory: Trajectory, environment: AgentEnvironment, record: EpisodeRecord, sampling: GatewaySampling
) -> None:
    with _phase(trajectory, record, "environment", environment.reset):
        await environment.reset(trajectory)
    with _phase(trajectory, record, "generate", environment.run):
        await environment.run(trajectory, await sampling.access(trajectory))


def _checked(environment: object, score: object) -> EpisodeScore:
    """Returns a score in Python's own floats; a mean would take what is none for a 0, or become NaN."""
    rule = f"{type(environment).__name__}.reward: {score!r} must be an EpisodeScore of finite numbers"
    if not isinstance(score, EpisodeScore):
        raise ValueError(rule)
    for value in (score.value, *score.components.values()):
        if not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError(rule)
    # Numbers of numpy are real too, but JSON knows none of them.
    return EpisodeScore(float(score.value), {name: float(part) for name, part in score.components.items()})


async def _take_samples(trajectory: Trajectory, record: EpisodeRecord, policy: EpisodePolicy | None) -> None:
    """Takes the samples; of an episode that a failure ended, those that are still to be had."""
    try:
        if policy is not None:
            record.samples = await policy.samples(trajectory)
        elif record.failure is None:
            record.samples = (await trajectory.samples()).samples
    except CallsheetError as error:
        failure = failure_of(error)
        if failure is None and record.failure is None:
            raise
        if record.failure is None:
            record.end, record.score, record.failure = EpisodeEnd.FAILED, None, failure


@contextmanager
def _phase(
    trajectory: Trajectory, record: EpisodeRecord, phase: str, method: Callable[..., Awaitable[object]]
) -> Iterator[None]:
    """Surrounds a call: its time, less what its actions waited in queues, is the phase's. Errors tell whose it was."""
    seconds = record.seconds
    began, waited_before = time.monotonic(), trajectory.waited_s
    try:
        yield
    except Exception as error:
        error.add_note(f"in {getattr(method, '__qualname__', method)}, task {record.task.task_id!r}")
        raise
    finally:
        spent = time.monotonic() - began
        # Actions side by side may have waited for longer than the block took.
        waited = min(spent, trajectory.waited_s - waited_before)
        seconds.waiting += waited
        setattr(seconds, phase, getattr(seconds, phase) + spent - waited)
