"""Whose turn it is among hosted models, beside simpler rules: bars of `callsheet bench rewards` in virtual time."""

from __future__ import annotations

import pytest
from callsheet.benchmarks.rewards.report import MOST_MEAN, MOST_P99
from callsheet.benchmarks.rewards.rivals import FirstCome, ResidentFirst
from callsheet.benchmarks.rewards.workload import draw_scorings
from callsheet.managers.reward.hosted.turns import PatientTurns

from tests.support.hosted_model_world import HostedModelWorld, ModelCosts

SCORINGS = 2000
LOAD = 1.2


@pytest.mark.parametrize(
    "costs",
    [ModelCosts(), ModelCosts(restore_s=0.2), ModelCosts(execution_s=0.026), ModelCosts(further=0.3)],
    ids=["usual", "slow restores", "slow answers", "good batches"],
)
def test_mean_and_longest_waits_are_below_those_of_simpler_rules(costs: ModelCosts) -> None:
    scorings = draw_scorings(SCORINGS, 9, 1, 1.0, 0)
    ours, *rivals = (
        HostedModelWorld(turns, costs=costs).serve(scorings, costs.execution_s / LOAD)
        for turns in (PatientTurns(), FirstCome(), ResidentFirst())
    )
    assert ours.mean_s <= MOST_MEAN * min(each.mean_s for each in rivals)
    assert ours.p99_s <= MOST_P99 * min(each.p99_s for each in rivals)


def test_to_wait_for_what_is_cheap_to_lose_keeps_the_popular_ones_there() -> None:
    scorings = draw_scorings(SCORINGS, 9, 1, 1.0, 0)
    waits, never = (
        HostedModelWorld(turns).serve(scorings, 0.012 / LOAD)
        for turns in (PatientTurns(), PatientTurns(waiting_gain=1e9))
    )
    assert waits.hits > 1.03 * never.hits
    assert waits.mean_s < never.mean_s
