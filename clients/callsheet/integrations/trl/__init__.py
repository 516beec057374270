"""Callsheet within TRL: rollouts and rewards of its trainers are scheduled actions. TRL itself is imported by its user.

docs/how-to/trainers/trl.md tells how to adopt it.
"""

from callsheet.environments import FailureRule
from callsheet.environments.seats import SeatSettings
from callsheet.integrations.reward_actions import RewardAction
from callsheet.integrations.trl.async_worker import CallsheetRolloutWorker, CallsheetWeights
from callsheet.integrations.trl.publishing import PublishWeights
from callsheet.integrations.trl.reward import CallsheetReward, callsheet_score
from callsheet.integrations.trl.rollout import CallsheetRollout, NothingToTrainOnError
from callsheet.integrations.trl.session import JobSettings, TrainerSession

__all__ = [
    "CallsheetReward",
    "CallsheetRollout",
    "CallsheetRolloutWorker",
    "CallsheetWeights",
    "FailureRule",
    "JobSettings",
    "NothingToTrainOnError",
    "PublishWeights",
    "RewardAction",
    "SeatSettings",
    "TrainerSession",
    "callsheet_score",
]
