"""One environment for trainers, evaluations and the demo. Nothing here imports a trainer, torch or a tokenizer.

See `Environment` for what to write, `run_episode` and `run_batch` for what runs it.
"""

from callsheet.environments.environment import (
    AgentEnvironment,
    Beginning,
    Environment,
    EpisodeScore,
    EpisodeTask,
    Observation,
    TaskSet,
)
from callsheet.environments.episode import (
    EpisodeEnd,
    EpisodePhase,
    EpisodeRecord,
    EpisodeSeconds,
    TimeLimit,
    roll_out,
    run_episode,
)
from callsheet.environments.failures import (
    EpisodeFailure,
    FailureCounts,
    FailureRule,
    TrainerReward,
    count_failures,
)
from callsheet.environments.policy import (
    CutReplyError,
    EpisodePolicy,
    GatewayPolicy,
    GatewaySampling,
    ReplyLimitError,
    TokenPolicy,
)
from callsheet.environments.rollouts import BatchSettings, PolicyFactory, run_batch, run_group
from callsheet.environments.task_sets import TaskSetError, load_task_set, task_set_names
from callsheet.gateway.chat import Message, Tool

__all__ = [
    "AgentEnvironment",
    "BatchSettings",
    "Beginning",
    "CutReplyError",
    "Environment",
    "EpisodeEnd",
    "EpisodeFailure",
    "EpisodePhase",
    "EpisodePolicy",
    "EpisodeRecord",
    "EpisodeScore",
    "EpisodeSeconds",
    "EpisodeTask",
    "FailureCounts",
    "FailureRule",
    "GatewayPolicy",
    "GatewaySampling",
    "Message",
    "Observation",
    "PolicyFactory",
    "ReplyLimitError",
    "TaskSet",
    "TaskSetError",
    "TimeLimit",
    "TokenPolicy",
    "Tool",
    "TrainerReward",
    "count_failures",
    "load_task_set",
    "roll_out",
    "run_batch",
    "run_episode",
    "run_group",
    "task_set_names",
]
