"""Rewards of verifiers that are reward actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callsheet.client import Outcome
from callsheet.environments import FailureRule
from callsheet.environments.failures import DEFAULT_RULE
from callsheet.integrations.reward_actions import reward_of_outcome
from callsheet.integrations.verifiers.runtime import CallsheetRuntime, told_to_verifiers
from verifiers.v1.errors import SandboxError
from verifiers.v1.runtimes import Runtime


def reward_of(outcome: Outcome[Any], rule: FailureRule = DEFAULT_RULE) -> float:
    """Returns the score of a reward action, for a method with `@vf.reward`::

        @vf.reward
        async def passes(self, trace: vf.Trace, runtime: CallsheetRuntime) -> float:
            trajectory = runtime.sandbox.trajectory
            return reward_of(await trajectory.reward_tests("pytest -q", where=Where.IN_SANDBOX))

    Args:
        outcome: Of the action.
        rule: What becomes of failures.

    Raises:
        SandboxError: It is no reward by the rule, so that the trace is no sample.
    """
    decided = reward_of_outcome(outcome, rule)
    if decided.reward is None:
        raise SandboxError(str(decided.failure))
    return decided.reward


async def reward_by_function(
    runtime: Runtime,
    function: str,
    arguments: Mapping[str, object],
    *,
    image: str = "",
    rule: FailureRule = DEFAULT_RULE,
) -> float:
    """Returns the score of a function on shared capacity, for a method with `@vf.reward` or a reward of the config::

        async def grade(task: vf.TaskData, trace: vf.Trace, runtime: vf.Runtime) -> float:
            arguments = {"answer": trace.last_reply, "expected": task.answer}
            return await reward_by_function(runtime, "my_graders.math:grade", arguments)

    Args:
        runtime: Of the run, which `CallsheetEnv` lends.
        function: "package.module:function", called in a new sandbox on any node. See `Job.reward_function`.
        arguments: As there.
        image: As there.
        rule: What becomes of failures.

    Raises:
        SandboxError: It is no reward by the rule, so that the trace is no sample.
        TypeError: The runtime is none of Callsheet's.
    """
    if not isinstance(runtime, CallsheetRuntime):
        raise TypeError(f"runtime: {type(runtime).__name__}: must be a CallsheetRuntime, as CallsheetEnv lends it")
    with told_to_verifiers():
        return reward_of(await runtime.sandbox.trajectory.reward_function(function, arguments, image=image), rule)
