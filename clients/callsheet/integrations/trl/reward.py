"""Reward functions whose scores are reward actions: for trainers that keep TRL's own generation.

Another one hands on what environments scored, and logs what failed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import anyio
from callsheet.client import Client, ClientOptions, Job, Outcome, RewardResult
from callsheet.client.errors import one_error
from callsheet.environments import FailureRule, TrainerReward, count_failures
from callsheet.environments.failures import DEFAULT_RULE
from callsheet.integrations.columns import CUT_REPLIES, EXCLUDED, FAILURE, LEFT_OUT, REPLACED, SCORE, TURNS
from callsheet.integrations.reward_actions import RewardAction, reward_of_action
from callsheet.integrations.trl.rows import SECONDS

_NOT_OF_THE_ROW: Final = frozenset({"trainer_state", "log_extra", "log_metric", "environments"})


class CallsheetReward:
    """An async reward function: all completions of a batch are scored at once, each by a reward action.

    A failure of the service is None, which TRL leaves out, and never 0. Other failures go by the rule. It pickles, and
    connects where it is called::

        async def passes(job: Job, completion: str, row: Mapping[str, Any]) -> Outcome[RewardResult]:
            files = {"solution.py": completion}
            return await job.reward_tests("python3 -m pytest -q", files=files, image=row["image"])

        trainer = GRPOTrainer(..., reward_funcs=[CallsheetReward("127.0.0.1:7077", passes, job_id="run-7")])

    A reward function of TRL needs no action of its own: "package.module:function" is called in a new sandbox on any
    node, as TRL calls it, with lists of one completion. It returns a number, or a list of one.

    Args:
        target: The scheduler's address, "host:port".
        action: Submits the reward action of a completion; a function of a module, if it is to pickle. Or the name of a
            reward function, as of `Job.reward_function`.
        job_id: The job. Opening it again attaches.
        name: Names the reward in TRL's logs; by default as the function that is named.
        image: Where the package of a function that is named is installed; see `Job.reward_function`.
        rule: What becomes of failures.
        options: How to connect; None takes the variables of the environment, as `Client.from_env` does.
    """

    def __init__(
        self,
        target: str,
        action: RewardAction | str,
        *,
        job_id: str,
        name: str = "",
        image: str = "",
        rule: FailureRule = DEFAULT_RULE,
        options: ClientOptions | None = None,
    ) -> None:
        self.client = Client(target, options) if options is not None else Client.from_env(target=target)
        self.action = action
        self.job_id = job_id
        self.image = image
        self.rule = rule
        # By which TRL logs it.
        self.__name__ = name or (action.rpartition(":")[2] if isinstance(action, str) else "callsheet_reward")

    async def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Returns a reward for each completion, or None for what is no sample.

        Raises:
            CallsheetError: The job cannot be opened, or an action breaks a rule.
        """
        job = await self.client.open_job(self.job_id)
        found: dict[int, TrainerReward] = {}

        async def score(index: int) -> None:
            row = {"prompt": prompts[index], **row_of_columns(columns, index, len(completions))}
            found[index] = await reward_of_action(self._submit(job, completions[index], row), self.rule)

        with one_error():
            async with anyio.create_task_group() as tasks:
                for index in range(len(completions)):
                    tasks.start_soon(score, index)
        rewards = [found[index] for index in range(len(completions))]
        if log_metric is not None:
            for name, value in count_failures(rewards).metrics().items():
                log_metric(f"{self.__name__}/{name}", value)
        return [each.reward for each in rewards]

    def _submit(self, job: Job, completion: Any, row: Mapping[str, Any]) -> Awaitable[Outcome[RewardResult]]:
        if not isinstance(self.action, str):
            return self.action(job, text_of_completion(completion), row)
        columns = {"prompts" if name == "prompt" else name: [value] for name, value in row.items()}
        return job.reward_function(self.action, {**columns, "completions": [completion]}, image=self.image)


def text_of_completion(completion: Any) -> str:
    """Returns the text of a completion: as it is, or of the last of its messages that has one."""
    if isinstance(completion, str):
        return completion
    texts = [message.get("content") for message in completion if isinstance(message, Mapping)]
    return next((text for text in reversed(texts) if isinstance(text, str) and text), "")


def row_of_columns(columns: Mapping[str, Any], index: int, count: int) -> dict[str, Any]:
    """Returns one completion's values of the columns that TRL hands over."""
    return {
        name: values[index]
        for name, values in columns.items()
        if name not in _NOT_OF_THE_ROW and isinstance(values, Sequence) and len(values) == count
    }


def callsheet_score(*, log_metric: Callable[[str, float], None] | None = None, **columns: Any) -> list[float | None]:
    """Returns the score of each completion of a `CallsheetRollout`, for `reward_funcs`. None is no sample.

    It logs counts of the step: "callsheet/excluded" and "callsheet/failed" with a figure for each KIND/reason,
    "callsheet/replaced", "callsheet/cut_replies", and mean seconds of each part. TRL averages them over processes.
    """
    if SCORE not in columns:
        raise ValueError(f"{SCORE} is missing; callsheet_score needs a rollout_func that is a CallsheetRollout")
    scores: list[float | None] = list(columns[SCORE])
    if log_metric is not None:
        for name, value in step_metrics(columns, len(scores)).items():
            log_metric(f"callsheet/{name}", value)
    return scores


def step_metrics(columns: Mapping[str, Sequence[Any]], count: int) -> dict[str, float]:
    """Returns the figures of a step, of the columns that a rollout returned."""
    excluded = [bool(each) for each in columns[EXCLUDED]]
    figures = {
        "excluded": float(sum(excluded)),
        "failed": float(sum(each is not None for each in columns[FAILURE]) - sum(excluded)),
        "replaced": float(sum(columns[REPLACED])),
        "cut_replies": float(sum(columns[CUT_REPLIES])),
        "left_out_tokens": float(sum(columns[LEFT_OUT])),
        "turns": sum(columns[TURNS]) / max(1, count),
    }
    for failure, out in zip(columns[FAILURE], excluded, strict=True):
        if failure is not None:
            name = f"{'excluded' if out else 'failed'}/{failure}"
            figures[name] = figures.get(name, 0.0) + 1.0
    for part in SECONDS:
        figures[f"{part}_s"] = sum(columns[f"callsheet_{part}_s"]) / max(1, count)
    return figures
