"""What rollouts finish their trajectories with for AsyncGRPO, and what it takes of batches: a pure core without I/O."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from callsheet.client import FinishedTrajectory
from callsheet.client.words.batch_values import FinishedResult
from callsheet.environments import EpisodeRecord, FailureRule, count_failures
from callsheet.environments.seats import FilledSeat
from callsheet.integrations.trl.rows import reward_of

_LEAST_SPREAD: Final = 1e-8


@dataclass(frozen=True, slots=True)
class GradedSample:
    """One row for the trainer, which may be one of several of a trajectory.

    Attributes:
        trajectory: Its trajectory.
        advantage: By how many standard deviations the trajectory's reward is above the mean of its group.
        task_id: Its task.
        messages: The conversation.
        turns: Replies of the trajectory.
        token_ids: Of the whole path; shape (n,).
        loss_mask: 1 for a token that was sampled; shape (n,).
        log_probs: Of sampled tokens, 0 for others; shape (n,).
    """

    trajectory: FinishedTrajectory
    advantage: float
    task_id: str
    messages: Sequence[Mapping[str, Any]]
    turns: int
    token_ids: Sequence[int]
    loss_mask: Sequence[int]
    log_probs: Sequence[float]


def result_of(record: EpisodeRecord, rule: FailureRule) -> FinishedResult | None:
    """Returns what an episode's trajectory finishes with; None if it is no sample."""
    reward = reward_of(record, rule).reward
    if reward is None:
        return None
    samples = [
        {
            "token_ids": sample.token_ids,
            "loss_mask": sample.loss_mask,
            "log_probs": [0.0 if each is None else each for each in sample.log_probs],
        }
        for sample in record.samples
    ]
    messages = [dict(message) for message in record.messages]
    kept = {"task_id": record.task.task_id, "messages": messages, "turns": record.turns}
    return FinishedResult(reward, json.dumps([kept, samples]).encode())


def advantages_of(rewards: Sequence[float]) -> list[float]:
    """Returns each reward against those of its siblings."""
    mean = sum(rewards) / len(rewards)
    spread = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) + _LEAST_SPREAD
    return [(reward - mean) / spread for reward in rewards]


def graded(group: Sequence[FinishedTrajectory]) -> Iterator[GradedSample]:
    """Yields the samples of the finished members of a group."""
    for each, advantage in zip(group, advantages_of([each.reward for each in group]), strict=True):
        kept, samples = json.loads(each.payload)
        for sample in samples:
            yield GradedSample(each, advantage, **kept, **sample)


def batch_metrics(trajectories: Sequence[FinishedTrajectory]) -> dict[str, float]:
    """Returns the size of a batch and how stale it was when it was taken, as AsyncGRPO takes metrics.

    It sums what has "total" in the last part of its name, takes the greatest of "max" and the mean of others.
    """
    staleness = [each.staleness for each in trajectories]
    return {
        "callsheet/batch_trajectories": float(len(staleness)),
        "callsheet/staleness_mean": sum(staleness) / len(staleness),
        "callsheet/staleness_max": float(max(staleness)),
        **{f"callsheet/staleness/{versions}_total": float(count) for versions, count in Counter(staleness).items()},
    }


def group_metrics(group: Sequence[FilledSeat], rule: FailureRule) -> dict[str, float]:
    """Returns the counts of a group; see `batch_metrics`."""
    counts = count_failures(reward_of(each.record, rule) for each in group).metrics()
    figures = {f"callsheet/{name}_total": value for name, value in counts.items()}
    return {**figures, "callsheet/replaced_total": float(sum(each.replaced for each in group))}
