"""The places that rewards run in: a scheduler and its managers derive them alike from the input of a reward."""

from __future__ import annotations

from typing import TypeAlias

from callsheet.v1 import action_pb2

CommandScorer: TypeAlias = action_pb2.TestSuiteInput | action_pb2.ScriptScoreInput
"""A scorer that runs a command in a sandbox."""


def command_scorer(reward: action_pb2.RewardInput) -> CommandScorer | None:
    """Returns the scorer of a reward that runs a command; None if it asks a model."""
    match reward.WhichOneof("scorer"):
        case "test_suite":
            return reward.test_suite
        case "script":
            return reward.script
        case _:
            return None


def scores_in_sandbox(reward: action_pb2.RewardInput) -> bool:
    """Returns whether a reward runs in its trajectory's sandbox, and not in a new one."""
    scorer = command_scorer(reward)
    return scorer is not None and scorer.where == action_pb2.REWARD_PLACE_IN_SANDBOX


def may_score_in_copy(reward: action_pb2.RewardInput) -> bool:
    """Returns whether a reward runs in a copy of its trajectory's sandbox if there is one."""
    scorer = command_scorer(reward)
    apart = (action_pb2.REWARD_PLACE_IN_SANDBOX, action_pb2.REWARD_PLACE_EMPTY)
    return scorer is not None and not scorer.image and scorer.where not in apart
