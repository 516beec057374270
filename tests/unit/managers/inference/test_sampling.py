from __future__ import annotations

import math
import random

import pytest
import torch
from callsheet.managers.inference.driver import LogProbsMode, Sampling
from callsheet.managers.inference.torch_engine.sampling import choose_token

LOGITS = torch.tensor([0.0, 3.0, 1.0, 2.0, -1.0])
PROBABILITIES = torch.softmax(LOGITS.double(), 0).tolist()


def draw(sampling: Sampling, count: int, logits: torch.Tensor = LOGITS) -> list[int]:
    stream = random.Random(7)
    uniforms = [stream.random() for _ in range(count)]
    return [choose_token(logits, sampling, uniform)[0] for uniform in uniforms]


def test_greedy_takes_the_most_likely_token() -> None:
    assert set(draw(Sampling(max_new_tokens=1, temperature=0), 50)) == {1}


def test_greedy_breaks_ties_by_the_lowest_id() -> None:
    assert draw(Sampling(max_new_tokens=1, temperature=0), 1, torch.tensor([0.0, 2.0, 2.0, 1.0])) == [1]


def test_frequencies_follow_the_distribution() -> None:
    drawn = draw(Sampling(max_new_tokens=1), 4_000)
    for token, probability in enumerate(PROBABILITIES):
        error = 5 * math.sqrt(probability * (1 - probability) / 4_000)
        assert drawn.count(token) / 4_000 == pytest.approx(probability, abs=error)


def test_temperature_reshapes_the_distribution() -> None:
    expected = torch.softmax(LOGITS.double() / 0.5, 0).tolist()
    drawn = draw(Sampling(max_new_tokens=1, temperature=0.5), 4_000)
    assert drawn.count(1) / 4_000 == pytest.approx(expected[1], abs=0.02)


@pytest.mark.parametrize(("top_k", "allowed"), [(1, {1}), (2, {1, 3}), (3, {1, 2, 3}), (0, {0, 1, 2, 3, 4})])
def test_top_k(top_k: int, allowed: set[int]) -> None:
    assert set(draw(Sampling(max_new_tokens=1, top_k=top_k), 5_000)) == allowed


@pytest.mark.parametrize(("top_p", "allowed"), [(1e-9, {1}), (0.64, {1, 3}), (0.9, {1, 2, 3}), (1.0, {0, 1, 2, 3, 4})])
def test_top_p_keeps_the_smallest_set_that_reaches_the_mass(top_p: float, allowed: set[int]) -> None:
    assert set(draw(Sampling(max_new_tokens=1, top_p=top_p), 5_000)) == allowed


def test_top_k_and_top_p_together_take_the_smaller_set() -> None:
    assert set(draw(Sampling(max_new_tokens=1, top_k=2, top_p=0.99), 2_000)) == {1, 3}


UNIFORMS = [0.0, 0.5, 0.999999]


def test_raw_log_probs_are_those_of_the_whole_distribution_at_temperature_1() -> None:
    sampling = Sampling(max_new_tokens=1, temperature=0.1, top_k=2, log_probs_mode=LogProbsMode.RAW)
    tokens, log_probs = zip(*(choose_token(LOGITS, sampling, uniform) for uniform in UNIFORMS), strict=True)
    assert list(log_probs) == pytest.approx([math.log(PROBABILITIES[token]) for token in tokens], abs=1e-6)


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"), [(0, 1.0, {0, 1, 2, 3, 4}), (2, 1.0, {1, 3}), (3, 1.0, {1, 2, 3}), (0, 0.6, {1, 3})]
)
def test_sampled_log_probs_are_those_of_what_was_drawn_from(top_k: int, top_p: float, kept: set[int]) -> None:
    sampling = Sampling(max_new_tokens=1, temperature=2.0, top_k=top_k, top_p=top_p)
    tokens, log_probs = zip(*(choose_token(LOGITS, sampling, uniform) for uniform in UNIFORMS), strict=True)
    reshaped = torch.softmax(LOGITS.double() / 2.0, 0).tolist()
    mass = sum(reshaped[token] for token in kept)
    assert set(tokens) <= kept
    assert list(log_probs) == pytest.approx([math.log(reshaped[token] / mass) for token in tokens], abs=1e-6)


def test_greedy_draws_with_certainty() -> None:
    sampled = Sampling(max_new_tokens=1, temperature=0)
    raw = Sampling(max_new_tokens=1, temperature=0, log_probs_mode=LogProbsMode.RAW)
    log_probs = [choose_token(LOGITS, sampling, 0.3)[1] for sampling in (sampled, raw)]
    assert log_probs == [0.0, pytest.approx(math.log(PROBABILITIES[1]), abs=1e-6)]


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("temperature", [1e-300, 1e-6, 1.0, 1e6])
def test_extreme_numbers_stay_inside_the_vocabulary(uniform: float, temperature: float) -> None:
    sampling = Sampling(max_new_tokens=1, temperature=temperature)
    token, log_prob = choose_token(LOGITS, sampling, uniform)
    assert 0 <= token < 5
    assert math.isfinite(log_prob)


@pytest.mark.parametrize("mode", list(LogProbsMode))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_show_in_the_log_prob(mode: LogProbsMode, temperature: float, bad: float) -> None:
    sampling = Sampling(max_new_tokens=1, temperature=temperature, log_probs_mode=mode)
    _, log_prob = choose_token(torch.full((5,), bad), sampling, 0.5)
    assert not math.isfinite(log_prob)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", 0),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("seed", -1),
        ("seed", 1 << 64),
        ("stop", ("",)),
        ("stop", ("x" * 1025,)),
        ("stop", ("x",) * 65),
    ],
)
def test_bad_sampling_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        Sampling(**{"max_new_tokens": 1, field: value})  # type: ignore[arg-type]
