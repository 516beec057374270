"""A harness of verifiers that runs an environment's episode in this process, and its work in a sandbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import verifiers.v1 as vf
from callsheet.client import GatewayAccess, NotSucceededError, TrainingSample, Trajectory
from callsheet.environments import (
    FailureRule,
    GatewayPolicy,
    GatewaySampling,
    Message,
    ReplyLimitError,
    TaskSet,
    Tool,
    load_task_set,
    run_episode,
)
from callsheet.integrations.verifiers.notes import note_episode
from callsheet.integrations.verifiers.runtime import CallsheetRuntime
from callsheet.integrations.verifiers.tasks import CallsheetTaskData
from verifiers.v1.errors import SandboxError


# Replies of a rollout's model, asked for where verifiers records them. Nothing here imports verifiers.
@dataclass(frozen=True, slots=True)
class EndpointAccess(GatewaySampling):
    """The endpoint that verifiers gives to a harness, in place of the gateway.

    Attributes:
        endpoint: Its base URL, which ends with "/v1".
        secret: Its bearer token.
    """

    endpoint: str = ""
    secret: str = field(default="", repr=False)

    async def access(self, trajectory: Trajectory) -> GatewayAccess:
        """Returns the endpoint."""
        del trajectory
        return GatewayAccess(self.endpoint.removesuffix("/v1"), self.secret, float("inf"))


class EndpointPolicy:
    """Replies by chat completions of a rollout's endpoint, which records every call in its trace.

    Attributes:
        access: The endpoint, also for an agent with a loop of its own.

    Args:
        endpoint: Base URL, which ends with "/v1".
        secret: Its bearer token.
        is_stopped: Whether the rollout was stopped, by a limit or a rule of its task.
        timeout_s: The longest wait for one reply.
    """

    def __init__(
        self, endpoint: str, secret: str, is_stopped: Callable[[], bool], *, timeout_s: float = 3600.0
    ) -> None:
        self.access = EndpointAccess(endpoint=endpoint, secret=secret)
        self._asked = GatewayPolicy(self.access, timeout_s=timeout_s)
        self._is_stopped = is_stopped

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[Tool]) -> Message:
        """Returns the next message.

        Raises:
            ReplyLimitError: The rollout was stopped, or the prompt leaves no room. The episode is scored as it stands.
            NotSucceededError: There is no reply.
        """
        try:
            return await self._asked.reply(trajectory, messages, tools)
        except NotSucceededError as error:
            if self._is_stopped():
                raise ReplyLimitError("the rollout was stopped") from error
            raise

    async def samples(self, trajectory: Trajectory) -> tuple[TrainingSample, ...]:
        """Returns none: the trace has what was said."""
        del trajectory
        return ()


class EpisodeHarnessConfig(vf.HarnessConfig):
    """How episodes run.

    Attributes:
        max_turns: The most replies of an episode.
        failed_reward: The reward of an episode that failed by its task or its model.
        excluded: Names of further kinds of failure that make no sample, besides INFRA, CANCELLED and QUOTA.
        reply_s: The longest wait for one reply, in seconds.
    """

    max_turns: int = 16
    failed_reward: float = 0.0
    excluded: tuple[str, ...] = ()
    reply_s: float = 3600.0

    def rule(self) -> FailureRule:
        """Returns what becomes of failures."""
        return FailureRule.of_names(self.excluded, self.failed_reward)


class EpisodeHarness(vf.Harness[EpisodeHarnessConfig]):
    """Runs the episode of a `CallsheetTask`. Its model calls go to the rollout's endpoint, which records them."""

    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(  # noqa: PLR0917
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Runs one episode.

        Raises:
            SandboxError: The service failed; the trace is no sample.
            TypeError: The runtime or the task is not Callsheet's.
        """
        del ctx, mcp_urls
        if not isinstance(runtime, CallsheetRuntime) or not isinstance(data, CallsheetTaskData):
            raise TypeError("EpisodeHarness is for a CallsheetTask in CallsheetEnv, which lends it a trajectory")
        task = data.episode_task()
        environment = _task_set(data).environment(task)
        policy = EndpointPolicy(
            endpoint, secret, lambda: trace.stop_condition is not None, timeout_s=self.config.reply_s
        )
        runtime.sandbox.made_by_environment()
        trajectory = runtime.sandbox.trajectory
        # An agent of its own asks the same endpoint, which records its calls.
        record = await run_episode(
            trajectory, environment, task, policy, max_turns=self.config.max_turns, agent_sampling=policy.access
        )
        reward = note_episode(trace, record, self.config.rule())
        if reward.is_excluded:
            raise SandboxError(str(record.failure))
        return vf.ProgramResult(0, record.end.value, "" if record.failure is None else str(record.failure))


def _task_set(data: CallsheetTaskData) -> TaskSet:
    return _loaded(data.task_set, tuple(sorted(data.task_set_options.items())))


@lru_cache(maxsize=32)
def _loaded(name: str, options: tuple[tuple[str, Any], ...]) -> TaskSet:
    return load_task_set(name, **dict(options))
