"""Rewards of trainers that are reward actions: their type, and what becomes of their outcomes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from callsheet.client import CallsheetError, Job, Outcome, RewardResult
from callsheet.environments import FailureRule, TrainerReward
from callsheet.environments.failures import failure_of, failure_of_outcome

RewardAction: TypeAlias = Callable[[Job, str, Mapping[str, Any]], Awaitable[Outcome[RewardResult]]]
"""Submits the reward action of one completion: gets the job, the completion's text and the row of the dataset."""


def reward_of_outcome(outcome: Outcome[RewardResult], rule: FailureRule) -> TrainerReward:
    """Returns what a trainer takes of a reward action."""
    failure = failure_of_outcome(outcome)
    return rule.decide(None if failure else outcome.unwrap().score, failure)


async def reward_of_action(action: Awaitable[Outcome[RewardResult]], rule: FailureRule) -> TrainerReward:
    """Waits for a reward action, and returns what a trainer takes of it.

    Raises:
        CallsheetError: The action breaks a rule.
    """
    try:
        return reward_of_outcome(await action, rule)
    except CallsheetError as error:
        failure = failure_of(error)
        if failure is None:
            raise
        return rule.decide(None, failure)
