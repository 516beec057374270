"""Rows of verl's dataset, and rows that its agent loops hand back: a pure core without I/O."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from callsheet.client import TrainingSample
from callsheet.environments import EpisodeRecord, EpisodeTask, FailureRule, TaskSet, TrainerReward
from callsheet.integrations.columns import (
    CUT_REPLIES,
    EXCLUDED,
    FAILED,
    FAILURE,
    LEFT_OUT,
    REPLACED,
    TRAJECTORY,
    VERSIONS,
)

AGENT_NAME: Final = "callsheet_episode"
_TASK: Final = "callsheet_task"


def dataset_rows(task_set: TaskSet, *, agent_name: str = AGENT_NAME) -> list[dict[str, Any]]:
    """Returns a row for each task, for verl's dataset: `datasets.Dataset.from_list(rows).to_parquet(path)`.

    Args:
        task_set: The tasks.
        agent_name: The agent loop's name, as the file of `agent_loop_config_path` has it.
    """
    return [
        {
            "data_source": "callsheet",
            # The environment says what the model is told.
            "prompt": [{"role": "user", "content": task.task_id}],
            "agent_name": agent_name,
            "reward_model": {"style": "rule", "ground_truth": ""},
            # As text, since columns of Arrow have one shape in all rows.
            "extra_info": {"index": index, _TASK: json.dumps({"task_id": task.task_id, "data": dict(task.data)})},
        }
        for index, task in enumerate(task_set.tasks())
    ]


def task_of(fields: Mapping[str, Any]) -> EpisodeTask:
    """Returns the task of a row.

    Raises:
        ValueError: It is no row of `dataset_rows`.
    """
    told = (fields.get("extra_info") or {}).get(_TASK)
    if not isinstance(told, str):
        raise ValueError(f"extra_info.{_TASK} is missing; EpisodeAgentLoop is for rows of `dataset_rows`")
    found = json.loads(told)
    return EpisodeTask(found["task_id"], found["data"])


def output_fields(
    record: EpisodeRecord,
    rule: FailureRule,
    *,
    prompt_length: int,
    response_length: int,
    end_token: int,
    replaced: int = 0,
) -> dict[str, Any]:
    """Returns the fields of an `AgentLoopOutput`, its metrics left out.

    What has no reward has no token with a loss either. verl needs a number for it; that is 0.

    Args:
        record: How the episode went.
        rule: What becomes of failures.
        prompt_length: The most tokens of a prompt; of more the last ones count, as verl has it.
        response_length: The most tokens of a response.
        end_token: What stands for an empty prompt or response.
        replaced: Trajectories that were lost before this one.
    """
    reward = record.reward_by(rule)
    longest = max(record.samples, key=lambda each: len(each.token_ids), default=None)
    fields = _tokens(longest, prompt_length, response_length, end_token)
    if reward.is_excluded:
        fields["response_mask"] = [0] * len(fields["response_mask"])
    trained = sum(sum(each.loss_mask) for each in record.samples)
    extra = {
        **failure_fields(reward),
        TRAJECTORY: record.trajectory_id,
        REPLACED: replaced,
        CUT_REPLIES: float(record.cut_replies),
        LEFT_OUT: trained - sum(fields["response_mask"]) if not reward.is_excluded else 0,
        VERSIONS: version_spans(fields.pop("versions")),
        "turn_scores": [],
        "tool_rewards": [],
    }
    steps = [version for version, _, _ in extra[VERSIONS]]
    extra |= {"min_global_steps": min(steps, default=None), "max_global_steps": max(steps, default=None)}
    components = {} if record.score is None else dict(record.score.components)
    extra["reward_extra_info"] = reward_info({name: extra[name] for name in (EXCLUDED, FAILED, CUT_REPLIES)})
    extra["callsheet_components"] = components
    return {
        **fields,
        "reward_score": reward.reward if reward.reward is not None else 0.0,
        "num_turns": len(record.messages),
        "extra_fields": extra,
    }


def takes_nothing(fields: Mapping[str, Any]) -> bool:
    """Returns whether verl accepts no output for a sample: its newer trainer, which numbers sessions, does."""
    return "session_id" in fields


def failure_fields(reward: TrainerReward) -> dict[str, Any]:
    """Returns the fields that report a failure: two flags to be summed, and its name."""
    return {
        EXCLUDED: float(reward.is_excluded),
        FAILED: float(reward.failure is not None and not reward.is_excluded),
        FAILURE: "" if reward.failure is None else reward.failure.name,
    }


def reward_info(told: Mapping[str, float]) -> dict[str, float]:
    """Returns what goes with a reward. verl asks all samples for the keys of the first one; a missing one is 0."""
    return defaultdict(float, told)


def version_spans(versions: Sequence[int | None]) -> list[tuple[int, int, int]]:
    """Returns (version, begin, end) for each run of sampled tokens of one policy version."""
    spans: list[tuple[int, int, int]] = []
    for at, version in enumerate(versions):
        if version is None:
            continue
        if spans and spans[-1][0] == version and spans[-1][2] == at:
            spans[-1] = (version, spans[-1][1], at + 1)
        else:
            spans.append((version, at, at + 1))
    return spans


def _tokens(sample: TrainingSample | None, prompt_length: int, response_length: int, end_token: int) -> dict[str, Any]:
    """Returns prompt and response of a sample: the response begins with the first token that was sampled."""
    if sample is None or 1 not in sample.loss_mask:
        prompt = [end_token] if sample is None else list(sample.token_ids)[-prompt_length:]
        return {
            "prompt_ids": prompt,
            "response_ids": [end_token],
            "response_mask": [0],
            "response_logprobs": [0.0],
            "versions": [],
        }
    begin = sample.loss_mask.index(1)
    part = slice(begin, begin + response_length)
    mask = list(sample.loss_mask[part])
    told = [each if sampled else 0.0 for each, sampled in zip(sample.log_probs[part], mask, strict=True)]
    return {
        "prompt_ids": list(sample.token_ids[:begin])[-prompt_length:],
        "response_ids": list(sample.token_ids[part]),
        "response_mask": mask,
        "response_logprobs": None if None in told else told,
        "versions": sample.versions[part],
    }
