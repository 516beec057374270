"""Means over seeds, ratios by pairs of seeds, and what ranges say of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from callsheet.benchmarks.measuring.statistics import significant
from callsheet.benchmarks.simulator.best_case import load_of
from callsheet.benchmarks.simulator.comparison.figures import (
    Figures,
    JobFigures,
    PolicyResult,
    SeedResult,
    paired_ratio,
)
from callsheet.benchmarks.simulator.comparison.report import (
    DIRECTORY,
    FigureRange,
    RangeFile,
    check,
    load_ranges,
)
from callsheet.benchmarks.simulator.comparison.settings import ScenarioSource
from callsheet.benchmarks.simulator.policies import POLICIES
from callsheet.benchmarks.simulator.scenario import Mode, Work
from callsheet.benchmarks.simulator.validation import InputError
from callsheet.scheduler.core.words.model import ActionKind

from tests.support.simulated import one_node, trajectory

FIGURES = Figures(
    act_mean_s=1.0,
    act_p50_s=0.5,
    act_p99_s=9.0,
    act_p999_s=20.0,
    wait_max_s=8.0,
    start_wait_mean_s=0.0,
    act_with_start_mean_s=1.0,
    step_s=100.0,
    trajectories_per_hour=None,
    held=0.5,
    used=0.4,
    gpu_held=None,
    gpu_used=None,
    actions=10,
)


def _result(name: str, *means: float) -> PolicyResult:
    runs = (
        SeedResult(
            seed,
            replace(FIGURES, act_mean_s=mean, wait_max_s=mean),
            {"job": JobFigures(seed, mean, mean, None)},
            {"env_step": JobFigures(seed, mean, mean, None)},
            0.1,
        )
        for seed, mean in enumerate(means, 1)
    )
    return PolicyResult(name, tuple(runs))


def test_means_are_over_seeds_and_the_longest_wait_is_the_longest() -> None:
    figures = _result("callsheet", 1.0, 2.0, 6.0).mean()
    assert (figures.act_mean_s, figures.wait_max_s, figures.step_s) == (3.0, 6.0, 100.0)
    assert (figures.trajectories_per_hour, figures.actions) == (None, 10)


def test_jobs_have_means_over_the_seeds_that_have_figures_of_them() -> None:
    assert _result("callsheet", 1.0, 2.0, 6.0).jobs() == {"job": JobFigures(2, 3.0, 3.0, None)}


def test_ratios_are_taken_seed_by_seed() -> None:
    ratio = paired_ratio(_result("a", 2.0, 9.0), _result("b", 1.0, 3.0), "act_mean_s")
    assert ratio is not None
    assert (ratio.least, ratio.mean, ratio.greatest) == (2.0, 2.5, 3.0)


def test_there_is_no_ratio_over_what_does_not_exist() -> None:
    one = _result("a", 1.0)
    assert [paired_ratio(one, one, name) for name in ("trajectories_per_hour", "start_wait_mean_s")] == [None, None]


def test_only_the_span_of_the_mode_is_reported() -> None:
    report = FIGURES.as_json("step_s")
    assert (report["step_s"], "trajectories_per_hour" in report) == (100.0, False)


@pytest.mark.parametrize(("value", "rounded"), [(1.23456789, 1.23457), (12, 12), (None, None), (0.0, 0.0)])
def test_numbers_are_rounded_to_significant_digits(value: float | None, rounded: float | None) -> None:
    assert significant(value) == rounded


def test_a_scenario_is_drawn_once_for_all_policies_that_meet_it_in_turn() -> None:
    first = ScenarioSource("math", Mode.ONESHOT, trajectories=8).scenario(1)
    assert ScenarioSource("math", Mode.ONESHOT, trajectories=8).scenario(1) is first
    assert ScenarioSource("math", Mode.ONESHOT, trajectories=8).scenario(2) != first
    assert ScenarioSource("math", Mode.ONESHOT, trajectories=9).scenario(2).live == 9


REPORT = {
    "policies": {"callsheet": {"act_mean_s": 1.0}, "os_sharing": {"act_mean_s": 2.0}, "static_services": None},
}


@pytest.mark.parametrize(
    ("expected", "value", "met"),
    [
        (FigureRange("callsheet", "act_mean_s", "", 0.5, 1.5), 1.0, True),
        (FigureRange("callsheet", "act_mean_s", "", 1.1, None), 1.0, False),
        (FigureRange("callsheet", "act_mean_s", "os_sharing", None, 0.5), 0.5, True),
        (FigureRange("static_services", "act_mean_s", "", None, 9.0), None, False),
        (FigureRange("callsheet", "act_mean_s", "static_services", None, 9.0), None, False),
    ],
)
def test_a_figure_lies_within_its_range_or_not(expected: FigureRange, value: float | None, met: bool) -> None:
    (bar,) = check(RangeFile("x", {}, (expected,)), REPORT)
    assert (bar.value, bar.met) == (value, met)


def test_a_report_of_other_arguments_is_not_compared() -> None:
    expected = FigureRange("callsheet", "act_mean_s", "", 0.5, 1.5)
    same = RangeFile("x.toml", {"seeds": [1, 2]}, (expected,))
    assert [bar.met for bar in check(same, {**REPORT, "seeds": [1, 2]})] == [True]
    with pytest.raises(ValueError, match=r"x\.toml: arguments\.seeds is \[1, 2\], the report has \[1\]"):
        list(check(same, {**REPORT, "seeds": [1]}))


@pytest.mark.parametrize("name", sorted(path.stem for path in DIRECTORY.glob("*.toml")))
def test_files_that_come_along_name_policies_and_figures_that_there_are(name: str) -> None:
    found = load_ranges(name)
    assert {"workload", "mode", "trajectories", "seeds"} <= set(found.arguments)
    assert found.ranges
    for each in found.ranges:
        assert {each.policy, each.over or each.policy} <= POLICIES.keys()
        assert each.figure in {"act_mean_s", "act_p99_s", "act_p999_s", "wait_max_s", "step_s", "trajectories_per_hour"}


def test_a_range_file_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a file, or one of coding, "):
        load_ranges(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[", "x.toml: '...': must be TOML: "),
        ("other = 1", "x.toml.other: 1: Unexpected keyword argument"),
        ('[[range]]\npolicy = "callsheet"\nat_most = 1', "x.toml.range[0].figure: None: Field required"),
        ('[[range]]\npolicy = "a"\nfigure = "b"', "must have at_least or at_most"),
        ('[[range]]\npolicy = "a"\nfigure = "b"\nat_most = "x"', "x.toml.range[0].at_most: 'x': Input should be a"),
        ('[[range]]\npolicy = "a"\nfigure = "b"\nbelow = 1', "x.toml.range[0].below: 1: Unexpected keyword"),
    ],
)
def test_a_bad_range_file_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        load_ranges(str(path))
    assert says in str(refused.value)


def test_time_that_actions_wait_for_io_lowers_the_load() -> None:
    half_idle = Work(ActionKind.ENV_STEP, "step", cpu_s=2.0, use=0.5)
    rollout = replace(trajectory("t", (half_idle,), generation_s=6.0), reset=None)
    load = load_of(one_node([rollout] * 10, 2))
    assert (load.work_s, load.action_s, load.between_s) == (2.0, 4.0, 6.0)
    assert load.rho == pytest.approx(10 * 2.0 / ((4.0 + 6.0) * 2))
