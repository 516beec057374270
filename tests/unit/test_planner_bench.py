"""The planner benchmark, small: what it reports, and how it refuses sizes that make no sense."""

from __future__ import annotations

import json

import pytest
from callsheet.benchmarks.planner.report import PlannerBenchReport
from callsheet.benchmarks.planner.run import run_planner_bench
from callsheet.benchmarks.planner.settings import PlannerBenchSettings
from callsheet.cli.app import app
from typer.testing import CliRunner


def small() -> PlannerBenchSettings:
    """Two lengths of the queue on a few nodes."""
    return PlannerBenchSettings(
        queued=(40, 200), nodes=24, pools=8, classes=12, rounds=4, warm_up=1, ends=16, solver_s=0.05, seed=3
    )


def test_every_length_has_its_figures() -> None:
    lines: list[str] = []
    report: PlannerBenchReport = run_planner_bench(small(), lines.append)
    results = report.as_json()
    assert [each["queued"] for each in results] == [40, 200]
    for each in results:
        assert (each["nodes"], each["pools"]) == (24, 8)
        assert 1 <= each["classes"] <= 12
        assert 0.0 < each["round_p50_ms"] <= each["round_p99_ms"]
        assert 0.0 < each["round_cpu_p50_ms"] <= each["round_cpu_p99_ms"]
        assert 0.0 <= each["gap"] < 0.05
        assert 0.0 < each["starts_per_round"] <= 16
    assert len(lines) == 4


def test_the_command_prints_a_list() -> None:
    sizes = ["--queued", "30", "--nodes", "16", "--classes", "6", "--rounds", "2", "--json"]
    result = CliRunner().invoke(app, ["bench", "planner", *sizes])
    assert result.exit_code == 0, result.output
    assert [each["queued"] for each in json.loads(result.stdout)] == [30]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--queued", "many"], "queued"),
        (["--queued", "10", "--classes", "50"], "queued"),
        (["--nodes", "2", "--pools", "4"], "pools"),
    ],
)
def test_sizes_that_make_no_sense_are_refused_by_name(options: list[str], names: str) -> None:
    result = CliRunner().invoke(app, ["bench", "planner", *options])
    assert result.exit_code == 2
    assert names in result.output
