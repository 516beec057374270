"""The engine's loop without threads: every turn is taken by the test."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from callsheet.managers.inference import tokenizer
from callsheet.managers.inference.driver import (
    FinishReason,
    Generation,
    NonFiniteError,
    RequestRefusedError,
    VersionSpan,
)
from callsheet.managers.inference.torch_engine.engine import TOKENS_A_TURN, TorchEngine
from callsheet.managers.inference.torch_engine.runner import ModelRunner

from tests.support.torch_models import SMALL, full_pass_log_probs, prompt, request, run_out, small_model

CHUNK = 32


def engine(prefix_cache_tokens: int = 0) -> TorchEngine:
    return TorchEngine(
        ModelRunner(small_model()),
        prefill_chunk=CHUNK,
        prefix_cache_tokens=prefix_cache_tokens,
        token_bytes=tokenizer.token_bytes,
    )


def alone(tokens: tuple[int, ...], **sampling: object) -> Generation:
    """The request in an engine of its own."""
    return run_out(engine(), request("alone", tokens, **sampling))[0]


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 100])
def test_log_probs_equal_a_plain_full_pass(length: int) -> None:
    tokens = prompt(length, seed=length)
    result = alone(tokens, max_new_tokens=40, seed=1)
    assert len(result.token_ids) == 40
    assert result.log_probs == pytest.approx(full_pass_log_probs(small_model(), tokens, result.token_ids), abs=2e-5)


def test_greedy_tokens_equal_a_plain_full_pass() -> None:
    tokens = prompt(50)
    expected = list(tokens)
    with torch.no_grad():
        for _ in range(30):
            expected.append(int(small_model()(torch.tensor([expected]))[0, -1].argmax()))
    assert list(alone(tokens, max_new_tokens=30, temperature=0).token_ids) == expected[50:]


def test_a_turn_is_a_chunk_of_a_prompt_or_a_few_tokens() -> None:
    looped = engine()
    live = looped.sequence(request("a", prompt(100), max_new_tokens=50))
    for expected in (32, 64, 96, 100):
        assert not live.token_ids
        looped.turn(live)
        assert live.prefilled == expected
    seen = [len(live.token_ids)]
    while live.ended is None:
        looped.turn(live)
        seen.append(len(live.token_ids))
    assert all(1 <= after - before <= TOKENS_A_TURN for before, after in itertools.pairwise(seen))
    assert live.cpu_s > 0


def test_the_room_of_a_sequence_changes_no_bit() -> None:
    longest = alone(prompt(70), max_new_tokens=120, seed=5)
    for new_tokens in (1, 2, 7, 16, 61):
        result = alone(prompt(70), max_new_tokens=new_tokens, seed=5)
        assert result.token_ids == longest.token_ids[:new_tokens]
        assert result.log_probs == longest.log_probs[:new_tokens]


def test_output_ends_at_the_context() -> None:
    result = alone(prompt(250), max_new_tokens=1000)
    assert (len(result.token_ids), result.finish_reason) == (SMALL.context_length - 250, FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ((), "no_tokens"),
        (prompt(256), "prompt_too_long"),
        ((1, 259), "token_out_of_vocabulary"),
        ((-1,), "token_out_of_vocabulary"),
    ],
)
def test_what_can_never_be_served_is_refused(tokens: tuple[int, ...], reason: str) -> None:
    with pytest.raises(RequestRefusedError) as refusal:
        engine().sequence(request("a", tokens))
    assert refusal.value.reason == reason
    engine().sequence(request("a", prompt(255)))


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_an_end_keeps_the_tokens_so_far_and_turns_after_it_do_nothing(turns: int) -> None:
    whole = alone(prompt(40), max_new_tokens=90, seed=3)
    looped = engine()
    live = looped.sequence(request("a", prompt(40), max_new_tokens=90, seed=3))
    for _ in range(turns):
        looped.turn(live)
    live.end(FinishReason.ABORT)
    looped.turn(live)
    result = live.generation()
    assert result.finish_reason is FinishReason.ABORT
    assert len(result.token_ids) == (0 if turns < 2 else 1 + TOKENS_A_TURN * (turns - 2))
    assert result.token_ids == whole.token_ids[: len(result.token_ids)]
    live.end(FinishReason.LENGTH)
    assert live.generation().finish_reason is FinishReason.ABORT


def test_new_weights_between_two_tokens_make_two_spans() -> None:
    tokens = prompt(20)
    looped = engine()
    live = looped.sequence(request("a", tokens, max_new_tokens=24, seed=1))
    for _ in range(2):
        looped.turn(live)
    other, first = small_model(9), len(live.token_ids)
    assert looped.replace_weights(dict(other.state_dict()), 7) == []
    while live.ended is None:
        looped.turn(live)
    result = live.generation()
    assert result.version_spans == (VersionSpan(0, 0, first), VersionSpan(7, first, 24))
    before = full_pass_log_probs(small_model(), tokens, result.token_ids)
    assert result.log_probs[:first] == pytest.approx(before[:first], abs=2e-5)
    assert result.log_probs[first:] != pytest.approx(before[first:], abs=1e-2)
    after = run_out(looped, request("b", tokens, max_new_tokens=12, seed=1))[0]
    assert after.version_spans == (VersionSpan(7, 0, 12),)
    assert after.log_probs == pytest.approx(full_pass_log_probs(other, tokens, after.token_ids), abs=2e-5)


def test_weights_that_blew_up_fail_the_request_and_not_the_engine() -> None:
    looped = engine()
    good = {name: value.clone() for name, value in small_model().state_dict().items()}
    looped.replace_weights({name: value * math.nan for name, value in good.items()}, 1)
    with pytest.raises(NonFiniteError):
        run_out(looped, request("a", prompt(5)))
    looped.replace_weights(good, 2)
    assert alone(prompt(5)).token_ids == run_out(looped, request("b", prompt(5)))[0].token_ids


def test_a_reused_prefix_is_reported_and_changes_no_bit() -> None:
    first, second = prompt(100), (*prompt(100), *prompt(60, seed=5))
    plain = alone(second, seed=4)
    looped = engine(prefix_cache_tokens=1024)
    results = [run_out(looped, request("a", tokens, seed=4))[0] for tokens in (first, second, second)]
    # Three whole chunks of the first prompt, then four of five: the last token is computed anew.
    assert [result.cached_tokens for result in results] == [0, 96, 128]
    for result in results[1:]:
        assert (result.token_ids, result.log_probs) == (plain.token_ids, plain.log_probs)


def test_a_prompt_of_whole_chunks_computes_its_last_chunk_again() -> None:
    looped = engine(prefix_cache_tokens=1024)
    first, second = (run_out(looped, request(name, prompt(64), seed=4))[0] for name in "ab")
    assert (second.cached_tokens, second.token_ids) == (32, first.token_ids)


def test_prefixes_of_old_weights_are_never_reused() -> None:
    looped = engine(prefix_cache_tokens=1024)
    tokens = prompt(100)
    live = looped.sequence(request("a", tokens, max_new_tokens=2))
    looped.turn(live)  # the first chunk, under version 0
    other = small_model(9)
    looped.replace_weights(dict(other.state_dict()), 1)
    while live.ended is None:
        looped.turn(live)  # the other chunks attend to the first one's old values
    result = run_out(looped, request("b", tokens, max_new_tokens=8))[0]
    assert result.cached_tokens == 0
    assert result.log_probs == pytest.approx(full_pass_log_probs(other, tokens, result.token_ids), abs=2e-5)


def test_of_kept_prefixes_the_least_recently_used_goes_first() -> None:
    looped = engine(prefix_cache_tokens=2 * CHUNK)

    def cached(seed: int) -> int:
        return run_out(looped, request("a", prompt(40, seed), max_new_tokens=1))[0].cached_tokens

    assert [cached(seed) for seed in (1, 2, 1, 3, 1, 2)] == [0, 0, CHUNK, 0, CHUNK, 0]
    run_out(looped, request("long", prompt(100), max_new_tokens=1))
    assert run_out(looped, request("long", prompt(100), max_new_tokens=1))[0].cached_tokens == 0
