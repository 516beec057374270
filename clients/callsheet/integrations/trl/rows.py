"""Rows that TRL takes of episodes: a pure core without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from callsheet.client import TrainingSample
from callsheet.environments import EpisodeRecord, FailureRule, TrainerReward
from callsheet.environments.seats import FilledSeat
from callsheet.integrations.columns import (
    CUT_REPLIES,
    EXCLUDED,
    FAILURE,
    LEFT_OUT,
    REPLACED,
    SCORE,
    TRAJECTORY,
    TURNS,
)

SECONDS: Final = ("generate", "environment", "reward", "waiting")


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One completion.

    Attributes:
        prompt_ids: Tokens before the first that was sampled.
        completion_ids: All that follows; at least one token.
        log_probs: One for each of those; 0 for tokens that were not sampled, NaN where the engine did not tell.
        mask: 1 for tokens that the model sampled, 0 for those of the environment.
        left_out: Sampled tokens of the trajectory that are not in it.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    log_probs: list[float]
    mask: list[int]
    left_out: int = 0


def row_of(samples: Sequence[TrainingSample], end_token: int, most: int) -> TokenRow:
    """Returns the completion of an episode. TRL takes one for each prompt.

    Args:
        samples: The episode's samples. Of several, which a template makes that cannot be continued, the longest counts.
        end_token: What a completion consists of that has no token to train on.
        most: The most tokens of a completion; the rest is cut.
    """
    if not samples:
        return nothing([end_token], end_token)
    longest = max(samples, key=lambda each: len(each.token_ids))
    others = sum(sum(each.loss_mask) for each in samples if each is not longest)
    begin = longest.loss_mask.index(1) if 1 in longest.loss_mask else len(longest.token_ids) - 1
    end = min(len(longest.token_ids), begin + most)
    mask = list(longest.loss_mask[begin:end])
    told = [float("nan") if each is None else each for each in longest.log_probs[begin:end]]
    return TokenRow(
        prompt_ids=list(longest.token_ids[:begin]),
        completion_ids=list(longest.token_ids[begin:end]),
        log_probs=[each if sampled else 0.0 for each, sampled in zip(told, mask, strict=True)],
        mask=mask,
        left_out=others + sum(longest.loss_mask[end:]),
    )


def nothing(prompt_ids: Sequence[int], end_token: int) -> TokenRow:
    """Returns a completion without a token to train on. TRL takes no empty one."""
    return TokenRow(list(prompt_ids), [end_token], [0.0], [0])


def columns(
    filled: Sequence[FilledSeat], rule: FailureRule, *, end_token: int, max_completion_tokens: int
) -> dict[str, list[Any]]:
    """Returns what a `rollout_func` returns: a list for each column, with an entry for each prompt.

    Args:
        filled: What became of the prompts' seats.
        rule: What becomes of failures.
        end_token: The tokenizer's.
        max_completion_tokens: The most tokens of a completion.
    """
    rewards = [each.record.reward_by(rule) for each in filled]
    rows = [
        _row(each.record, reward, end_token, max_completion_tokens)
        for each, reward in zip(filled, rewards, strict=True)
    ]
    found: dict[str, list[Any]] = {
        "prompt_ids": [row.prompt_ids for row in rows],
        "completion_ids": [row.completion_ids for row in rows],
        "logprobs": [row.log_probs for row in rows],
        "env_mask": [row.mask for row in rows],
        SCORE: [reward.reward for reward in rewards],
        FAILURE: [None if reward.failure is None else reward.failure.name for reward in rewards],
        EXCLUDED: [reward.is_excluded for reward in rewards],
        TRAJECTORY: [each.record.trajectory_id for each in filled],
        TURNS: [each.record.turns for each in filled],
        CUT_REPLIES: [each.record.cut_replies for each in filled],
        REPLACED: [each.replaced for each in filled],
        LEFT_OUT: [row.left_out for row in rows],
    }
    for name in SECONDS:
        found[f"callsheet_{name}_s"] = [getattr(each.record.seconds, name) for each in filled]
    return found


def _row(record: EpisodeRecord, reward: TrainerReward, end_token: int, most: int) -> TokenRow:
    row = row_of(record.samples, end_token, most)
    # What has no reward is not trained on either, whatever it is told about.
    return (
        TokenRow(row.prompt_ids, row.completion_ids, [0.0] * len(row.mask), [0] * len(row.mask))
        if reward.is_excluded
        else row
    )
