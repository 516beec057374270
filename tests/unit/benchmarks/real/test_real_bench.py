"""What the real benchmark makes of what it measured: cores held, and workloads with and without sandboxes."""

from __future__ import annotations

import pytest
from callsheet.benchmarks.real.measuring import RealRun, Span, TimedAction, held_core_s
from callsheet.benchmarks.real.rollouts import POLICIES as REAL_POLICIES
from callsheet.benchmarks.real.settings import RealSettings
from callsheet.benchmarks.real.workload import Costs, real_scenario, with_service
from callsheet.benchmarks.simulator.comparison.run import figures_of
from callsheet.benchmarks.simulator.policies import POLICIES
from callsheet.benchmarks.simulator.simulation import simulate

COSTS = Costs(start_up_cpu_s=0.01, overhead_s=0.02, reset_cpu_s=0.1)


@pytest.mark.parametrize(
    ("spans", "held"),
    [
        ([], 0.0),
        ([Span(0.0, 2.0, 1)], 2.0),
        # Three of one core share two for a second.
        ([Span(0.0, 3.0, 1), Span(1.0, 2.0, 1), Span(1.0, 2.0, 1)], 4.0),
        ([Span(5.0, 6.0, 4)], 2.0),
        # One after the other, without a gap and with one.
        ([Span(1.0, 2.0, 2), Span(2.0, 3.0, 2), Span(9.0, 9.5, 1)], 4.5),
        ([Span(1.0, 1.0, 2), Span(2.0, 1.0, 2)], 0.0),
    ],
)
def test_no_more_cores_are_held_than_there_are(spans: list[Span], held: float) -> None:
    assert held_core_s(spans, 2) == pytest.approx(held)
    assert held_core_s(reversed(spans), 2) == pytest.approx(held)


def test_cores_that_are_shared_are_held_once() -> None:
    measured = RealRun(actions=[TimedAction(10.0, 5.0, 5.0)] * 4, held=[Span(100.0, 110.0, 1)] * 4, step_s=10.0)
    assert measured.figures(cores=2).held == pytest.approx(1.0)


@pytest.mark.parametrize("policy", REAL_POLICIES)
def test_each_policy_has_a_prediction(policy: str) -> None:
    scenario = real_scenario(RealSettings(trajectories=3, turns=2), 2, COSTS)
    works = sum(len(list(rollout.works())) for rollout in scenario.rollouts[: scenario.live])
    assert figures_of(simulate(scenario, POLICIES[policy])).actions == works


def test_the_service_adds_its_work_to_commands() -> None:
    scenario = real_scenario(RealSettings(trajectories=3, turns=2), 2, COSTS)
    longer = with_service(scenario, COSTS, 0.015)
    assert [each.reset for each in longer.rollouts] == [each.reset for each in scenario.rollouts]
    for before, after in zip(scenario.rollouts, longer.rollouts, strict=True):
        for ours, theirs in zip(list(before.works())[1:], list(after.works())[1:], strict=True):
            assert theirs.cpu_s == pytest.approx(ours.cpu_s + 0.015)
            assert theirs.alone_s() == pytest.approx(ours.alone_s() + 0.02)
