"""The reward function that hands on what environments scored, and logs what failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from callsheet.integrations.trl.rows import EXCLUDED, FAILURE, LEFT_OUT, REPLACED, SCORE, SECONDS, TURNS


def callsheet_score(*, log_metric: Callable[[str, float], None] | None = None, **columns: Any) -> list[float | None]:
    """Returns the score of each completion of a `CallsheetRollout`, for `reward_funcs`. None is no sample.

    It logs counts of the step: "callsheet/excluded" and "callsheet/failed" with a figure for each KIND/reason,
    "callsheet/replaced", and mean seconds of each part. TRL averages them over processes.
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
