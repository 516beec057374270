"""The parts of the rewards benchmark that decide: rivals, requests and bars."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from callsheet.benchmarks.rewards.models import FirstCome, ResidentFirst
from callsheet.benchmarks.rewards.report import OURS, STATIC, SWAPPERS, OverheadResult, RewardsReport, SwappingResult
from callsheet.benchmarks.rewards.run import draw_questions, draw_scorings
from callsheet.benchmarks.rewards.settings import RewardsBenchSettings
from callsheet.managers.reward.hosted.places import ModelDevices
from callsheet.managers.reward.hosted.residency import HostedTenant, Residency
from callsheet.managers.reward.hosted.turns import ModelLine

SIZE = 64


def two_models() -> Residency:
    """ "here" is there, and "away" has no room beside it."""
    residency = Residency(ModelDevices(1, SIZE), [HostedTenant("here", SIZE), HostedTenant("away", SIZE)])
    choice = residency.choose("here", 0.0)
    assert choice is not None
    residency.begin("here", choice)
    residency.arrive("here", 0.0, 0.1)
    return residency


def test_first_come_lets_nobody_pass() -> None:
    residency, rival = two_models(), FirstCome()
    lines = [ModelLine("here", 9, 1.0, 2), ModelLine("away", 1, 0.5, 1)]
    assert rival.next_batch(lines, residency, 2.0) is None
    restore = rival.next_restore(lines, residency, 2.0)
    assert restore is not None
    assert (restore.model, restore.choice.evicted) == ("away", ("here",))
    assert rival.next_batch(lines[:1], residency, 2.0) == "here"
    assert rival.next_restore(lines[:1], residency, 2.0) is None


def test_resident_first_swaps_when_nobody_else_waits() -> None:
    residency, rival = two_models(), ResidentFirst()
    lines = [ModelLine("here", 9, 1.0, 2), ModelLine("away", 1, 0.5, 1)]
    assert rival.next_batch(lines, residency, 2.0) == "here"
    assert rival.next_restore(lines, residency, 2.0) is None
    restore = rival.next_restore(lines[1:], residency, 2.0)
    assert restore is not None
    assert restore.model == "away"
    residency.run("here", 2.0)
    assert rival.next_restore(lines[1:], residency, 2.0) is None


def test_requests_are_skewed_and_come_in_order() -> None:
    scorings = draw_scorings(2000, 9, 4, 1.0, seed=1)
    assert scorings == draw_scorings(2000, 9, 4, 1.0, seed=1)
    assert [each.at for each in scorings] == sorted(each.at for each in scorings)
    popularity = Counter(each.model for each in scorings)
    assert popularity[0] > 2 * popularity[3] > 2 * popularity[8] > 0
    assert all(4 <= len(tokens) <= 9 for tokens in draw_questions(50, (4, 9), 100, seed=1))


def result(mean_s: float, p99_s: float) -> SwappingResult:
    """A run's figures."""
    return SwappingResult(100.0, mean_s, mean_s, p99_s, p99_s, 1, 0.5, 1.0, 0.1, 0.1, 1.0, 105.0, 1e-6)


def test_a_missed_bar_is_told() -> None:
    policies = {OURS: result(0.9, 1.7), SWAPPERS[0]: result(1.0, 3.0), SWAPPERS[1]: result(2.0, 2.0)}
    policies[STATIC] = result(0.5, 1.0)
    overhead = OverheadResult(10, 50, 0.55, 0.3, 0.2, 0.6)
    report = RewardsReport(RewardsBenchSettings(), {}, 1.0, 0.1, policies, overhead)
    assert report.as_json()["met"]
    worse = [replace(report, policies=policies | {OURS: result(0.96, 1.7)})]
    worse += [replace(report, policies=policies | {OURS: result(0.9, 1.81)})]
    worse += [replace(report, policies=policies | {OURS: replace(result(0.9, 1.7), memory_mib=111.0)})]
    worse += [replace(report, policies=policies | {STATIC: replace(result(0.5, 1.0), worst_difference=1e-3)})]
    worse += [replace(report, overhead=replace(overhead, overhead_share=0.33))]
    worse += [replace(report, overhead=replace(overhead, restore_share=0.7))]
    for each in worse:
        assert [bar.met for bar in each.bars].count(False) == 1


@pytest.mark.parametrize(("field", "value"), [("models", 10), ("load", 0.0), ("scorings", 0)])
def test_bad_sizes_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        RewardsBenchSettings(**{field: value})  # type: ignore[arg-type]
