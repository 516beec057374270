"""A harness of verifiers that runs an environment's episode in this process, and its work in a sandbox."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import verifiers.v1 as vf
from callsheet.client import FailureKind
from callsheet.environments import FailureRule, TaskSet, load_task_set, run_episode
from callsheet.integrations.verifiers.notes import note_episode
from callsheet.integrations.verifiers.policy import EndpointPolicy
from callsheet.integrations.verifiers.runtime import CallsheetRuntime
from callsheet.integrations.verifiers.tasks import CallsheetTaskData
from verifiers.v1.errors import SandboxError


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
        further = frozenset(FailureKind[name] for name in self.excluded)
        return FailureRule(FailureRule().excluded | further, self.failed_reward)


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
