"""Whose place in a KV cache is kept while its tool call runs, and for how long."""

from __future__ import annotations

import math

import numpy as np
import pytest
from callsheet.scheduler.planner.engines.claims import (
    KvClaim,
    KvClaims,
    UsualTurn,
    break_even_s,
    headroom_tokens,
    idle_for_s,
    keep_for_s,
)
from callsheet.scheduler.planner.engines.generation_prices import EngineRates
from callsheet.scheduler.planner.predictors import Prediction

RATES = EngineRates(prefill_tokens_per_s=10_000.0, step_s=0.006, step_per_sequence_s=0.002)


def call(median_s: float, log_sd: float = 0.5) -> Prediction:
    """A tool call that is expected to take about so long."""
    return Prediction(median_s, math.log(median_s), log_sd, 1.0, 0.0, 0.0, 10.0)


def test_keeping_breaks_even_sooner_where_another_sequence_is_worth_more() -> None:
    """With three sequences a step takes 12 ms, of which 6 are for all: half of a larger batch is gained."""
    assert break_even_s(100_000, RATES, 3) == pytest.approx(20.0)
    assert break_even_s(100_000, RATES, 1) < break_even_s(100_000, RATES, 10)
    assert break_even_s(100_000, RATES._replace(prefill_tokens_per_s=20_000.0), 3) == pytest.approx(10.0)


def test_a_short_call_keeps_its_place_until_that_has_cost_as_much_as_it_saves() -> None:
    assert keep_for_s(call(1.0), 0.0, 20.0) == 20.0


def test_a_long_call_gives_its_place_up_at_once() -> None:
    assert keep_for_s(call(300.0), 0.0, 20.0) == 0.0


def test_a_call_that_waits_for_long_before_it_runs_gives_its_place_up() -> None:
    assert keep_for_s(call(1.0), 10.0, 20.0) == 20.0
    assert keep_for_s(call(1.0), 19.5, 20.0) == 0.0
    assert keep_for_s(call(1.0), 25.0, 20.0) == 0.0


def test_a_near_time_out_is_waited_for() -> None:
    assert keep_for_s(call(5.0, 2.0), 0.0, 20.0, timeout_s=30.0) == 30.0
    assert keep_for_s(call(5.0, 2.0), 0.0, 20.0, timeout_s=120.0) == 20.0
    assert keep_for_s(call(300.0), 0.0, 20.0, timeout_s=10.0) == 20.0


def test_a_call_of_which_nothing_is_known_keeps_its_place_until_it_breaks_even() -> None:
    assert keep_for_s(call(300.0)._replace(known=False), 0.0, 20.0) == 20.0
    assert keep_for_s(call(300.0)._replace(known=False), 25.0, 20.0) == 0.0


def test_no_fit_of_few_generations_has_places_kept_for_ever() -> None:
    assert break_even_s(100_000, RATES._replace(step_s=1e-9), 3) == pytest.approx(200.0)


def test_an_idle_engine_waits_for_what_computing_the_lost_tokens_anew_takes() -> None:
    unclaimed, claimed, prefill = np.array([500, 100, -50, 0]), np.array([0, 400, 300, 5000]), np.full(4, 1000.0)
    assert idle_for_s(400, unclaimed, claimed, prefill).tolist() == pytest.approx([0.0, 0.3, 0.3, 0.4])


def test_what_was_used_least_recently_gives_way_first() -> None:
    claims = KvClaims()
    for name in "tuv":
        claims.keep(name, KvClaim("a", 100, 1.0, 10.0))
    claims.keep("t", KvClaim("a", 100, 1.0, 10.0))
    claims.give_way("a", 150)
    assert [claims.of(name) is None for name in "tuv"] == [False, True, True]
    claims.give_way("a", 0)
    assert claims.tokens_on("a") == 100


def test_idleness_is_counted_anew_after_work() -> None:
    claims = KvClaims()
    assert (claims.idle_since("a", 1.0), claims.idle_since("a", 5.0)) == (1.0, 1.0)
    twin = claims.copy()
    twin.began("a")
    assert (twin.idle_since("a", 7.0), claims.idle_since("a", 7.0)) == (7.0, 1.0)


def test_headroom_is_for_growth_alone() -> None:
    assert headroom_tokens(100_000, RATES, 4, UsualTurn(20_000, 0, 200)) == 0
    small = headroom_tokens(1_000_000, RATES, 4, UsualTurn(20_000, 500, 200))
    assert 0 < small < headroom_tokens(1_000_000, RATES, 4, UsualTurn(20_000, 2000, 200))
    assert headroom_tokens(1000, RATES, 4, UsualTurn(20_000, 2000, 200)) == 100


def test_claims_end_by_themselves_and_count_while_they_last() -> None:
    claims = KvClaims()
    claims.keep("t", KvClaim("a", 100, 1.0, 10.0))
    claims.keep("u", KvClaim("a", 50, 2.0, 5.0))
    claims.keep("t", KvClaim("b", 70, 1.0, 20.0))
    assert (claims.tokens_on("a"), claims.tokens_on("b"), claims.next_end()) == (50, 70, 5.0)
    claims.expire(10.0)
    assert (claims.tokens_on("a"), claims.tokens_on("b"), claims.next_end()) == (0, 70, 20.0)
    claims.forget_engine("b")
    assert len(claims) == 0
    assert claims.next_end() is None


def test_the_youngest_lose_their_places_first_and_nobody_for_nothing() -> None:
    claims = KvClaims()
    for name, began_at in (("old", 1.0), ("middle", 2.0), ("young", 3.0)):
        claims.keep(name, KvClaim("a", 100, began_at, 99.0))
    assert not claims.take("a", 250, lambda _, claim: claim.began_at > 1.0)
    assert len(claims) == 3
    assert claims.take("a", 50, lambda _, claim: claim.began_at > 1.0)
    assert claims.of("young") is None
    assert claims.of("middle") is not None


def test_what_is_tried_with_a_copy_changes_nothing() -> None:
    claims = KvClaims()
    claims.keep("t", KvClaim("a", 100, 1.0, 10.0))
    twin = claims.copy()
    twin.release("t")
    twin.keep("u", KvClaim("a", 7, 1.0, 10.0))
    assert (claims.tokens_on("a"), twin.tokens_on("a")) == (100, 7)
