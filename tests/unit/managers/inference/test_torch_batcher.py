"""The batcher without threads: every step is taken by the test."""

from __future__ import annotations

import math

import pytest
import torch
from callsheet.managers.inference import tokenizer
from callsheet.managers.inference.driver import FinishReason, Generation, RequestRefusedError, VersionSpan
from callsheet.managers.inference.torch_engine.batcher import Batcher, BatchLimits, check_request
from callsheet.managers.inference.torch_engine.runner import ModelRunner, invariant_tile

from tests.support.torch_models import SMALL, full_pass_log_probs, prompt, request, small_model

CHUNK = 32


def batcher(
    *, kv_cache_tokens: int = 2048, max_running: int = 32, prefix_cache_tokens: int = 0, budget: int = 64
) -> Batcher:
    limits = BatchLimits(
        max_running=max_running,
        prefill_chunk=CHUNK,
        prefill_tokens_per_step=budget,
        prefix_cache_tokens=prefix_cache_tokens,
    )
    runner = ModelRunner(small_model(), kv_cache_tokens=kv_cache_tokens)
    engine = Batcher(runner, limits, version=0, token_bytes=tokenizer.token_bytes)
    engine.prepare()
    return engine


def run_out(engine: Batcher) -> dict[object, Generation]:
    """Steps until nothing is left to do; results by tag."""
    results: dict[object, Generation] = {}
    while engine.can_step():
        for one in engine.step():
            assert isinstance(one.result, Generation), one.result
            results[one.tag] = one.result
    return results


def alone(tokens: tuple[int, ...], **sampling: object) -> Generation:
    """The same request in an engine of its own."""
    engine = batcher()
    engine.submit(request("alone", tokens, **sampling), "alone")
    return run_out(engine)["alone"]


@pytest.mark.parametrize("length", [1, 31, 32, 33, 64, 100])
def test_log_probs_equal_a_plain_full_pass(length: int) -> None:
    engine = batcher()
    tokens = prompt(length, seed=length)
    engine.submit(request("a", tokens, max_new_tokens=40, seed=1), "a")
    result = run_out(engine)["a"]
    assert len(result.token_ids) == 40
    assert result.log_probs == pytest.approx(full_pass_log_probs(small_model(), tokens, result.token_ids), abs=2e-5)


def test_greedy_tokens_equal_a_plain_full_pass() -> None:
    engine = batcher()
    tokens = prompt(50)
    engine.submit(request("a", tokens, max_new_tokens=30, temperature=0), "a")
    expected = list(tokens)
    with torch.no_grad():
        for _ in range(30):
            expected.append(int(small_model()(torch.tensor([expected]))[0, -1].argmax()))
    assert list(run_out(engine)["a"].token_ids) == expected[50:]


def test_tokens_and_log_probs_do_not_depend_on_the_batch_to_the_last_bit() -> None:
    requests: list[tuple[tuple[int, ...], dict[str, float]]] = [
        (prompt(5 + 7 * index, seed=index), {"seed": index, "max_new_tokens": 10 + 3 * index, "temperature": 0.8})
        for index in range(20)
    ]
    engine = batcher()
    steps = 0
    results: dict[object, Generation] = {}
    pending = list(enumerate(requests))
    while pending or engine.can_step():
        if pending and steps % 3 == 0:
            for index, (tokens, sampling) in pending[:4]:
                engine.submit(request(str(index), tokens, **sampling), index)
            pending = pending[4:]
        steps += 1
        results.update({one.tag: one.result for one in engine.step() if isinstance(one.result, Generation)})
    assert len(results) == len(requests)
    for index, (tokens, sampling) in enumerate(requests):
        single = alone(tokens, **sampling)
        assert results[index].token_ids == single.token_ids
        assert results[index].log_probs == single.log_probs


def test_the_place_in_a_tile_does_not_matter_on_this_machine() -> None:
    model = small_model()
    assert invariant_tile(model, 8, torch.device("cpu")) in (1, 8)
    assert invariant_tile(model, 1, torch.device("cpu")) == 1


def test_requests_join_and_leave_between_steps() -> None:
    engine = batcher()
    engine.submit(request("long", prompt(20), max_new_tokens=30), "long")
    ended: list[object] = []
    for _ in range(5):
        ended += [one.tag for one in engine.step()]
    engine.submit(request("short", prompt(10), max_new_tokens=3), "short")
    while "short" not in ended:
        ended += [one.tag for one in engine.step()]
        assert engine.running >= 1
    assert "long" not in ended
    assert engine.load().running == 1


def test_long_prompts_do_not_hold_up_decoding() -> None:
    engine = batcher(budget=CHUNK)
    engine.submit(request("running", prompt(4), max_new_tokens=50), "running")
    engine.step()
    engine.submit(request("long", prompt(200), max_new_tokens=1), "long")
    ended: list[object] = []
    steps = 0
    while "long" not in ended:
        ended += [one.tag for one in engine.step()]
        steps += 1
    assert steps == math.ceil(200 / CHUNK)
    engine.abort("running")
    result = engine.step()[0].result
    assert isinstance(result, Generation)
    assert len(result.token_ids) == 2 + steps  # the first step gave two: one from the prompt, one decoded


def test_admission_waits_for_the_cache_and_stays_in_order() -> None:
    engine = batcher(kv_cache_tokens=256)
    for name, length in (("a", 100), ("b", 200), ("c", 10)):
        engine.submit(request(name, prompt(length), max_new_tokens=20), name)
    engine.step()
    load = engine.load()
    assert (load.running, load.waiting) == (1, 2)
    assert load.kv_tokens_used == 128
    assert load.kv_tokens_total == 256
    ended: list[object] = []
    while not ended:
        assert engine.load().waiting == 2  # "c" would fit, but "b" came before
        ended += [one.tag for one in engine.step()]
    assert ended == ["a"]
    engine.step()
    assert (engine.load().running, engine.load().waiting) == (2, 0)
    rest = run_out(engine)
    assert set(rest) == {"b", "c"}
    assert engine.load().kv_tokens_used == 0
    assert min(rest[name].waited_s for name in "bc") > 0


def test_the_batch_has_a_bound() -> None:
    engine = batcher(max_running=3)
    for index in range(7):
        engine.submit(request(str(index), prompt(4, index), max_new_tokens=5), index)
    most = 0
    results = {}
    while engine.can_step():
        results.update({one.tag: one.result for one in engine.step()})
        most = max(most, engine.running)
    assert most == 3
    assert set(results) == set(range(7))


def test_stop_token_ends_and_is_part_of_the_output() -> None:
    tokens = prompt(30)
    free = alone(tokens, temperature=0, max_new_tokens=12)
    stop = free.token_ids[5]
    stopped = alone(tokens, temperature=0, max_new_tokens=12, stop_token_ids=frozenset({stop}))
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert stopped.finish_reason is FinishReason.STOP
    assert free.finish_reason is FinishReason.LENGTH


def test_output_ends_at_the_context() -> None:
    result = alone(prompt(250), max_new_tokens=1000)
    assert len(result.token_ids) == SMALL.context_length - 250
    assert result.finish_reason is FinishReason.LENGTH


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
        check_request(request("a", tokens), SMALL)
    assert refusal.value.reason == reason
    check_request(request("a", prompt(255)), SMALL)


def test_requests_without_a_seed_get_one_each_and_tell_it() -> None:
    engine = batcher()
    for index in range(8):
        engine.submit(request(str(index), prompt(20), max_new_tokens=24, seed=None), index)
    results = run_out(engine)
    assert len({result.token_ids for result in results.values()}) == 8
    for result in results.values():
        assert alone(prompt(20), max_new_tokens=24, seed=result.seed).token_ids == result.token_ids


def test_a_given_seed_is_told() -> None:
    assert alone(prompt(4), seed=5).seed == 5


def test_a_stop_text_ends_a_generation_with_the_token_that_completes_it() -> None:
    free = alone(prompt(30), seed=3, max_new_tokens=60)
    text = tokenizer.decode(free.token_ids[:40])
    stop = next(two for two in (text[index : index + 2] for index in range(len(text))) if "\ufffd" not in two)
    engine = batcher()
    engine.submit(request("a", prompt(30), seed=3, max_new_tokens=60, stop=(stop,)), "a")
    result = run_out(engine)["a"]
    assert result.finish_reason is FinishReason.STOP
    assert result.token_ids == free.token_ids[: len(result.token_ids)]
    assert stop in tokenizer.decode(result.token_ids)
    assert stop not in tokenizer.decode(result.token_ids[:-1])
    assert len(result.log_probs) == result.version_spans[-1].end == len(result.token_ids)


def test_abort_gives_the_tokens_so_far() -> None:
    tokens = prompt(40)
    whole = alone(tokens, max_new_tokens=30, seed=3)
    engine = batcher()
    engine.submit(request("a", tokens, max_new_tokens=30, seed=3), "a")
    engine.submit(request("ab", prompt(9), max_new_tokens=20), "ab")
    for _ in range(8):
        engine.step()
    engine.abort("a")
    engine.abort("unknown")
    results = run_out(engine)
    assert results["a"].finish_reason is FinishReason.ABORT
    assert 0 < len(results["a"].token_ids) < 30
    assert results["a"].token_ids == whole.token_ids[: len(results["a"].token_ids)]
    assert results["ab"].finish_reason is FinishReason.LENGTH
    assert engine.load().kv_tokens_used == 0


def test_abort_before_the_start_gives_no_tokens() -> None:
    engine = batcher(max_running=1)
    for name in "ab":
        engine.submit(request(name, prompt(5), max_new_tokens=4), name)
    engine.step()
    engine.abort("b")
    results = run_out(engine)
    assert results["b"].token_ids == ()
    assert results["b"].version_spans == ()
    assert results["b"].finish_reason is FinishReason.ABORT


def test_without_admission_the_batch_goes_on_alone() -> None:
    engine = batcher()
    engine.submit(request("a", prompt(5), max_new_tokens=8), "a")
    engine.step()
    engine.submit(request("b", prompt(5), max_new_tokens=8), "b")
    engine.admits = False
    assert list(run_out(engine)) == ["a"]
    assert engine.load().waiting == 1
    engine.admits = True
    assert list(run_out(engine)) == ["b"]


def test_new_weights_between_two_tokens_make_two_spans() -> None:
    tokens = prompt(20)
    engine = batcher()
    engine.submit(request("a", tokens, max_new_tokens=12, seed=1), "a")
    for _ in range(4):
        engine.step()
    other = small_model(9)
    engine.replace_weights(dict(other.state_dict()), 7)
    result = run_out(engine)["a"]
    assert result.version_spans == (VersionSpan(0, 0, 5), VersionSpan(7, 5, 12))
    before = full_pass_log_probs(small_model(), tokens, result.token_ids)
    assert result.log_probs[:5] == pytest.approx(before[:5], abs=2e-5)
    assert result.log_probs[5:] != pytest.approx(before[5:], abs=1e-2)
    engine.submit(request("b", tokens, max_new_tokens=12, seed=1), "b")
    after = run_out(engine)["b"]
    assert after.version_spans == (VersionSpan(7, 0, 12),)
    assert after.log_probs == pytest.approx(full_pass_log_probs(other, tokens, after.token_ids), abs=2e-5)


def test_weights_that_blew_up_fail_the_request_and_not_the_engine() -> None:
    engine = batcher()
    good = {name: value.clone() for name, value in small_model().state_dict().items()}
    engine.replace_weights({name: value * math.nan for name, value in good.items()}, 1)
    engine.submit(request("a", prompt(5)), "a")
    result = engine.step()[0].result
    assert isinstance(result, RequestRefusedError)
    assert result.reason == "non_finite_logits"
    engine.replace_weights(good, 2)
    assert alone(prompt(5)).token_ids == _only(engine).token_ids


def _only(engine: Batcher) -> Generation:
    engine.submit(request("b", prompt(5)), "b")
    return run_out(engine)["b"]


def test_a_reused_prefix_is_reported_and_changes_no_bit() -> None:
    first, second = prompt(100), (*prompt(100), *prompt(60, seed=5))
    plain = alone(second, seed=4)
    engine = batcher(prefix_cache_tokens=1024)
    for name, tokens in (("a", first), ("b", second), ("c", second)):
        engine.submit(request(name, tokens, seed=4), name)
        result = run_out(engine)[name]
        if name == "a":
            assert result.cached_tokens == 0
    assert result.cached_tokens == 128  # four whole chunks of 160 tokens' five; the last token is computed anew
    assert (result.token_ids, result.log_probs) == (plain.token_ids, plain.log_probs)


def test_a_prompt_of_whole_chunks_computes_its_last_chunk_again() -> None:
    engine = batcher(prefix_cache_tokens=1024)
    for name in "ab":
        engine.submit(request(name, prompt(64), seed=4), name)
    results = run_out(engine)
    engine.submit(request("c", prompt(64), seed=4), "c")
    third = run_out(engine)["c"]
    assert third.cached_tokens == 32
    assert third.token_ids == results["a"].token_ids == results["b"].token_ids


def test_prefixes_of_old_weights_are_never_reused() -> None:
    engine = batcher(prefix_cache_tokens=1024, budget=CHUNK)
    tokens = prompt(100)
    engine.submit(request("a", tokens, max_new_tokens=2), "a")
    engine.step()  # the first chunk, under version 0
    other = small_model(9)
    engine.replace_weights(dict(other.state_dict()), 1)
    run_out(engine)  # the other chunks attend to the first one's old values
    engine.submit(request("b", tokens, max_new_tokens=8), "b")
    result = run_out(engine)["b"]
    assert result.cached_tokens == 0
    assert result.log_probs == pytest.approx(full_pass_log_probs(other, tokens, result.token_ids), abs=2e-5)


def test_prefix_cache_is_bounded() -> None:
    engine = batcher(prefix_cache_tokens=2 * CHUNK)
    for index in range(6):
        engine.submit(request(str(index), prompt(100, index)), index)
    run_out(engine)
    assert len(engine._prefixes) == 2


def test_a_cache_smaller_than_the_context_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kv_cache_tokens is 128.*context_length \(256\)"):
        batcher(kv_cache_tokens=128)


@pytest.mark.parametrize(("tile_rows", "each_s"), [(8, 2.0), (1, 3.0)])
def test_cpu_seconds_are_shared_out(tile_rows: int, each_s: float) -> None:
    ticks = iter(range(10_000))
    limits = BatchLimits(prefill_chunk=CHUNK, prefix_cache_tokens=0)
    runner = ModelRunner(small_model(), kv_cache_tokens=512)
    engine = Batcher(runner, limits, 0, clock=lambda: float(next(ticks)))
    engine.prepare()
    # What it finds usable depends on the machine.
    runner.tile_rows = tile_rows
    for name in "ab":
        engine.submit(request(name, prompt(5), max_new_tokens=3), name)
    results = run_out(engine)
    # One second for each prompt, and one for each tile of each of two decode steps, shared by those in it.
    assert [results[name].cpu_s for name in "ab"] == [each_s, each_s]
