"""Bounds worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from callsheet.benchmarks.simulator.best_case import action_s
from callsheet.benchmarks.simulator.bounds import bounds_of, least
from callsheet.benchmarks.simulator.measurements import ActFigures, act_figures
from callsheet.benchmarks.simulator.scenario import (
    Cluster,
    CpuNodes,
    Generation,
    GpuNodes,
    Model,
    Quota,
    Turn,
    Work,
)
from callsheet.scheduler.core.words.model import ActionKind

from tests.support.simulated import one_node, step, sustained, trajectory

SUITE = Work(ActionKind.REWARD, "suite", cpu_s=8.0, parallel_fraction=0.5, max_width=4, use=0.5)


def test_an_action_is_bounded_by_its_best_width_its_attempts_and_its_timeout() -> None:
    works = (replace(step(3.0), fails=1), step(9.0, timeout_s=4.0))
    # 3 s twice; cut off after 4 s; 8 / 0.5 s at a speed-up of 1 / (0.5 + 0.5 / 4).
    assert list(map(action_s, (*works, SUITE))) == pytest.approx([6.0, 4.0, 10.0])
    bounds = bounds_of(one_node([trajectory("t", works, rewards=(SUITE,))], 1))
    assert bounds.longest_trajectory_s == pytest.approx(0.5 + 1.0 + 6.0 + 1.0 + 4.0 + 10.0)
    # On its core: 0.5, 3 twice, 4 up to the timeout, 8.
    assert bounds.work_s == pytest.approx(0.5 + 6.0 + 4.0 + 8.0)
    assert bounds.step_s == pytest.approx(22.5)
    assert bounds.trajectories_per_hour is None


def test_a_narrow_action_may_be_cut_off_sooner_than_a_wide_one_is_done() -> None:
    suite = replace(SUITE, fails=1, timeout_s=12.0)
    # Two attempts of 10 s at its best width; but of the 16 s at one core the first is cut off for good.
    assert action_s(suite) == 12.0
    # Over with half of 12 CPU seconds.
    assert bounds_of(one_node([trajectory("t", (), rewards=(suite,))], 1)).work_s == pytest.approx(0.5 + 6.0)
    assert action_s(replace(suite, timeout_s=16.0)) == pytest.approx(20.0)


def test_a_step_is_bounded_by_the_work_where_that_is_more() -> None:
    bounds = bounds_of(one_node([trajectory(f"t{index}", (step(3.5),)) for index in range(10)], 2))
    assert bounds.longest_trajectory_s == pytest.approx(5.0)
    assert bounds.step_s == pytest.approx(10 * 4.0 / 2)


def test_gpus_and_quotas_bound_the_step_too() -> None:
    turns = (Turn(Generation(4.0), tuple(Work(ActionKind.TOOL_CALL, "q", quota="web") for _ in range(30))),)
    judge = Work(ActionKind.REWARD, "judge", service="judge", service_s=6.0)
    rollout = replace(trajectory("t", ()), reset=None, turns=turns, rewards=(judge,) * 8)
    cluster = Cluster(
        gpu=(GpuNodes(1, 4),),
        models=(Model("judge", 2, 0.0, 0.0, slots=2),),
        quotas=(Quota("web", concurrency=5, per_second=2.0, burst=10.0),),
    )
    scenario = replace(one_node([rollout], 1), cluster=cluster)
    assert bounds_of(scenario).work_s == pytest.approx(8 * 6.0 * (2 / 2) / 4)
    no_judge = replace(scenario, rollouts=(replace(rollout, rewards=()),))
    assert bounds_of(no_judge).work_s == pytest.approx((30 - 10) / 2.0)
    assert bounds_of(no_judge).longest_trajectory_s == pytest.approx(4.0)


def test_a_sustained_run_is_bounded_by_its_slots_and_its_cores() -> None:
    rollouts = [trajectory(f"t{index}", (step(3.5),)) for index in range(100)]
    busy = bounds_of(sustained(one_node(rollouts, 2), live=10, horizon_s=100.0))
    # 4 core-seconds each on 2 cores: all 50 of the horizon after the warm-up of a quarter.
    assert busy.trajectories_per_hour == pytest.approx(3600 * 50 / 75.0)
    assert (busy.longest_trajectory_s, busy.work_s, busy.step_s) == (None, None, None)


def test_without_actions_there_is_nothing_to_bound() -> None:
    rollout = replace(trajectory("t", ()), reset=None)
    bounds = bounds_of(replace(one_node([rollout], 1), cluster=Cluster(cpu=(CpuNodes(1, 1),))))
    assert bounds.step_s == 0.0
    assert act_figures(np.array([])) == least([]) == ActFigures(0.0, 0.0, 0.0, 0.0)


def test_none_of_several_runs_beats_the_least_of_their_bounds() -> None:
    few_long, many_short = act_figures(np.array([1.0, 9.0])), act_figures(np.array([2.0] * 8))
    assert few_long.act_mean_s == 5.0
    assert least([few_long, many_short]) == ActFigures(2.0, 2.0, 2.0, 2.0)
