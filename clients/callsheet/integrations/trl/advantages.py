"""What AsyncGRPO takes of a group of siblings: a pure core without I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from callsheet.client import TrainingSample
from callsheet.environments import FailureRule, count_failures
from callsheet.environments.seats import FilledSeat
from callsheet.integrations.trl.rows import reward_of

_LEAST_SPREAD = 1e-8


@dataclass(frozen=True, slots=True)
class GradedSample:
    """One row for the trainer, which may be one of several of a trajectory.

    Attributes:
        filled: What became of its seat.
        sample: Its tokens.
        reward: Its trajectory's reward.
        advantage: By how many standard deviations that is above the mean of its group.
        policy_version: The oldest version that made any of its tokens; None where no engine told.
    """

    filled: FilledSeat
    sample: TrainingSample
    reward: float
    advantage: float
    policy_version: int | None


def advantages_of(rewards: Sequence[float | None]) -> list[float | None]:
    """Returns each reward against those of its siblings; None for what is no sample."""
    known = [reward for reward in rewards if reward is not None]
    if not known:
        return [None] * len(rewards)
    mean = sum(known) / len(known)
    spread = math.sqrt(sum((reward - mean) ** 2 for reward in known) / len(known)) + _LEAST_SPREAD
    return [None if reward is None else (reward - mean) / spread for reward in rewards]


def graded(group: Sequence[FilledSeat], rule: FailureRule) -> list[GradedSample]:
    """Returns the samples of a group; none of trajectories that are excluded."""
    rewards = [reward_of(each.record, rule).reward for each in group]
    found: list[GradedSample] = []
    for filled, reward, advantage in zip(group, rewards, advantages_of(rewards), strict=True):
        if reward is None or advantage is None:
            continue
        for sample in filled.record.samples:
            versions = [version for version in sample.versions if version is not None]
            found.append(GradedSample(filled, sample, reward, advantage, min(versions, default=None)))
    return found


def group_metrics(group: Sequence[FilledSeat], rule: FailureRule) -> Mapping[str, float]:
    """Returns the counts of a group as AsyncGRPO takes them, which sums what has "total" in its name."""
    counts = count_failures(reward_of(each.record, rule) for each in group).metrics()
    figures = {f"callsheet/{name}_total": value for name, value in counts.items()}
    return {**figures, "callsheet/replaced_total": float(sum(each.replaced for each in group))}
