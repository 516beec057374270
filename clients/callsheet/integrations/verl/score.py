"""verl's `compute_score` as reward actions. Nothing here imports verl."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from callsheet.client import ClientOptions
from callsheet.client.client import Client
from callsheet.environments import FailureRule
from callsheet.environments.failures import DEFAULT_RULE
from callsheet.integrations.reward_actions import RewardAction, reward_of_action
from callsheet.integrations.verl.lent import job_of
from callsheet.integrations.verl.rows import failure_fields

ComputeScore: TypeAlias = Callable[..., Awaitable[dict[str, Any]]]


class LostRewardError(RuntimeError):
    """The service failed to score a response, after its retries. verl has no place for a missing reward."""


def score_by_actions(
    target: str,
    action: RewardAction | str,
    *,
    job_id: str,
    image: str = "",
    rule: FailureRule = DEFAULT_RULE,
    attempts: int = 2,
    options: ClientOptions | None = None,
) -> ComputeScore:
    """Returns an async `compute_score`, for a file that `reward.custom_reward_function.path` names::

        compute_score = score_by_actions("127.0.0.1:7077", passes, job_id="run-7")

    verl runs that file as a module of its own, so `action` is to be of an installed one. A `compute_score` of yours
    needs no action: "package.module:function" is called in a new sandbox on any node, with what verl calls it with. It
    returns a number, or a dict of which the score alone counts here.

    Args:
        target: The scheduler's address, "host:port".
        action: Submits the reward action. Or the name of a function, as of `Job.reward_function`.
        job_id: The job. Opening it again attaches.
        image: Where the package of a function that is named is installed; see `Job.reward_function`.
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
            submitted = (
                job.reward_function(action, {**row, "solution_str": solution_str}, image=image)
                if isinstance(action, str)
                else action(job, solution_str, row)
            )
            decided = await reward_of_action(submitted, rule)
            if decided.reward is not None:
                told = failure_fields(decided)
                return {"score": decided.reward, **{name: told[name] for name in sorted(told)}}
        raise LostRewardError(f"no reward of {data_source}: {decided.failure}")

    return compute_score
