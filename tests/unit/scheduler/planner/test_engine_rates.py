"""How fast engines are, learned from what ended on them."""

from __future__ import annotations

import random

import pytest
from callsheet.scheduler.planner.engines.generation_prices import EngineRates
from callsheet.scheduler.planner.engines.rates import FIRST_RATES, ObservedGeneration, RateFit

FAST = EngineRates(prefill_tokens_per_s=20_000.0, step_s=0.008, step_per_sequence_s=0.0004)
SLOW = EngineRates(prefill_tokens_per_s=900.0, step_s=0.05, step_per_sequence_s=0.003)


def run(rates: EngineRates, prefilled: int, new: int, batch: float, noise: float = 1.0) -> ObservedGeneration:
    """A generation on an engine with these rates."""
    seconds = prefilled / rates.prefill_tokens_per_s + new * (rates.step_s + batch * rates.step_per_sequence_s)
    return ObservedGeneration(prefilled, new, batch, seconds * noise)


def runs(rates: EngineRates, count: int, seed: int, spread: float = 0.0) -> list[ObservedGeneration]:
    """Generations of all sizes, with durations off by a share."""
    chance = random.Random(seed)
    return [
        run(
            rates,
            chance.choice((0, 64, 700, 4000)),
            chance.randint(1, 600),
            chance.randint(1, 48),
            1.0 + chance.uniform(-spread, spread),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("rates", [FAST, SLOW])
def test_rates_are_found_however_noisy_the_durations(rates: EngineRates) -> None:
    fit = RateFit()
    for each in runs(rates, 300, seed=5, spread=0.2):
        fit.observe(each)
    assert tuple(fit.rates()) == pytest.approx(tuple(rates), rel=0.25)


def test_an_engine_that_became_slower_is_followed() -> None:
    fit = RateFit()
    for each in [*runs(FAST, 300, seed=1), *runs(SLOW, 1500, seed=2)]:
        fit.observe(each)
    assert tuple(fit.rates()) == pytest.approx(tuple(SLOW), rel=0.2)


def test_what_was_not_seen_is_as_of_alike_engines() -> None:
    fit = RateFit()
    for each in runs(SLOW, 100, seed=3):
        fit.observe(
            each._replace(prefilled_tokens=0, execution_s=run(SLOW, 0, each.new_tokens, each.batch).execution_s)
        )
    found = fit.rates(FAST)
    assert found.prefill_tokens_per_s == pytest.approx(FAST.prefill_tokens_per_s, rel=0.05)
    assert found.step_s == pytest.approx(SLOW.step_s, rel=0.05)


def test_no_rate_is_negative_nor_infinite() -> None:
    """An engine that takes no longer for a larger batch, nor for a longer prompt."""
    fit = RateFit()
    for new in (1, 10, 100, 400):
        for batch in (1.0, 64.0):
            fit.observe(ObservedGeneration(5000 if batch > 1.0 else 0, new, batch, new * 0.01))
    found = fit.rates()
    assert all(0.0 < each < float("inf") for each in found)
    assert found.step_s == pytest.approx(0.01, rel=0.1)


def test_nothing_seen_is_what_was_known_beforehand() -> None:
    assert RateFit().rates() == FIRST_RATES
    assert RateFit().rates(SLOW) == SLOW


def test_an_engine_that_is_far_slower_than_guessed_shows_so_at_once() -> None:
    """Ten generations on a CPU, all alike: what none of them tells apart is guessed in proportion."""
    slow = EngineRates(prefill_tokens_per_s=200.0, step_s=0.4, step_per_sequence_s=0.02)
    fit = RateFit()
    for _ in range(10):
        fit.observe(run(slow, 1000, 24, 5.0))
    found = fit.rates()
    took_s = 1000 / found.prefill_tokens_per_s + 24 * (found.step_s + 5.0 * found.step_per_sequence_s)
    assert took_s == pytest.approx(run(slow, 1000, 24, 5.0).execution_s, rel=0.05)
    assert found.prefill_tokens_per_s < 1000.0
