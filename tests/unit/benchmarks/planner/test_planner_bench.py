"""The planner benchmark, small: what it reports, and how it refuses sizes that make no sense."""

from __future__ import annotations

import gc
import json

import pytest
from callsheet.benchmarks.planner.run import PlannerBenchReport, QueueResult, fleet_events, run_planner_bench
from callsheet.benchmarks.planner.settings import PlannerBenchSettings
from callsheet.cli.app import app
from callsheet.scheduler.core.machine import handle
from callsheet.scheduler.core.state.scheduler_state import CoreSettings, SchedulerState
from callsheet.scheduler.planner.fleet.placed import PlacedActions
from callsheet.scheduler.planner.fleet.pools import Fleet
from typer.testing import CliRunner


def small() -> PlannerBenchSettings:
    """Two lengths of the queue on a few nodes, and more time than a solver takes on a busy machine."""
    return PlannerBenchSettings(
        queued=(40, 200), nodes=24, pools=8, classes=12, rounds=4, warm_up=1, ends=16, solver_s=20.0, seed=3
    )


def test_every_length_has_its_figures() -> None:
    lines: list[str] = []
    collector = gc.get_threshold()
    report: PlannerBenchReport = run_planner_bench(small(), lines.append)
    assert gc.get_threshold() == collector
    results = report.as_json()
    assert [each["queued"] for each in results] == [40, 200]
    for each in results:
        assert 0.0 < each["round_p50_ms"] <= each["round_p99_ms"]
        assert 0.0 < each["round_cpu_p50_ms"] <= each["round_cpu_p99_ms"]
        assert 0.0 <= each["gap"] < 0.05
        assert 0.0 < each["starts_per_round"] <= 16
    assert len(lines) == 4


def test_long_queues_and_slow_rounds_are_held_to_ratios() -> None:
    def result(queued: int, p50_ms: float, p99_ms: float) -> QueueResult:
        return QueueResult(queued, 24, 8, 12, 9.0, 90.0, p50_ms, p99_ms, 0.0, 16.0)

    results = (result(1_000, 8.0, 17.0), result(10_000, 10.0, 15.0), result(1_000_000, 11.5, 20.0))
    missed = [str(bar) for bar in PlannerBenchReport(0, 0.008, 4, results).bars if not bar.met]
    assert missed == [
        "1,000 queued: p99 by p50: 2.125, must be at most 2",
        "p50: 1,000,000 queued by 10,000: 1.15, must be at most 1.1",
    ]


@pytest.mark.parametrize("seed", range(3))
def test_rounds_have_the_sizes_that_were_asked_for(seed: int) -> None:
    odd = PlannerBenchSettings(
        queued=(7, 53), nodes=19, pools=7, classes=7, rounds=12, warm_up=0, ends=5, solver_s=0.05, seed=seed
    )
    report = run_planner_bench(odd, lambda _: None)
    sizes = [(each.queued, each.nodes, each.pools, each.classes) for each in report.results]
    assert sizes == [(7, 19, 7, 7), (53, 19, 7, 7)]


@pytest.mark.parametrize(("nodes", "pools"), [(8, 8), (19, 7), (5, 1)])
def test_the_fleet_has_as_many_pools_as_were_asked_for(nodes: int, pools: int) -> None:
    state = SchedulerState(1, lambda facts: b"", CoreSettings(manager_lease=1e12))
    handle(state, list(fleet_events(nodes, pools)), 1.0)
    fleet = Fleet()
    fleet.refresh(state, PlacedActions(), lambda _: 1.0)
    assert len(state.nodes) == sum(len(pool.nodes) for pool in fleet.pools) == nodes
    assert len(fleet.pools) == pools


def test_the_command_prints_a_list() -> None:
    sizes = ["--queued", "30", "--nodes", "16", "--classes", "6", "--rounds", "2", "--json"]
    result = CliRunner().invoke(app, ["bench", "planner", *sizes])
    assert result.exit_code in (0, 1), result.output  # by how long the slowest of two rounds took
    assert [each["queued"] for each in json.loads(result.stdout)] == [30]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--queued", "many"], "queued"),
        (["--queued", "10", "--classes", "50"], "queued"),
        (["--queued", "10000001"], "queued"),
        (["--nodes", "2", "--pools", "4"], "pools"),
    ],
)
def test_sizes_that_make_no_sense_are_refused_by_name(options: list[str], names: str) -> None:
    result = CliRunner().invoke(app, ["bench", "planner", *options])
    assert (result.exit_code, names in result.output) == (2, True)
