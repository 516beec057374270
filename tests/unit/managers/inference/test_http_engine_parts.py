"""The pure parts of drivers behind HTTP: looks at a server, versions, log-probabilities, requests, weights on disk."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from callsheet.managers.inference.driver import (
    EngineBusyError,
    EngineError,
    EngineLimits,
    GenerateRequest,
    LogProbsMode,
    RequestRefusedError,
    Sampling,
    VersionSpan,
    WeightUpdateError,
)
from callsheet.managers.inference.http_engine import client
from callsheet.managers.inference.http_engine.client import HttpAnswer
from callsheet.managers.inference.http_engine.log_probs import Derivation, ToldLogProbs, derivation, over_top_k
from callsheet.managers.inference.http_engine.looks import Look, ServerState, after_look
from callsheet.managers.inference.http_engine.replies import spans_of, version_of
from callsheet.managers.inference.http_engine.requests import RequestBounds, check_request, error_of, new_tokens
from callsheet.managers.inference.http_engine.weights_check import check_weights
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.sglang_engine.group_updates import buckets_of
from callsheet.managers.inference.weights import TensorSpec
from callsheet.options.declaration import from_values
from safetensors.numpy import save_file

from tests.support.raw_answers import raw_answers

UP = ServerState(identity="first", version="3")
SEEN = Look(identity="first", version="3")
SLOW = Look(answered=False, problem="no answer in time")


def test_a_server_that_does_not_listen_is_dead_at_once_and_a_slow_one_after_three_looks() -> None:
    gone = after_look(UP, Look(answered=False, refused=True, problem="refused"))
    assert (gone.alive, gone.problem) == (False, "refused")
    state = UP
    for alive in (True, True, False):
        state = after_look(state, SLOW)
        assert state.alive is alive
    assert after_look(after_look(after_look(UP, SLOW), SEEN), SLOW).alive


def test_what_may_have_cost_a_server_its_weights() -> None:
    dead = after_look(UP, Look(answered=False, refused=True))
    assert after_look(UP, SEEN).losses == 0
    assert after_look(dead, SEEN).losses == 0, "the same start of the server: only its network was away"
    assert after_look(dead, Look(identity="second", version="3")).losses == 1
    assert after_look(UP, Look(identity="first", version="default")).losses == 1
    nameless = after_look(ServerState(version="3"), Look(answered=False, refused=True))
    assert after_look(nameless, Look(version="3")).losses == 1


def test_versions() -> None:
    assert [version_of(label, 4) for label in ("12", "default", "v7", None)] == [12, 4, 4, 4]


def test_spans_cover_all_tokens_in_order() -> None:
    def read(*told: tuple[object, int, int]) -> tuple[VersionSpan, ...]:
        spans = [{"version": version, "start": begin, "end": end} for version, begin, end in told]
        return spans_of(spans, 5, start_version=4)

    assert read(("1", 0, 3), ("1", 3, 3), ("2", 3, 5)) == (VersionSpan(1, 0, 3), VersionSpan(2, 3, 5))
    assert read(("default", 0, 3), ("4", 3, 5)) == (VersionSpan(4, 0, 5),)
    for told in (("1", 0, 3), ("1", 1, 5)):
        with pytest.raises(EngineError, match="must cover 5 tokens"):
            read(told)


@pytest.mark.parametrize(
    ("told", "sampling", "mode", "expected"),
    [
        (ToldLogProbs.SCALED, {"temperature": 1.0}, "sampled", Derivation.AS_TOLD),
        (ToldLogProbs.SCALED, {"temperature": 0.5}, "sampled", Derivation.AS_TOLD),
        (ToldLogProbs.SCALED, {"temperature": 0.5}, "raw", Derivation.NONE),
        (ToldLogProbs.SCALED, {"temperature": 0.5, "top_k": 7}, "sampled", Derivation.OVER_TOP_K),
        (ToldLogProbs.SCALED, {"temperature": 0.5, "top_k": 700}, "sampled", Derivation.NONE),
        (ToldLogProbs.SCALED, {"top_p": 0.9}, "sampled", Derivation.NONE),
        (ToldLogProbs.SCALED, {"top_p": 0.9}, "raw", Derivation.AS_TOLD),
        (ToldLogProbs.SCALED, {"temperature": 0.0}, "sampled", Derivation.ZEROS),
        (ToldLogProbs.SCALED, {"temperature": 0.0}, "raw", Derivation.AS_TOLD),
        (ToldLogProbs.SCALED, {"temperature": 0.5, "top_k": 1}, "sampled", Derivation.ZEROS),
        (ToldLogProbs.RAW, {"temperature": 0.5, "top_k": 7}, "raw", Derivation.AS_TOLD),
        (ToldLogProbs.RAW, {"temperature": 0.5}, "sampled", Derivation.NONE),
        (ToldLogProbs.RAW, {"top_k": 7}, "sampled", Derivation.OVER_TOP_K),
        (ToldLogProbs.SAMPLED, {"temperature": 0.5, "top_k": 7}, "sampled", Derivation.AS_TOLD),
        (ToldLogProbs.SAMPLED, {"temperature": 0.5}, "raw", Derivation.NONE),
        (ToldLogProbs.UNKNOWN, {}, "raw", Derivation.AS_TOLD),
        (ToldLogProbs.UNKNOWN, {"temperature": 0.5}, "sampled", Derivation.NONE),
    ],
)
def test_which_log_probabilities_can_be_had(
    told: ToldLogProbs, sampling: dict[str, object], mode: str, expected: Derivation
) -> None:
    wanted = Sampling(max_new_tokens=1, log_probs_mode=LogProbsMode(mode), **sampling)  # type: ignore[arg-type]
    assert derivation(told, wanted) is expected


def test_log_probabilities_among_the_likeliest() -> None:
    likeliest = [math.log(each) for each in (0.4, 0.2, 0.1, 0.05)]
    three = Sampling(max_new_tokens=1, top_k=3)
    assert over_top_k(math.log(0.2), likeliest, three, joint=True) == pytest.approx(math.log(0.2 / 0.7))
    # 0.4 of all, or 0.4 / 0.7 of the three, are below 0.5: then the second one is kept as well, and only then.
    nucleus = Sampling(max_new_tokens=1, top_k=3, top_p=0.5)
    assert over_top_k(math.log(0.2), likeliest, nucleus, joint=True) == pytest.approx(math.log(0.2 / 0.6))
    assert over_top_k(math.log(0.4), likeliest, nucleus, joint=False) == pytest.approx(0.0)


def test_requests_that_no_server_could_serve() -> None:
    limits = EngineLimits(context_length=10)
    bounds = RequestBounds(limits=limits, longest_prompt=8, vocabulary=100, stop_texts=1)

    def reason(tokens: tuple[int, ...], **sampling: object) -> str:
        request = GenerateRequest("a", tokens, Sampling(max_new_tokens=5, **sampling))  # type: ignore[arg-type]
        with pytest.raises(RequestRefusedError) as refused:
            check_request(request, bounds)
        return refused.value.reason

    assert reason(()) == "no_tokens"
    assert reason((5, 100)) == "token_out_of_vocabulary"
    assert reason((-1,)) == "token_out_of_vocabulary"
    assert reason((1,) * 8) == "prompt_too_long"
    assert reason((1,), stop=("a", "b")) == "invalid_sampling"
    fitting = GenerateRequest("a", (1,) * 7, Sampling(max_new_tokens=5))
    check_request(fitting, bounds)
    assert new_tokens(fitting, limits) == 3


@pytest.mark.parametrize(
    ("status", "message", "kind", "reason"),
    [
        (503, "The request queue is full.", EngineBusyError, "engine_busy"),
        (429, "too many requests", EngineBusyError, "engine_busy"),
        (429, "You exceeded your current quota, check your plan and billing", EngineBusyError, "engine_busy"),
        (429, "insufficient_quota", EngineError, "engine_error"),
        (400, "Budget has been exceeded! Max budget: 5.0", EngineError, "engine_error"),
        (402, "Payment Required", EngineError, "engine_error"),
        (400, "Duplicate request ID detected: a", RequestRefusedError, "duplicate_request"),
        (400, "longer than the model's context length (2048 tokens).", RequestRefusedError, "prompt_too_long"),
        (400, "the context length is 8, the prompt: 'my credit balance'", RequestRefusedError, "prompt_too_long"),
        (400, "max_tokens must be above thinking.budget_tokens", RequestRefusedError, "invalid_sampling"),
        (400, "at most 32 stop strings are allowed, got 40", RequestRefusedError, "invalid_sampling"),
        (500, "Internal server error", EngineError, "engine_error"),
    ],
)
def test_what_refusals_mean(status: int, message: str, kind: type[EngineError], reason: str) -> None:
    for body in ({"error": {"message": message}}, {"message": message}, {"detail": message}, message):
        error = error_of(HttpAnswer(status, body))
        assert type(error) is kind
        assert str(error) == f"HTTP {status}: {message}"
        assert error.reason == reason


def _weights(directory: Path, width: int) -> Path:
    directory.mkdir()
    save_file({"a": np.zeros((2, width), np.float32)}, str(directory / "model.safetensors"))
    return directory


def test_weights_are_looked_at_before_a_server_reads_them(tmp_path: Path) -> None:
    served, new, wider = (_weights(tmp_path / name, width) for name, width in (("old", 2), ("new", 2), ("wide", 3)))
    check_weights(str(new), str(served))
    check_weights(str(tmp_path / "on another machine"), "/of another machine")
    check_weights("organisation/name", str(served))
    with pytest.raises(WeightUpdateError, match="there is no such directory"):
        check_weights(str(tmp_path / "missing"), str(served))
    check_weights(str(wider), "on another machine")
    with pytest.raises(WeightUpdateError, match="not those of the running model") as misfit:
        check_weights(str(wider), str(served))
    assert misfit.value.intact
    file = new / "model.safetensors"
    whole = file.read_bytes()
    for torn in (b"", b"torn", whole[:-1], whole[:40]):
        file.write_bytes(torn)
        with pytest.raises(WeightUpdateError, match=r"safetensors|cut short"):
            check_weights(str(new), str(served))
    file.unlink()
    (new / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001.safetensors"}}')
    with pytest.raises(WeightUpdateError, match="model-00001"):
        check_weights(str(new), str(served))


def test_tensors_are_received_in_runs_that_fit() -> None:
    tensors = [TensorSpec(name, "bfloat16", (count,)) for name, count in (("a", 10), ("b", 10), ("c", 90), ("d", 1))]
    assert [[each.name for each in run] for run in buckets_of(tensors, 40)] == [["a", "b"], ["c"], ["d"]]
    assert list(buckets_of([], 40)) == []


@pytest.mark.parametrize("url", ["host:1", "ftp://host", "http://", "http://user:secret@host"])
def test_urls_of_servers(url: str) -> None:
    with pytest.raises(ValueError, match="url"):
        from_values(InferenceSettings, {"url": [url]})
    with pytest.raises(ValueError, match="url: 0 are given"):
        _ = InferenceSettings().server_url
    assert InferenceSettings(urls=("http://host:1",)).server_url == "http://host:1"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("head", "part", "told"),
    [
        (b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b" " * (1 << 24)), b"", "more than 1048576 bytes"),
        (b"\r\n", b" " * (1 << 16), "more than 1048576 bytes"),
        (b"Content-Length: 32\r\n\r\nkey sk-0123456789abcdef is wrong", b"", r"HTTP 401: key \*\*\* is wrong"),
        (b"X: sk-0123456789abcdef\nsk-0123456789abcdef\r\n\r\n", b"", r"\*\*\*"),
        (b"Transfer-Encoding: chunked\r\n\r\nsk-0123456789abcdef\r\n", b"", r"\*\*\*"),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"1;" + b"a=b;" * 999 + b"\r\nx\r\n", "Error"),
    ],
)
async def test_what_a_server_sends_is_bounded_and_tells_nobody_the_key(
    monkeypatch: pytest.MonkeyPatch, head: bytes, part: bytes, told: str
) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 1 << 20)
    async with raw_answers(b"HTTP/1.1 401 No\r\n" + head, part) as url:
        engine = client.EngineHttp(url, "sk-0123456789abcdef")
        with pytest.raises(EngineError, match=told) as caught:
            raise EngineError((await engine.get("/", timeout_s=100.0)).message)
        await engine.close()
    assert "sk-0123456789" not in str(caught.value)
