"""Levels over time, and the figures drawn from a run."""

from __future__ import annotations

import numpy as np
import pytest
from callsheet.benchmarks.simulator.comparison.run import figures_of
from callsheet.benchmarks.simulator.events import EventQueue, Level
from callsheet.benchmarks.simulator.policy import LiveRollout, Task
from callsheet.benchmarks.simulator.simulation import simulate

from tests.support.simulated import StartAtOnce, one_node, step, sustained, trajectory


def pass_to(events: EventQueue, at: float) -> None:
    """Lets virtual time go on."""
    events.at(at, lambda _: None, None)
    events.run(at)


def test_a_level_is_integrated_from_where_it_counts() -> None:
    events = EventQueue()
    whole, later = Level(events), Level(events, 2.0)
    for level in (whole, later):
        level.add(2.0)
    pass_to(events, 1.5)
    for level in (whole, later):
        level.add(-1.0)
    pass_to(events, 2.5)
    assert whole.integral() == pytest.approx(4.0)
    assert later.integral() == pytest.approx(0.5)


def test_events_come_in_the_order_of_time_and_then_of_asking() -> None:
    events = EventQueue()
    seen: list[str] = []
    for at, name in [(2.0, "c"), (1.0, "a"), (1.0, "b"), (0.5, "first"), (9.0, "too late")]:
        events.at(at, seen.append, name)
    assert not events.run(5.0)
    assert seen == ["first", "a", "b", "c"]
    assert events.now == 5.0
    assert events.run(20.0)


def test_cores_are_held_by_width_and_used_by_work() -> None:
    class Wide(StartAtOnce):
        def ready(self, task: Task) -> None:
            self.world.start(task, node="cpu-0", width=3)

    measured = simulate(one_node([trajectory("a", [step(2.0, use=0.5)], generation_s=5.5)], 4), Wide)
    assert measured.ended_at == pytest.approx(10.0)
    assert measured.held == pytest.approx((0.5 + 4.0) * 3 / 40.0)
    assert measured.used == pytest.approx(2.5 / 40.0)


def test_a_reservation_is_held_all_the_time() -> None:
    class Reserving(StartAtOnce):
        def arrived(self, live: LiveRollout) -> None:
            self.world.begin(live, reserved_cores=2)

    measured = simulate(one_node([trajectory("a", [step(1.0)], generation_s=8.5)], 4), Reserving)
    assert measured.held == pytest.approx(0.5)
    assert measured.used == pytest.approx(1.5 / 40.0)


def test_figures_of_act_and_of_what_is_busy() -> None:
    steps = [step(float(seconds)) for seconds in range(1, 101)]
    measured = simulate(one_node([trajectory("a", steps)], 1), StartAtOnce)
    assert figures_of(measured).act_p50_s == pytest.approx(50.0)
    assert figures_of(measured).trajectories_per_hour is None


def test_a_sustained_run_leaves_its_warm_up_out_and_counts_what_is_unfinished() -> None:
    rollouts = [trajectory("endless", [step(1000.0)])]
    rollouts += [trajectory(f"t{index}", [step(1.0)], generation_s=8.5) for index in range(30)]
    measured = simulate(sustained(one_node(rollouts, 4), live=2, horizon_s=100.0), StartAtOnce)
    assert measured.warm_up_s == 25.0
    assert measured.used == pytest.approx((75.0 + 75.0 * 0.15) / 75.0 / 4, rel=0.05)
    assert measured.actions.ready_at.min() >= 25.0
    assert measured.unfinished_s.max() == pytest.approx(98.5)
    assert measured.wait_max_s == pytest.approx(98.5)
    assert len(measured.act_s) == len(measured.actions) + len(measured.unfinished_s)
    assert figures_of(measured).act_mean_s == pytest.approx(
        np.append(measured.actions.act_s, measured.unfinished_s).mean()
    )
    assert figures_of(measured).act_mean_s > 3 * measured.actions.act_s.mean()
    assert measured.act_of_job_s("job").sum() == pytest.approx(measured.act_s.sum())
    assert (measured.best_s <= measured.act_s + 1e-9).all()
    assert measured.trajectories_per_hour == pytest.approx(360, rel=0.15)
    assert figures_of(measured).step_s is None


def test_what_is_below_the_resolution_of_virtual_time_is_no_wait() -> None:
    rollouts = [trajectory(f"t{index}", (step(0.1 + index / 7),), arrives=index / 3) for index in range(8)]
    measured = simulate(one_node(rollouts, 8), StartAtOnce)
    assert (measured.actions.act_s != measured.actions.alone_s).any()
    assert measured.wait_max_s == 0.0
