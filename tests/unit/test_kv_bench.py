"""The parts of the benchmark of KV admission that decide: what is drawn, what was computed anew, and the bars."""

from __future__ import annotations

import json
from io import StringIO
from itertools import islice, pairwise

import pytest
from callsheet.benchmarks.kv.load import LoadTally, MeasuredTurn
from callsheet.benchmarks.kv.render import render
from callsheet.benchmarks.kv.report import DemandFigures, KvBenchReport, PolicyFigures, figures_of
from callsheet.benchmarks.kv.settings import KvBenchSettings
from callsheet.benchmarks.kv.trajectories import trajectories_of
from rich.console import Console

SETTINGS = KvBenchSettings()


def turn(*, known: int = 0, cached: int = 0, act_s: float = 1.0, last: bool = False) -> MeasuredTurn:
    return MeasuredTurn(1000, known, cached, 24, act_s, last)


def figures(turns: int, recomputed: int) -> PolicyFigures:
    return figures_of(LoadTally([turn(known=recomputed)] * turns, 60.0, engine_cpu_s=30.0))


def test_equal_seeds_and_places_draw_equal_trajectories() -> None:
    drawn = [list(islice(trajectories_of(SETTINGS, place), 20)) for place in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(each.turns) == SETTINGS.turns - 1 for each in drawn[0][1:])


def test_no_trajectory_grows_beyond_what_is_told() -> None:
    for place in range(20):
        for drawn in islice(trajectories_of(SETTINGS, place), 10):
            grown = sum(len(each.observed) + SETTINGS.tokens for each in drawn.turns) + SETTINGS.tokens
            assert len(drawn.prompt) + grown <= SETTINGS.longest_context


def test_the_mean_context_is_that_of_what_is_drawn() -> None:
    ends = []
    for place in range(40):
        for drawn in islice(trajectories_of(SETTINGS, place), 1, 10):
            context = len(drawn.prompt) + SETTINGS.tokens
            ends.append(context)
            for each in drawn.turns:
                context += len(each.observed) + SETTINGS.tokens
                ends.append(context)
    assert sum(ends) / len(ends) == pytest.approx(SETTINGS.mean_context, rel=0.03)


def test_more_demand_has_more_trajectories() -> None:
    live = [SETTINGS.live(demand, 8192) for demand in (0.01, 0.5, 1.0, 2.0, 3.0)]
    assert live[0] == 1
    assert all(fewer < more for fewer, more in pairwise(live))


@pytest.mark.parametrize(("known", "cached", "anew"), [(0, 0, 0), (900, 900, 0), (900, 0, 900), (900, 990, 0)])
def test_what_the_trajectory_had_computed_before_counts_as_computed_anew(known: int, cached: int, anew: int) -> None:
    assert turn(known=known, cached=cached).recomputed_tokens == anew


def test_figures_are_those_of_all_runs_together() -> None:
    turns = [turn(known=900, cached=300, act_s=1.0), turn(act_s=3.0, last=True)]
    told = figures_of(LoadTally(turns, 30.0, engine_cpu_s=4.0))
    assert (told.turns, told.turns_per_min, told.trajectories_per_min, told.decoded_per_min) == (2, 4.0, 2.0, 96.0)
    assert (told.recomputed_per_turn, told.act_mean_s, told.act_longest_s) == (300.0, 2.0, 3.0)
    assert told.turns_per_cpu_s == 0.5
    assert figures_of(LoadTally()).turns == 0


@pytest.mark.parametrize(
    ("demand", "callsheet", "missed"),
    [
        (0.75, (98, 0), []),
        (0.75, (97, 0), ["0.97 of plain's throughput"]),
        (2.0, (100, 400), []),
        (2.0, (99, 0), ["0.99 of plain's throughput"]),
        (2.0, (150, 401), ["401 recomputed tokens a turn, above 400"]),
    ],
)
def test_a_missed_bar_is_told(demand: float, callsheet: tuple[int, int], missed: list[str]) -> None:
    plain = {0: figures(100, 800), 4: figures(90, 700)}
    point = DemandFigures(demand, 14, figures(*callsheet), plain)
    assert point.best_bound == 0
    assert len(point.findings) == len(missed)
    assert all(part in found for part, found in zip(missed, point.findings, strict=True))


def test_a_failure_is_told_and_all_of_it_is_rendered() -> None:
    point = DemandFigures(0.75, 5, figures(100, 0), {0: figures(100, 0)}, ("run-1-0-0: engine_failed",))
    report = KvBenchReport("sglang", 8192, 2048, 1.5, (point,))
    assert report.findings == ["demand 0.75: run-1-0-0: engine_failed"]
    shown = StringIO()
    console = Console(width=200, file=shown)
    console.print(render(report))
    assert "engine_failed" in shown.getvalue()
    assert json.loads(json.dumps(report.as_json()))["demands"][0]["ratio_by_engine_cpu"] == 1.0


@pytest.mark.parametrize(
    ("rule", "given"),
    [
        ("--url or --server", {"engine": "sglang"}),
        ("embedded engine neither", {"urls": ("http://host:1",)}),
        ("with --url", {"engine": "sglang", "urls": ("http://host:1",), "server": "serve {port}"}),
        ("one engine", {"engine": "sglang", "urls": ("http://host:1", "http://host:2")}),
        ("demands", {"demands": (0.0,)}),
        ("bounds", {"bounds": ()}),
        ("turns", {"turns": 1}),
    ],
)
def test_options_that_cannot_be_are_named(rule: str, given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=rule):
        KvBenchSettings(**given)  # type: ignore[arg-type]
