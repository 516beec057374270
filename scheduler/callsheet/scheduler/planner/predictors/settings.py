"""Settings of the predictors. The defaults were fitted to command durations of public traces of coding agents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import NamedTuple

from callsheet.scheduler.core.model import ActionKind


class Prior(NamedTuple):
    """What is assumed of a kind before anything of it ran.

    Attributes:
        duration_s: Median execution time.
        use: Cores used while running.
        peak_memory_mb: Median peak.
    """

    duration_s: float
    use: float
    peak_memory_mb: float


PRIORS = MappingProxyType(
    {
        ActionKind.GENERATE: Prior(5.0, 0.1, 64.0),
        ActionKind.ENV_RESET: Prior(5.0, 0.5, 256.0),
        ActionKind.ENV_STEP: Prior(0.3, 0.65, 256.0),
        ActionKind.TOOL_CALL: Prior(1.5, 0.05, 64.0),
        ActionKind.REWARD: Prior(5.0, 0.85, 256.0),
    }
)


# All other settings are above 0.
_UNBOUNDED = ("memory_quantile", "priors")


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """How fast is learned and forgotten. Strengths are worth so many observations.

    Attributes:
        kind_strength: Of the prior against what a kind showed.
        label_strength: Of a kind's mean against a label's.
        job_strength: Of a label's mean against that label's in a job.
        task_strength: Of the label's mean against a task's, until the ratio of variances has been learned.
        task_effect_strength: Of "this task is like others" against what its other labels showed.
        moments_strength: Of the assumed ratio of variances against the one learned.
        within_variance: Assumed variance of log-seconds among runs of one task and label.
        memory_within_variance: The same of log-megabytes.
        hint_log_sd: Assumed error of a client's hint.
        amdahl_sd: Assumed error of a client's Amdahl fraction.
        task_memory: A task forgets runs older than about so many.
        label_memory: A label and a kind likewise.
        drift_memory: A shift common to all tasks of a label is followed within about so many runs.
        max_tasks: Tasks remembered; beyond, the one not seen for longest is folded into its label.
        max_labels: Labels remembered, in all jobs together.
        memory_quantile: In standard deviations: the predicted peak is exceeded with the probability above it.
        longest_s: Bound of a predicted mean where no timeout is given.
    """

    kind_strength: float = 1.0
    label_strength: float = 0.7
    job_strength: float = 4.0
    task_strength: float = 1.0
    task_effect_strength: float = 4.0
    moments_strength: float = 20.0
    within_variance: float = 0.6
    memory_within_variance: float = 0.02
    hint_log_sd: float = 0.7
    amdahl_sd: float = 0.3
    task_memory: float = 10.0
    label_memory: float = 1000.0
    drift_memory: float = 100.0
    max_tasks: int = 20_000
    max_labels: int = 2_000
    memory_quantile: float = 1.645
    longest_s: float = 3600.0
    priors: Mapping[ActionKind, Prior] = field(default_factory=lambda: PRIORS, repr=False)

    def __post_init__(self) -> None:
        for name in (each.name for each in fields(self) if each.name not in _UNBOUNDED):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: must be a finite number above 0 (got {value!r})")
