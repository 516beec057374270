"""Reward functions whose scores are reward actions: for trainers that keep TRL's own generation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import anyio
from callsheet.client import Client, ClientOptions, Job, Outcome, RewardResult
from callsheet.client.errors import CallsheetError, one_error
from callsheet.environments import FailureRule, TrainerReward, count_failures
from callsheet.environments.failures import failure_of, failure_of_outcome

RewardAction = Callable[[Job, str, Mapping[str, Any]], Awaitable[Outcome[RewardResult]]]
"""Submits the reward action of one completion: gets the job, the completion's text and the row of the dataset."""

_NOT_OF_THE_ROW: Final = frozenset({"trainer_state", "log_extra", "log_metric", "environments"})
_DEFAULT_RULE: Final = FailureRule()


class CallsheetReward:
    """An async reward function: all completions of a batch are scored at once, each by a reward action.

    A failure of the service is None, which TRL leaves out, and never 0. Other failures go by the rule. It pickles, and
    connects where it is called::

        async def passes(job: Job, completion: str, row: Mapping[str, Any]) -> Outcome[RewardResult]:
            files = {"solution.py": completion}
            return await job.reward_tests("python3 -m pytest -q", files=files, image=row["image"])

        trainer = GRPOTrainer(..., reward_funcs=[CallsheetReward("127.0.0.1:7077", passes, job_id="run-7")])

    Args:
        target: The scheduler's address, "host:port".
        action: Submits the reward action of a completion; a function of a module, if it is to pickle.
        job_id: The job. Opening it again attaches.
        name: Names the reward in TRL's logs.
        rule: What becomes of failures.
        options: How to connect; None takes the variables of the environment, as `Client.from_env` does.
    """

    def __init__(
        self,
        target: str,
        action: RewardAction,
        *,
        job_id: str,
        name: str = "callsheet_reward",
        rule: FailureRule = _DEFAULT_RULE,
        options: ClientOptions | None = None,
    ) -> None:
        self.client = Client(target, options) if options is not None else Client.from_env(target=target)
        self.action = action
        self.job_id = job_id
        self.rule = rule
        self.__name__ = name  # by which TRL logs it

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
            found[index] = await self._score(job, text_of_completion(completions[index]), row)

        with one_error():
            async with anyio.create_task_group() as tasks:
                for index in range(len(completions)):
                    tasks.start_soon(score, index)
        rewards = [found[index] for index in range(len(completions))]
        if log_metric is not None:
            for name, value in count_failures(rewards).metrics().items():
                log_metric(f"{self.__name__}/{name}", value)
        return [each.reward for each in rewards]

    async def _score(self, job: Job, completion: str, row: Mapping[str, Any]) -> TrainerReward:
        try:
            outcome = await self.action(job, completion, row)
        except CallsheetError as error:
            failure = failure_of(error)
            if failure is None:
                raise
            return self.rule.decide(None, failure)
        failure = failure_of_outcome(outcome)
        return self.rule.decide(None if failure else outcome.unwrap().score, failure)


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
