"""Whatever is observed, predictions are usable, deterministic and survive saving."""

from __future__ import annotations

import json
import math

from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.planner.predictors import ObservedRun, PredictionKey, Predictors
from callsheet.scheduler.planner.predictors.log_normal import expected_remaining
from callsheet.scheduler.planner.predictors.nodes import Path, SavedNode
from hypothesis import given
from hypothesis import strategies as st

from tests.support.synthetic_commands import saved_nodes

keys = st.builds(
    PredictionKey,
    job=st.sampled_from(["a", "b"]),
    kind=st.sampled_from(list(ActionKind)),
    label=st.sampled_from(["", "test", "git"]),
    task=st.sampled_from(["", "x", "y", "z"]),
)
amounts = st.one_of(st.just(0.0), st.floats(1e-9, 1e12))
observations = st.builds(
    ObservedRun,
    key=keys,
    execution_s=amounts,
    units=st.one_of(st.just(1.0), st.floats(1.0, 4096.0)),
    cpu_s=amounts,
    peak_memory_mb=amounts,
    failed=st.booleans(),
    timed_out=st.booleans(),
    hint_s=amounts,
    amdahl_hint=st.floats(0.0, 1.0),
)


def fed(runs: list[ObservedRun]) -> Predictors:
    predictors = Predictors(max_tasks=4, max_labels=4)
    for run in runs:
        predictors.observe(run)
    return predictors


@given(st.lists(observations, max_size=40), keys, amounts, st.floats(0.1, 1e5), amounts)
def test_every_prediction_is_usable(
    runs: list[ObservedRun], key: PredictionKey, hint_s: float, timeout_s: float, attained_s: float
) -> None:
    prediction = fed(runs).predict(key, hint_s, timeout_s=timeout_s)
    assert all(map(math.isfinite, prediction))
    assert 0.0 < prediction.duration_s <= timeout_s
    assert prediction.log_sd > 0.0
    assert prediction.use >= 0.0
    assert prediction.peak_memory_mb > 0.0
    assert 0.0 <= prediction.amdahl_fraction < 1.0
    assert 0.0 <= expected_remaining(prediction, attained_s, timeout_s) <= timeout_s


@given(st.lists(observations, max_size=40), keys)
def test_the_same_runs_yield_the_same_predictions_also_through_json(
    runs: list[ObservedRun], key: PredictionKey
) -> None:
    predictors = fed(runs)
    assert predictors.predict(key) == fed(runs).predict(key)
    again = Predictors()
    rows = json.loads(json.dumps(saved_nodes(predictors)))
    assert again.restore(SavedNode(Path(*path), numbers) for path, numbers in rows) == 0
    assert again.predict(key) == predictors.predict(key)


@given(st.lists(observations, max_size=60))
def test_the_number_of_nodes_is_bounded(runs: list[ObservedRun]) -> None:
    nodes = fed(runs).nodes
    assert len(nodes.tasks) <= 4
    assert len(nodes.labels) <= 2 * 4 + len(ActionKind)
    assert nodes.changed.isdisjoint(nodes.removed)
