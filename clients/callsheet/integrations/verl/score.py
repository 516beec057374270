"""verl's `compute_score` as reward actions. Nothing here imports verl."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from callsheet.client import CallsheetError, ClientOptions, Job, Outcome, RewardResult
from callsheet.client.client import Client
from callsheet.environments import FailureRule
from callsheet.environments.failures import failure_of, failure_of_outcome
from callsheet.integrations.verl.lent import job_of
from callsheet.integrations.verl.rows import failure_fields

RewardAction: TypeAlias = Callable[[Job, str, Mapping[str, Any]], Awaitable[Outcome[RewardResult]]]
"""Submits the reward action of one response: gets the job, the response's text and what the row says."""
ComputeScore: TypeAlias = Callable[..., Awaitable[dict[str, Any]]]

_DEFAULT_RULE = FailureRule()


class LostRewardError(RuntimeError):
    """The service failed to score a response, after its retries. verl has no place for a missing reward."""


def score_by_actions(
    target: str,
    action: RewardAction,
    *,
    job_id: str,
    rule: FailureRule = _DEFAULT_RULE,
    attempts: int = 2,
    options: ClientOptions | None = None,
) -> ComputeScore:
    """Returns an async `compute_score`, for a file that `reward.custom_reward_function.path` names::

        compute_score = score_by_actions("127.0.0.1:7077", passes, job_id="run-7")

    verl runs that file as a module of its own, so `action` is to be of an installed one.

    Args:
        target: The scheduler's address, "host:port".
        action: Submits the reward action.
        job_id: The job. Opening it again attaches.
        rule: What becomes of failures.
        attempts: How many actions are tried where the service fails, each with its own retries.
        options: How to connect; None takes the variables of the environment, as `Client.from_env` does.
    """
    client = Client(target, options) if options is not None else Client.from_env(target=target)

    async def compute_score(
        data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any] | None = None, **_: Any
    ) -> dict[str, Any]:
        row = {"data_source": data_source, "ground_truth": ground_truth, "extra_info": dict(extra_info or {})}
        job = await job_of(client, job_id)
        for _attempt in range(attempts):
            decided = rule.decide(*await _scored(action(job, solution_str, row)))
            if decided.reward is not None:
                told = failure_fields(decided)
                return {"score": decided.reward, **{name: told[name] for name in sorted(told)}}
        raise LostRewardError(f"no reward of {data_source}: {decided.failure}")

    return compute_score


async def _scored(outcome: Awaitable[Outcome[Any]]) -> tuple[float | None, Any]:
    try:
        ended = await outcome
    except CallsheetError as error:
        failure = failure_of(error)
        if failure is None:
            raise
        return None, failure
    failure = failure_of_outcome(ended)
    return (None if failure else ended.unwrap().score), failure
