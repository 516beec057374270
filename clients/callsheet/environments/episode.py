"""One episode from reset to reward, whoever trains or evaluates."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from numbers import Real
from typing import Any, Final

import anyio
from callsheet.client import (
    BadTextError,
    CallsheetError,
    FailureKind,
    Job,
    NotSucceededError,
    Reason,
    TrainingSample,
    Trajectory,
)
from callsheet.client.verbs import Observer
from callsheet.client.words.commands import CULPRITS, culprits_of
from callsheet.environments.environment import (
    AgentEnvironment,
    Environment,
    EpisodeScore,
    EpisodeTask,
)
from callsheet.environments.failures import (
    NOBODYS_FAULT,
    EpisodeFailure,
    FailureRule,
    TrainerReward,
    failure_of,
)
from callsheet.environments.policy import CutReplyError, EpisodePolicy, GatewaySampling, ReplyLimitError
from callsheet.gateway.chat import BadRequestError, Message

DEFAULT_MAX_TURNS = 16
TIME_LIMIT: Final = "time_limit"
"""Reason of an episode whose own time was over."""
_LOST_UNDER_COMMANDS: Final = frozenset({Reason.STATE_LOST.value, Reason.COPY_LOST.value})
_OF_RESETS: Final = frozenset(
    each.value
    for each in (
        Reason.SET_UP_FAILED,
        Reason.NETWORK_REFUSED,
        Reason.IMAGE_NOT_FOUND,
        Reason.IMAGE_BUILD_FAILED,
        Reason.USER_REFUSED,
        Reason.TOO_LITTLE_MEMORY,
        Reason.UNSERVABLE,
    )
)
_MESSAGE: Final = re.compile(r"messages\[(\d{1,9})\]")
_SECONDS_OF: Final = {
    "reset": "environment",
    "step": "environment",
    "reply": "generate",
    "agent": "generate",
    "reward": "reward",
}


class EpisodeEnd(Enum):
    """How an episode ended."""

    DONE = "done"
    """Its environment, or its agent, was done."""
    MAX_TURNS = "max_turns"
    """It had as many replies as it may have. It was scored as it stood."""
    MAX_TOKENS = "max_tokens"
    """A limit of tokens cut its last reply, or no reply fitted any more. It was scored as it stood."""
    TIMEOUT = "timeout"
    """Its time was over, see `TimeLimit.truncates`. It was scored as it stood."""
    FAILED = "failed"
    """A failure ended it; there is no score."""


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """How long an episode may take, and what becomes of one whose time is over.

    Attributes:
        seconds: From its reset to the end of its reward; what its actions waited in queues is not counted.
        truncates: An episode whose time is over before its reward is scored as it stands, and the reward has as much
            time again. So is an episode of which an action ran out of time. Otherwise both have failed as TIMEOUT.
    """

    seconds: float = math.inf
    truncates: bool = False


_NO_LIMIT: Final = TimeLimit()


class EpisodePhase(Enum):
    """Phase of an episode."""

    RESET = "reset"
    REPLY = "reply"
    STEP = "step"
    AGENT = "agent"
    REWARD = "reward"


@dataclass(slots=True)
class EpisodeSeconds:
    """Wall-clock seconds of an episode, split by how they were spent.

    Attributes:
        generate: Seconds of waiting for replies; all of a black-box agent's time.
        environment: Seconds in reset and step.
        reward: Seconds in the reward.
        waiting: Seconds in queues of the scheduler, left out of the others. The gateway's waits are in `generate`.
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
        turns: Replies, a cut one included; 0 for a black-box agent.
        cut_replies: 1 if a limit of tokens cut the last reply, which was then not carried out.
        messages: The conversation; empty for a black-box agent.
        seconds: Where its time went.
        phase: What it was at last.
    """

    task: EpisodeTask
    trajectory_id: str
    end: EpisodeEnd = EpisodeEnd.DONE
    score: EpisodeScore | None = None
    failure: EpisodeFailure | None = None
    samples: tuple[TrainingSample, ...] = ()
    turns: int = 0
    cut_replies: int = 0
    messages: tuple[Message, ...] = ()
    seconds: EpisodeSeconds = field(default_factory=EpisodeSeconds)
    phase: EpisodePhase = EpisodePhase.RESET

    def reward_by(self, rule: FailureRule) -> TrainerReward:
        """Returns what a trainer takes of this episode by a rule."""
        return rule.decide(None if self.score is None else self.score.value, self.failure)

    @property
    def tells_nothing(self) -> bool:
        """Returns whether the failure shows nothing about the model.

        It shows nothing if it is the service's, if it came before the first reply was asked for, if it is a reset's,
        or if the environment is at fault while the model replies or is scored. A sandbox that died under a command is
        the exception.
        """
        failure = self.failure
        if failure is None:
            return False
        if failure.kind in NOBODYS_FAULT or self.phase is EpisodePhase.RESET:
            return True
        asked = self.phase in {EpisodePhase.REPLY, EpisodePhase.REWARD} and failure.reason not in _LOST_UNDER_COMMANDS
        return failure.kind is FailureKind.ENV and (asked or failure.reason in _OF_RESETS)


async def run_episode(
    trajectory: Trajectory,
    environment: Environment | AgentEnvironment,
    task: EpisodeTask,
    policy: EpisodePolicy | None = None,
    *,
    max_turns: int = DEFAULT_MAX_TURNS,
    agent_sampling: GatewaySampling | None = None,
    limit: TimeLimit = _NO_LIMIT,
) -> EpisodeRecord:
    """Runs one episode in an open trajectory, and leaves that open. `roll_out` opens and closes one, too.

    Args:
        trajectory: An open trajectory of its own.
        environment: A new one.
        task: What it is about.
        policy: A new one; None for an environment whose agent has a loop of its own.
        max_turns: The most replies of the policy.
        agent_sampling: What is forced on calls of such an agent.
        limit: How long it may take.

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
            replies = partial(_run_agent, trajectory, environment, record, agent_sampling or GatewaySampling())
        else:
            assert policy is not None
            replies = partial(_run_turns, trajectory, environment, record, policy, max_turns=max_turns)
        clock = _Clock(limit.seconds, trajectory)
        over = await _within(record, clock, replies)
        if over is not None and limit.truncates:
            record.end, over, clock = EpisodeEnd.TIMEOUT, None, _Clock(limit.seconds, trajectory)
        if over is None:
            over = await _within(record, clock, partial(_score, trajectory, environment, record))
        if over is not None:
            record.end, record.failure = EpisodeEnd.FAILED, over
    except Exception as error:
        failure = failure_of(error)
        if failure is None or (isinstance(error, BadTextError) and not trajectory.is_heard(error)):
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
    limit: TimeLimit = _NO_LIMIT,
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
        limit: How long it may take.
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
                trajectory, environment, task, policy, max_turns=max_turns, agent_sampling=agent_sampling, limit=limit
            )
            if record.failure is not None:
                record.failure.throw()
    except NotSucceededError:
        if record is None:
            raise
    return record


async def _within(record: EpisodeRecord, clock: _Clock, part: Callable[..., Awaitable[None]]) -> EpisodeFailure | None:
    """Runs a part of an episode; returns why, if the episode's time or that of an action was over before."""
    with anyio.CancelScope() as clock.scope:
        try:
            await part(clock=clock)
        except NotSucceededError as error:
            failure = failure_of(error)
            if failure is None or failure.kind is not FailureKind.TIMEOUT or record.phase is EpisodePhase.RESET:
                raise
            return failure
        return None
    return EpisodeFailure(
        FailureKind.TIMEOUT, TIME_LIMIT, f"its {clock.seconds:g} seconds were over in its {record.phase.value}"
    )


class _Clock:
    """Ends a scope once an episode's time is over; what its actions waited in queues is added as it gets known.

    Attributes:
        seconds: The time.
        scope: What is to end.
    """

    def __init__(self, seconds: float, trajectory: Trajectory) -> None:
        self.seconds = seconds
        self._trajectory = trajectory
        self._began: float | None = None
        self.scope = anyio.CancelScope()

    def wind(self) -> None:
        """Starts it, or adds what was waited."""
        if self._began is None:
            self._began = anyio.current_time() - self._trajectory.waited_s
        self.scope.deadline = self._began + self.seconds + self._trajectory.waited_s

    def observe(self, observer: Observer | None, *told: Any) -> None:
        """Winds it at the end of an action, and then calls the trajectory's own observer."""
        self.wind()
        if observer is not None:
            observer(*told)


async def _score(
    trajectory: Trajectory,
    environment: Environment | AgentEnvironment,
    record: EpisodeRecord,
    *,
    clock: _Clock,
) -> None:
    with _phase(trajectory, record, EpisodePhase.REWARD, environment.reward, clock):
        record.score = _checked(environment, await environment.reward(trajectory))


async def _run_turns(
    trajectory: Trajectory,
    environment: Environment,
    record: EpisodeRecord,
    policy: EpisodePolicy,
    *,
    max_turns: int,
    clock: _Clock,
) -> None:
    trajectory.heard = frozenset()
    with _phase(trajectory, record, EpisodePhase.RESET, environment.reset):
        beginning = await environment.reset(trajectory)
    record.messages = tuple(beginning.messages)
    while record.turns < max_turns:
        with _phase(trajectory, record, EpisodePhase.REPLY, policy.reply, clock):
            try:
                reply = await policy.reply(trajectory, record.messages, beginning.tools)
            except ReplyLimitError as error:
                record.end = EpisodeEnd.MAX_TOKENS
                if isinstance(error, CutReplyError):
                    record.turns, record.cut_replies = record.turns + 1, 1
                    record.messages += (error.reply,)
                return
            except BadRequestError as error:
                if not _is_of_replies(error, record):
                    raise
                EpisodeFailure(FailureKind.POLICY, Reason.BAD_MESSAGES.value, str(error)).throw()
            if not isinstance(reply, Mapping):
                raise TypeError(f"the reply is {reply!r:.200}; it must be a message")
        record.turns += 1
        record.messages += (reply,)
        trajectory.heard |= _signs_in(reply)
        with _phase(trajectory, record, EpisodePhase.STEP, environment.step, clock):
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
    trajectory: Trajectory,
    environment: AgentEnvironment,
    record: EpisodeRecord,
    sampling: GatewaySampling,
    *,
    clock: _Clock,
) -> None:
    trajectory.heard = frozenset()
    with _phase(trajectory, record, EpisodePhase.RESET, environment.reset):
        await environment.reset(trajectory)
    # What an agent writes from here on is its own.
    trajectory.heard = None
    with _phase(trajectory, record, EpisodePhase.AGENT, environment.run, clock):
        await environment.run(trajectory, await sampling.access(trajectory))


def _signs_in(reply: Message) -> frozenset[str]:
    """Returns the signs of odd texts in a reply; all of them where it cannot be looked through."""
    try:
        return culprits_of(json.dumps(reply, ensure_ascii=False, default=repr))
    except (RecursionError, ValueError, TypeError):
        return CULPRITS


def _is_of_replies(error: BadRequestError, record: EpisodeRecord) -> bool:
    """Returns whether a refused part of a conversation may be the model's text.

    It is not if the error names a message of another role.
    """
    named = _MESSAGE.match(error.field)
    return record.turns > 0 and (named is None or record.messages[int(named[1])].get("role") == "assistant")


def _checked(environment: object, score: object) -> EpisodeScore:
    """Returns a score in Python's own floats; a mean would take what is none for a 0, or become NaN."""
    rule = f"{type(environment).__name__}.reward: {score!r} must be an EpisodeScore of finite numbers"
    if not isinstance(score, EpisodeScore):
        raise ValueError(rule)
    for value in (score.value, *score.components.values()):
        if not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError(rule)
    # Numbers of numpy are real too, but JSON knows none of them.
    return EpisodeScore(
        float(score.value), {name: float(part) for name, part in score.components.items()}, str(score.said)
    )


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
    trajectory: Trajectory,
    record: EpisodeRecord,
    phase: EpisodePhase,
    method: Callable[..., Awaitable[object]],
    clock: _Clock | None = None,
) -> Iterator[None]:
    """Surrounds a call: its time, less what its actions waited in queues, is the phase's. Errors tell whose it was.

    A clock is wound at the beginning, and at the end of each action.
    """
    observer = trajectory.observer
    if clock is not None:
        clock.wind()
        trajectory.observer = partial(clock.observe, observer)
    seconds, name = record.seconds, _SECONDS_OF[phase.value]
    record.phase = phase
    began, waited_before = time.monotonic(), trajectory.waited_s
    try:
        yield
    except Exception as error:
        error.add_note(f"in {getattr(method, '__qualname__', method)}, task {record.task.task_id!r}")
        raise
    finally:
        trajectory.observer = observer
        spent = time.monotonic() - began
        # Actions side by side may have waited for longer than the block took.
        waited = min(spent, trajectory.waited_s - waited_before)
        seconds.waiting += waited
        setattr(seconds, name, getattr(seconds, name) + spent - waited)
