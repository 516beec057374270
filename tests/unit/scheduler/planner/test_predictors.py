"""Predictors on synthetic runs whose truth is known."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from itertools import starmap
from typing import Any

import pytest
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.planner.predictors import (
    ObservedRun,
    Prediction,
    PredictionKey,
    Predictors,
)
from callsheet.scheduler.planner.predictors.nodes import Path, SavedNode
from callsheet.scheduler.planner.predictors.predictors import LONGEST_S

from tests.support.synthetic_commands import SyntheticCommands, saved_nodes

STEP = PredictionKey("job", ActionKind.ENV_STEP, "test", "task")
REWARD = PredictionKey("job", ActionKind.REWARD, "suite", "task")


def learned(key: PredictionKey, seconds: list[float], predictors: Predictors | None = None) -> Predictors:
    predictors = predictors or Predictors()
    for each in seconds:
        predictors.observe(ObservedRun(key, each, cpu_s=0.5 * each, peak_memory_mb=300.0))
    return predictors


def test_nothing_seen_yields_the_prior_of_the_kind_with_much_doubt() -> None:
    prediction = Predictors().predict(STEP)
    assert math.exp(prediction.log_mean) == pytest.approx(0.3)
    assert prediction.log_sd > 1.5
    assert prediction.observations == 0.0


def test_a_task_seen_often_is_predicted_from_its_own_runs() -> None:
    predictors = learned(STEP, [10.0] * 20)
    learned(STEP._replace(task="other"), [1.0] * 20, predictors)
    assert math.exp(predictors.predict(STEP).log_mean) == pytest.approx(10.0, rel=0.2)
    assert math.exp(predictors.predict(STEP._replace(task="other")).log_mean) == pytest.approx(1.0, rel=0.2)


def test_a_new_task_is_predicted_from_its_label_and_a_new_label_from_its_kind() -> None:
    predictors = Predictors()
    for task in range(20):
        learned(STEP._replace(task=f"t{task}"), [8.0], predictors)
    assert math.exp(predictors.predict(STEP._replace(task="new")).log_mean) == pytest.approx(8.0, rel=0.1)
    assert math.exp(predictors.predict(STEP._replace(label="new")).log_mean) > 2.0


def test_a_new_job_begins_with_what_other_jobs_showed_of_the_label() -> None:
    predictors = learned(STEP, [8.0] * 50)
    assert math.exp(predictors.predict(STEP._replace(job="next")).log_mean) == pytest.approx(8.0, rel=0.5)
    elsewhere = learned(STEP._replace(job="next"), [2.0] * 50, predictors)
    assert math.exp(elsewhere.predict(STEP).log_mean) == pytest.approx(8.0, rel=0.3)
    assert math.exp(elsewhere.predict(STEP._replace(job="next")).log_mean) == pytest.approx(2.0, rel=0.3)


def test_the_online_predictor_explains_what_tasks_add_to_classes() -> None:
    runs = list(SyntheticCommands().runs())
    # The best possible are 0.85 and 0.70; both learn online from nothing.
    assert 0.77 < explained(runs) < 0.87
    assert 0.64 < explained([run._replace(key=run.key._replace(task="")) for run in runs]) < 0.74


def explained(runs: Sequence[ObservedRun]) -> float:
    """Share of the variance of log-seconds that predictions made before each run explain."""
    predictors = Predictors()
    errors = []
    for run in runs:
        errors.append(math.log(run.execution_s) - predictors.predict(run.key).log_mean)
        predictors.observe(run)
    return 1.0 - statistics.fmean(error * error for error in errors) / statistics.pvariance(
        [math.log(run.execution_s) for run in runs]
    )


def test_the_predicted_spread_fits_the_errors() -> None:
    predictors, scores = Predictors(), []
    for run in SyntheticCommands(tasks=60).runs():
        prediction = predictors.predict(run.key)
        scores.append((math.log(run.execution_s) - prediction.log_mean) / prediction.log_sd)
        predictors.observe(run)
    assert statistics.fmean(scores) == pytest.approx(0.0, abs=0.1)
    assert statistics.pstdev(scores) == pytest.approx(1.0, abs=0.1)


def test_the_sum_of_predicted_means_is_near_the_sum_of_seconds() -> None:
    predictors = Predictors()
    for run in SyntheticCommands(seed=1).runs():
        predictors.observe(run)
    runs = list(SyntheticCommands(seed=1).runs())
    predicted = sum(predictors.predict(run.key, timeout_s=120.0).duration_s for run in runs)
    assert predicted == pytest.approx(sum(min(run.execution_s, 120.0) for run in runs), rel=0.25)


def test_timeouts_count_as_longer_than_they_took() -> None:
    draw = random.Random(5)
    truth = [math.exp(draw.gauss(2.0, 1.0)) for _ in range(400)]
    limit = math.exp(2.5)
    knowing, blind = Predictors(), Predictors()
    for index, seconds in enumerate(truth):
        key = STEP._replace(task=f"t{index}")
        knowing.observe(ObservedRun(key, min(seconds, limit), timed_out=seconds > limit))
        blind.observe(ObservedRun(key, min(seconds, limit)))
    new = STEP._replace(task="new")
    assert knowing.predict(new).log_mean == pytest.approx(2.0, abs=0.15)
    assert knowing.predict(new).log_mean > blind.predict(new).log_mean + 0.15


def test_a_run_cut_off_at_once_says_nothing() -> None:
    predictors = learned(STEP, [10.0] * 5)
    before = predictors.predict(STEP)
    predictors.observe(ObservedRun(STEP, 0.001, failed=True))
    assert predictors.predict(STEP).log_mean == pytest.approx(before.log_mean, abs=0.01)


def test_the_mean_is_bounded_by_the_timeout_and_always_by_the_longest() -> None:
    predictors = learned(STEP, [0.1, 1000.0, 0.1, 3000.0, 50.0, 2000.0])
    assert predictors.predict(STEP, timeout_s=60.0).duration_s <= 60.0
    assert predictors.predict(STEP).duration_s <= LONGEST_S
    assert predictors.predict(STEP, timeout_s=60.0).log_mean == predictors.predict(STEP).log_mean


def test_a_hint_is_believed_while_nothing_else_is_known() -> None:
    predictors = Predictors()
    assert math.exp(predictors.predict(REWARD, 100.0).log_mean) > 50.0
    learned(REWARD, [10.0] * 30, predictors)
    assert math.exp(predictors.predict(REWARD, 100.0).log_mean) < 40.0


@pytest.mark.parametrize("truth", [0.3, 0.9])
def test_the_amdahl_fraction_is_learned_from_siblings_of_different_widths(truth: float) -> None:
    draw = random.Random(11)
    predictors = Predictors()
    for group in range(150):
        alone = math.exp(draw.gauss(3.0, 1.0))
        for _ in range(8):
            units = draw.choice([1, 2, 4, 8, 16])
            seconds = alone * ((1 - truth) + truth / units) * math.exp(draw.gauss(0.0, 0.3))
            predictors.observe(ObservedRun(REWARD._replace(task=f"g{group}"), seconds, units, amdahl_hint=0.6))
    assert predictors.predict(REWARD, amdahl_hint=0.6).amdahl_fraction == pytest.approx(truth, abs=0.07)
    assert math.exp(predictors.predict(REWARD._replace(task="new")).log_mean) == pytest.approx(math.exp(3.0), rel=0.4)


def test_wide_runs_of_large_tasks_say_nothing_of_the_speed_up() -> None:
    """A planner that widens what is large must not learn from it that width makes things slow."""
    predictors = Predictors()
    for group in range(100):
        seconds, units = (100.0, 8) if group % 2 else (5.0, 1)
        for _ in range(4):
            predictors.observe(ObservedRun(REWARD._replace(task=f"g{group}"), seconds, units, amdahl_hint=0.9))
    assert predictors.predict(REWARD, amdahl_hint=0.9).amdahl_fraction == pytest.approx(0.9, abs=0.01)


def test_use_is_brought_to_one_core() -> None:
    predictors = Predictors()
    for _ in range(50):
        predictors.observe(ObservedRun(REWARD, 10.0, 4, cpu_s=0.8 * 40.0, amdahl_hint=0.99))
    assert predictors.predict(REWARD, amdahl_hint=0.99).use == pytest.approx(0.8, abs=0.1)


def test_the_predicted_peak_is_rarely_exceeded() -> None:
    predictors = Predictors()
    exceeded = []
    for run in SyntheticCommands(tasks=50).runs():
        exceeded.append(run.peak_memory_mb > predictors.predict(run.key).peak_memory_mb)
        predictors.observe(run)
    assert statistics.fmean(exceeded) == pytest.approx(0.05, abs=0.03)


def test_runs_that_nobody_measured_leave_use_and_memory_alone() -> None:
    predictors = learned(STEP, [1.0] * 10)
    before = predictors.predict(STEP)
    predictors.observe(ObservedRun(STEP, 1.0))
    after = predictors.predict(STEP)
    assert (after.use, after.peak_memory_mb) == (before.use, before.peak_memory_mb)


def test_tasks_are_bounded_and_the_oldest_falls_back_to_its_label() -> None:
    predictors = Predictors(max_tasks=10)
    learned(STEP._replace(task="first"), [100.0] * 3, predictors)
    for task in range(30):
        learned(STEP._replace(task=f"t{task}"), [1.0], predictors)
    assert len(predictors.nodes.tasks) == 10
    first, other = STEP._replace(task="first"), STEP._replace(task="never")
    assert predictors.predict(first) == predictors.predict(other)


@pytest.mark.parametrize(
    ("field", "value"),
    [("execution_s", math.nan), ("cpu_s", -1.0), ("peak_memory_mb", math.inf), ("hint_s", -0.5), ("units", 0.5)],
)
def test_odd_numbers_are_refused_by_name(field: str, value: float) -> None:
    values: dict[str, Any] = {"execution_s": 1.0, field: value}
    with pytest.raises(ValueError, match=field):
        Predictors().observe(ObservedRun(STEP, **values))


def test_what_was_learned_survives_saving() -> None:
    predictors = Predictors()
    keys = set()
    for run in SyntheticCommands(tasks=8).runs():
        predictors.observe(run)
        keys.add(run.key)
    again = Predictors()
    assert again.restore(saved_nodes(predictors)) == 0
    assert {key: again.predict(key) for key in keys} == {key: predictors.predict(key) for key in keys}


def test_changes_are_taken_once_and_are_enough_to_continue() -> None:
    predictors = Predictors(max_tasks=5)
    nodes: dict[Path, list[float]] = {}
    for index, run in enumerate(SyntheticCommands(tasks=9).runs()):
        predictors.observe(run)
        if index % 100 == 0:
            while any(changes := predictors.take_changes(7)):
                assert len(changes.saved) + len(changes.removed) <= 7
                nodes.update(changes.saved)
                for path in changes.removed:
                    nodes.pop(path, None)
    while any(changes := predictors.take_changes(1000)):
        nodes.update(changes.saved)
        for path in changes.removed:
            nodes.pop(path, None)
    again = Predictors()
    assert again.restore(starmap(SavedNode, nodes.items())) == 0
    kept = [run.key for run in SyntheticCommands(tasks=9).runs() if predictors.predict(run.key).observations]
    predictions: dict[PredictionKey, Prediction] = {key: predictors.predict(key) for key in kept}
    assert (len(predictions), predictions) == (5, {key: again.predict(key) for key in kept})


def test_saved_nodes_of_another_version_are_left_out() -> None:
    predictors = learned(STEP, [1.0])
    saved = saved_nodes(predictors)
    saved[0].numbers.append(1.0)
    assert len(saved) == 4
    assert Predictors().restore(saved) == 1


def test_a_path_that_names_no_node_is_left_out() -> None:
    numbers = saved_nodes(learned(STEP, [1.0]))[0].numbers
    kind = int(ActionKind.ENV_STEP)
    names = [(77,), (kind, None, "job"), (kind, None, None, "task"), (kind, "label", None, "task")]
    paths = list(starmap(Path, names))
    assert Predictors().restore(SavedNode(path, numbers) for path in paths) == len(paths)
