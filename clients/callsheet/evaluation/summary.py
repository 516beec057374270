"""What an evaluation found, as figures. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from callsheet.evaluation.results import FAILED, SCORED, TrialResult


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    """Figures of all results.

    Attributes:
        environment: The task set's name.
        results: All of them.
        scored: Those with a score.
        failed: Those where the model failed; each counts as a score of 0.
        excluded: Those without a word on the model, by failures of the service or of the task; in no mean.
        mean_score: Over scored and failed ones; None where there is none.
        pass_share: Share of these that passed.
        mean_turns: Replies of an episode.
        components: Means of the scores' named parts.
        failures: Failed and excluded ones, by "KIND/reason".
        seconds: Mean wall-clock seconds of an episode, by where they went.
        lost_trajectories: Trajectories that were lost to the service and tried again.
    """

    environment: str
    results: int
    scored: int
    failed: int
    excluded: int
    mean_score: float | None
    pass_share: float | None
    mean_turns: float | None
    components: Mapping[str, float]
    failures: Mapping[str, int]
    seconds: Mapping[str, float]
    lost_trajectories: int

    def as_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return asdict(self)


def summarise(environment: str, results: Sequence[TrialResult], pass_at: float) -> EvaluationSummary:
    """Returns the figures.

    Args:
        environment: The task set's name.
        results: All results.
        pass_at: The score from which on a trial has passed.
    """
    counted = [each for each in results if not each.is_excluded]
    scored = [each for each in counted if each.score is not None]
    named = {name for each in scored for name in each.components}
    failures = Counter(f"{each.failure['kind']}/{each.failure['reason']}" for each in results if each.failure)
    phases = [name for each in results[:1] for name in each.seconds]
    return EvaluationSummary(
        environment=environment,
        results=len(results),
        scored=sum(each.status == SCORED for each in results),
        failed=sum(each.status == FAILED for each in results),
        excluded=len(results) - len(counted),
        mean_score=_mean([each.score or 0.0 for each in counted]),
        pass_share=_mean([float(each.score is not None and each.score >= pass_at) for each in counted]),
        mean_turns=_mean([float(each.turns) for each in counted]),
        components={
            name: fmean(each.components[name] for each in scored if name in each.components) for name in sorted(named)
        },
        failures=dict(failures.most_common()),
        seconds={name: fmean(each.seconds.get(name, 0.0) for each in results) for name in phases},
        lost_trajectories=sum(len(each.lost) for each in results),
    )


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
