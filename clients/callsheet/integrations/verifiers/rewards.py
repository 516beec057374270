"""Rewards of verifiers that are reward actions."""

from __future__ import annotations

from typing import Any

from callsheet.client import Outcome
from callsheet.environments import FailureRule
from callsheet.environments.failures import failure_of_outcome
from verifiers.v1.errors import SandboxError

_DEFAULT_RULE = FailureRule()


def reward_of(outcome: Outcome[Any], rule: FailureRule = _DEFAULT_RULE) -> float:
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
    failure = failure_of_outcome(outcome)
    decided = rule.decide(None if failure else outcome.unwrap().score, failure)
    if decided.reward is None:
        raise SandboxError(str(failure))
    return decided.reward
