"""The dispatch benchmark's arithmetic and its report."""

from __future__ import annotations

import io
import json
import math

import pytest
from callsheet.benchmarks.dispatch.report import (
    Beside,
    CallsheetFigures,
    DispatchReport,
    LoopFigures,
    RawFigures,
    RayFigures,
)
from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.benchmarks.measuring.statistics import percentile, ratio
from callsheet.benchmarks.runner import render
from rich.console import Console


@pytest.mark.parametrize(("percent", "expected"), [(0, 1.0), (50, 2.5), (75, 3.25), (99, 3.97), (100, 4.0)])
def test_percentiles_are_linear_between_neighbours(percent: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == pytest.approx(expected)


def test_a_ratio_to_nothing_is_infinite() -> None:
    assert ratio(1.0, 0.0) == math.inf


_CPU = {"client": 20.0, "scheduler": 30.0, "manager": 10.0}


def _report(refused: int = 0) -> DispatchReport:
    comparison = Beside(
        callsheet=CallsheetFigures(20_000.0, 2000, 20_000, 90, _CPU, 900.0, 2000.0, 900, 10_000, refused, 1.0),
        raw=RawFigures(500.0, 800.0),
        ray=RayFigures(2_000.0, 4_000.0, 1000, 1000, "2.0"),
        repetitions=3,
        journal={"filesystem": "ext4", "fsync_p50_us": 500.0},
    )
    loop = LoopFigures(
        loop="open",
        size=800,
        actions=7_990,
        actions_per_s=799.0,
        p50_ms=3.0,
        p99_ms=math.nan,
        overhead_p99_ms=9.0,
        cpu_ms={**_CPU, "rest": 5.0},
        cores={**_CPU, "rest": 0.0},
        messages=4.25,
        wake_ups=_CPU,
        system_calls=_CPU,
        left_out=0,
        load_1m=0.5,
    )
    return DispatchReport("noop", 200, [loop], comparison, "all", describe_machine(), seed=7, wall_s=100.0)


def test_nothing_may_be_refused() -> None:
    assert [bar.met for bar in _report().bars] == [True]
    assert [str(bar) for bar in _report(refused=1).bars if not bar.met] == [
        "refused in the burst: 1, must be at most 0"
    ]


def test_the_json_object_has_the_promised_keys() -> None:
    found = json.loads(json.dumps(_report().as_json(), allow_nan=False))
    assert (found["actions_per_s"], found["ratio_ray_tasks"]) == (20_000, 10)
    promised = {
        "ray_tasks_per_s",
        "ray_actor_calls_per_s",
        "idle_p50_us",
        "raw_two_hops_p50_us",
        "burst_refused",
        "seed",
        "machine",
    }
    assert promised <= set(found)
    assert found["machine"]["cores"] >= 1
    (loop,) = found["loops"]
    assert (loop["loop"], loop["size"], loop["cpu_ms"]["rest"], loop["p99_ms"]) == ("open", 800, 5.0, None)
    assert f"{found['machine']['cores']} cores" in loop["machine"]


def test_the_tables_name_figures_ratios_and_bars() -> None:
    text = io.StringIO()
    Console(width=160, file=text).print(render(_report()))
    figures = ("800 a second", "all", "4.2", "65.00", "20,000 actions/s", "Ray async actor calls", "10.00")
    assert [each for each in (*figures, "refused in the burst", "met") if each not in text.getvalue()] == []
