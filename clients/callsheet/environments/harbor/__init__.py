"""Tasks in the formats of Harbor and Terminal-Bench, run as they are.

callsheet eval harbor --task-option path=FOLDER
"""

from callsheet.environments.harbor.environment import HarborAgent, HarborEnvironment, nothing, oracle
from callsheet.environments.harbor.task import HarborTask, HarborTaskError
from callsheet.environments.harbor.task_set import HarborTasks

__all__ = [
    "HarborAgent",
    "HarborEnvironment",
    "HarborTask",
    "HarborTaskError",
    "HarborTasks",
    "nothing",
    "oracle",
]
