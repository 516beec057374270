"""When the share of variance explained is told, and within which bounds."""

from __future__ import annotations

import random

from callsheet.scheduler.planner.predictors.errors import RunningErrors


def errors_of(*runs: tuple[float, float]) -> RunningErrors:
    """Errors after runs, each as log-seconds and their prediction."""
    errors = RunningErrors()
    for log_seconds, predicted in runs:
        errors.duration(log_seconds, predicted)
    return errors


def test_few_runs_explain_nothing() -> None:
    assert errors_of((-6.0, 0.0), (-6.1, -3.0)).summary().explained is None
    assert errors_of(*[(0.0, 0.0), (1.0, 1.0)] * 14).summary().explained is None
    assert errors_of(*[(0.0, 0.0), (1.0, 1.0)] * 15).summary().explained == 1.0


def test_runs_that_are_alike_leave_nothing_to_explain() -> None:
    runs = [(-6.0, 0.0)] + [(-6.0 + 0.05 * (-1) ** index, -6.0) for index in range(500)]
    summary = errors_of(*runs).summary()
    assert summary.explained is None
    assert summary.mean_absolute < 0.1


def test_predictions_worse_than_the_mean_explain_nothing() -> None:
    draw = random.Random(1)
    runs = [(draw.gauss(0.0, 0.5), 8.0) for _ in range(100)]
    assert errors_of(*runs).summary().explained == 0.0


def test_the_share_explained() -> None:
    draw = random.Random(2)
    known = [draw.gauss(0.0, 1.0) for _ in range(2_000)]
    # Half of the variance is in what is known.
    explained = errors_of(*((each + draw.gauss(0.0, 1.0), each) for each in known)).summary().explained
    assert explained is not None
    assert 0.4 < explained < 0.6
