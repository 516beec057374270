"""Calibration: fitting, the table, the barrier policy; and the cheap experiments as a whole."""

from __future__ import annotations

import json

import pytest
from callsheet.benchmarks.runner import render
from callsheet.benchmarks.simulator.calibration.gpu_mix import H20, H800, engine_of, scenario_of
from callsheet.benchmarks.simulator.calibration.rollart import LOCKSTEP
from callsheet.benchmarks.simulator.calibration.table import (
    CalibrationTable,
    Experiment,
    FittedParameter,
    bisect,
    fitted_row,
    row,
)
from callsheet.benchmarks.simulator.policies.callsheet import CALLSHEET
from callsheet.benchmarks.simulator.policies.os_sharing import OS_SHARING
from callsheet.benchmarks.simulator.scenario import (
    Cluster,
    CpuNodes,
    Generation,
    Mode,
    Rollout,
    Scenario,
    ScenarioJob,
    Turn,
    Work,
)
from callsheet.benchmarks.simulator.simulation import simulate
from callsheet.scheduler.core.words.model import ActionKind
from rich.console import Console


def test_bisect_finds_values_of_rising_and_falling_figures() -> None:
    assert bisect(lambda value: value * value, 9.0, 0.0, 10.0, steps=30) == pytest.approx(3.0)
    assert bisect(lambda value: 1.0 / value, 0.25, 1.0, 10.0, steps=30) == pytest.approx(4.0)


def test_bisect_stays_at_the_nearer_end_where_the_target_is_out_of_reach() -> None:
    assert bisect(lambda value: value, 20.0, 0.0, 10.0) == 10.0
    assert bisect(lambda value: value, -5.0, 0.0, 10.0) == 0.0


def _step(seconds: float) -> Turn:
    return Turn(Generation(1.0), (Work(ActionKind.ENV_STEP, "step", cpu_s=0.01 * seconds, use=0.01),))


def _scenario(*steps: tuple[float, ...]) -> Scenario:
    rollouts = tuple(
        Rollout(
            name=str(number),
            job="job",
            group=str(number),
            task="task",
            image="",
            memory_mb=0,
            arrives=0.0,
            reset=None,
            turns=tuple(_step(seconds) for seconds in of_one),
            rewards=(),
        )
        for number, of_one in enumerate(steps)
    )
    cluster = Cluster(cpu=(CpuNodes(1, 8),))
    return Scenario("test", Mode.ONESHOT, 1, cluster, (ScenarioJob("job"),), rollouts, len(rollouts))


def test_lockstep_waits_for_the_slowest_environment_of_every_turn() -> None:
    scenario = _scenario((1.0, 5.0), (4.0, 2.0))
    assert simulate(scenario, OS_SHARING).step_s == pytest.approx(8.0)
    assert simulate(scenario, LOCKSTEP).step_s == pytest.approx(2.0 * 1.0 + 4.0 + 5.0)


def test_lockstep_goes_on_without_trajectories_that_ended() -> None:
    scenario = _scenario((1.0,), (1.0, 1.0, 1.0))
    assert simulate(scenario, LOCKSTEP).step_s == pytest.approx(6.0)


def test_the_rates_of_gpus_follow_from_their_published_figures() -> None:
    compute, bandwidth = engine_of(H800, 1), engine_of(H20, 1)
    assert compute.prefill_tokens_per_s / bandwidth.prefill_tokens_per_s == pytest.approx(989.5 / 148)
    assert compute.step_s / bandwidth.step_s == pytest.approx(4.0 / 3.35)
    assert bandwidth.kv_tokens > compute.kv_tokens


def test_callsheet_uses_two_classes_of_gpus_for_what_each_is_good_at() -> None:
    scenario = scenario_of(((H800, 2), (H20, 3)), ("frozenlake", "gem-math"), 100.0, 120.0)
    ours, spread = (simulate(scenario, policy).trajectories_per_hour for policy in (CALLSHEET, OS_SHARING))
    assert ours > spread


def _table() -> CalibrationTable:
    rows = (
        fitted_row("fitted, s", 2.0, 2.1),
        row("hit", 10.0, 12.0),
        row("within a range", (1.0, 2.0), 1.5),
        row("miss", 10.0, 13.0, "because"),
    )
    fitted = (FittedParameter("speed", 3.0, "m/s", "figure"),)
    return CalibrationTable((Experiment("experiment", "source", "assumptions", fitted, rows),))


def test_hits_count_only_what_was_predicted() -> None:
    table = _table()
    assert (table.predicted, table.hits) == (3, 2)
    assert table.experiments[0].rows[0].fitted


def test_table_as_json_has_every_figure() -> None:
    written = json.loads(json.dumps(_table().as_json()))
    (experiment,) = written["experiments"]
    assert experiment["fitted_parameters"] == [{"name": "speed", "value": 3.0, "unit": "m/s", "fitted_to": "figure"}]
    assert experiment["figures"][2]["published"] == [1.0, 2.0]
    assert experiment["figures"][3] == {
        "figure": "miss",
        "published": 10.0,
        "simulated": 13.0,
        "role": "predicted",
        "hit": False,
        "remark": "because",
    }


def test_table_for_people_names_fitted_parameters_and_misses() -> None:
    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(render(_table()))
    text = captured.get()
    assert "speed = 3 m/s to the figure" in text
    assert "because" in text
    assert "2 of 3 predicted figures" in text
