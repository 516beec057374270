"""The log-normal's functions against numerical integration."""

from __future__ import annotations

import math
import random

import pytest
from callsheet.scheduler.planner.predictors import Prediction
from callsheet.scheduler.planner.predictors.log_normal import (
    bounded_mean,
    censored,
    expected_remaining,
    mills_ratio,
    quantile,
    remaining_life,
)


def survival(log_mean: float, log_sd: float, seconds: float) -> float:
    return 0.5 * math.erfc((math.log(seconds) - log_mean) / log_sd / math.sqrt(2.0))


def integrated(log_mean: float, log_sd: float, begin: float, end: float) -> float:
    """Integral of the survival function, by the midpoint rule in log-seconds."""
    steps = 20_000
    low, high = math.log(begin), math.log(end)
    width = (high - low) / steps
    points = (math.exp(low + (index + 0.5) * width) for index in range(steps))
    return sum(survival(log_mean, log_sd, seconds) * seconds * width for seconds in points)


def predicted(log_mean: float, log_sd: float) -> Prediction:
    return Prediction(0.0, log_mean, log_sd, 1.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("z", [-30.0, -3.0, 0.0, 1.0, 5.99, 6.0, 6.01, 20.0])
def test_mills_ratio_is_smooth_and_right(z: float) -> None:
    step = 1e-4
    # It is the solution of y' = z y - 1.
    slope = (mills_ratio(z + step) - mills_ratio(z - step)) / (2 * step)
    assert slope == pytest.approx(z * mills_ratio(z) - 1.0, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("log_mean", "log_sd", "limit"), [(0.0, 1.0, 10.0), (2.0, 0.3, 5.0), (-3.0, 2.0, 120.0)])
def test_the_bounded_mean_is_the_integral_of_survival(log_mean: float, log_sd: float, limit: float) -> None:
    expected = integrated(log_mean, log_sd, 1e-9, limit)
    assert bounded_mean(log_mean, log_sd, limit) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("attained", [0.01, 1.0, 7.0, 60.0])
@pytest.mark.parametrize("timeout", [100.0, math.inf])
def test_the_remaining_time_is_the_integral_of_survival_from_there(attained: float, timeout: float) -> None:
    log_mean, log_sd = 0.5, 1.2
    left = integrated(log_mean, log_sd, attained, min(timeout, 1e6)) / survival(log_mean, log_sd, attained)
    assert expected_remaining(predicted(log_mean, log_sd), attained, timeout) == pytest.approx(left, rel=1e-3)


def test_the_remaining_time_grows_with_what_was_attained() -> None:
    prediction = predicted(0.0, 1.0)
    left = [expected_remaining(prediction, attained) for attained in (1.0, 10.0, 100.0, 1e4, 1e8)]
    assert left == sorted(left)
    assert all(map(math.isfinite, left))


def test_nothing_remains_at_the_timeout() -> None:
    assert expected_remaining(predicted(0.0, 1.0), 10.0, 10.0) == 0.0
    assert expected_remaining(predicted(0.0, 1.0), 9.9, 10.0) <= 0.1


def test_before_the_start_the_whole_remains() -> None:
    assert expected_remaining(predicted(1.0, 0.5), 0.0, 60.0) == pytest.approx(bounded_mean(1.0, 0.5, 60.0))


def test_the_quantile_is_exceeded_as_often_as_it_says() -> None:
    assert survival(1.0, 0.7, quantile(1.0, 0.7, 1.645)) == pytest.approx(0.05, abs=1e-3)


def test_a_late_cut_counts_as_a_full_observation_a_little_above_it_and_an_early_one_as_none() -> None:
    late, early = censored(0.0, 1.0, 8.0), censored(0.0, 1.0, -6.0)
    assert late.weight > 0.95
    assert 8.0 < late.log_value < 8.3
    assert early.weight < 1e-6
    assert early.log_value > 0.0


def test_newton_steps_on_censored_runs_find_the_mean() -> None:
    draw = random.Random(2)
    runs = [draw.gauss(1.0, 1.0) for _ in range(4000)]
    mean, information = 0.0, 1.0
    for run in runs:
        value, weight = censored(mean, 1.0, 1.2) if run > 1.2 else (run, 1.0)
        information += weight
        mean += weight / information * (value - mean)
    assert mean == pytest.approx(1.0, abs=0.06)


def test_a_run_that_is_as_predicted_ends_as_predicted() -> None:
    for attained in (0.0, 5.0, 10.0, 12.0):
        usual = expected_remaining(predicted(math.log(10.0), 0.3), attained, 3600.0)
        assert remaining_life(predicted(math.log(10.0), 0.3), attained, 3600.0) == pytest.approx(usual, rel=0.4)


@pytest.mark.parametrize("log_sd", [0.05, 0.1, 0.5, 1.0])
def test_a_run_far_beyond_its_prediction_goes_on_for_long(log_sd: float) -> None:
    hangs = predicted(math.log(0.8), log_sd)
    left = [remaining_life(hangs, attained, 3600.0) for attained in (15.0, 150.0, 1500.0)]
    assert left[0] > 5.0
    assert left[1] > 60.0
    assert left == sorted(left)
    assert remaining_life(hangs, 150.0, 160.0) <= 10.0, "no longer than its timeout"
    assert remaining_life(hangs, 160.0, 160.0) == 0.0


def test_a_wide_prediction_has_no_outliers() -> None:
    wide = predicted(0.0, 2.0)
    assert remaining_life(wide, 50.0) == expected_remaining(wide, 50.0)
