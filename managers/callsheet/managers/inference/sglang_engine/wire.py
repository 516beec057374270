"""Requests and answers of SGLang's /generate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callsheet.managers.inference.driver import (
    GenerateRequest,
    Generation,
    OthersLoad,
    RequestRefusedError,
    Sampling,
)
from callsheet.managers.inference.http_engine.live_requests import LiveRequest
from callsheet.managers.inference.http_engine.log_probs import Derivation, log_probs_of
from callsheet.managers.inference.http_engine.requests import finish_reason_of, new_tokens, sampling_parameters
from callsheet.managers.inference.http_engine.versions import one_span, spans_of
from callsheet.managers.inference.sglang_engine.server import SGLangServer

_SEED_MASK = (1 << 63) - 1


def check_stops(sampling: Sampling) -> None:
    """Refuses what the server would do otherwise than asked.

    Raises:
        RequestRefusedError: It would go on beyond the stop tokens too.
    """
    if sampling.ignore_eos and sampling.stop_token_ids:
        message = "ignore_eos: with it SGLang ignores stop_token_ids as well; give only one of the two"
        raise RequestRefusedError("invalid_sampling", message)


def generate_body(live: LiveRequest, server: SGLangServer, how: Derivation, seed: int) -> dict[str, Any]:
    """The body of a request."""
    request = live.request
    body: dict[str, Any] = {
        "rid": live.server_id,
        "input_ids": list(request.prompt_token_ids),
        "sampling_params": _sampling(request, request.sampling, server, seed),
        "return_logprob": how in (Derivation.AS_TOLD, Derivation.OVER_TOP_K),
        "stream": False,
    }
    if how is Derivation.OVER_TOP_K:
        body["top_logprobs_num"] = request.sampling.top_k
    if request.kv_namespace:
        body["extra_key"] = request.kv_namespace
    return body


def _sampling(request: GenerateRequest, sampling: Sampling, server: SGLangServer, seed: int) -> dict[str, Any]:
    params = sampling_parameters(sampling) | {
        "max_new_tokens": new_tokens(request, server.bounds.limits),
        "top_k": sampling.top_k or -1,
        "skip_special_tokens": True,
        "no_stop_trim": True,
    }
    if server.deterministic:
        params["sampling_seed"] = seed & _SEED_MASK
    return params


def generation_of(
    answer: Mapping[str, Any], live: LiveRequest, how: Derivation, seed: int, start_version: int
) -> Generation:
    """Reads an answer.

    Raises:
        EngineError: It is none that a request can end with.
    """
    meta = answer.get("meta_info") or {}
    reason = finish_reason_of((meta.get("finish_reason") or {}).get("type"))
    tokens = tuple(int(token) for token in answer.get("output_ids") or ())
    told = meta.get("weight_versions")
    own = [entry[0] for entry in meta.get("output_token_logprobs") or ()]
    likeliest = [[entry[0] for entry in top or ()] for top in meta.get("output_top_logprobs") or ()]
    return Generation(
        token_ids=tokens,
        log_probs=log_probs_of(how, live.request.sampling, len(tokens), own, likeliest, joint=True),
        finish_reason=reason,
        version_spans=one_span(live.begun_version, len(tokens))
        if told is None
        else spans_of(told, len(tokens), start_version),
        seed=seed,
        cached_tokens=int(meta.get("cached_tokens") or 0),
        text=answer.get("text"),
    )


def load_of(answer: Any) -> OthersLoad | None:
    """All that a server has, by the answer of /v1/loads, or of /get_load of older ones; None where it is neither."""
    ranks = answer.get("loads") if isinstance(answer, dict) else answer
    if not isinstance(ranks, list) or not all(isinstance(rank, dict) for rank in ranks):
        return None
    running = sum(_count(rank, "num_running_reqs") for rank in ranks)
    # The older call counts those that wait among all.
    waiting = sum(_count(rank, "num_waiting_reqs") for rank in ranks if "num_reqs" not in rank)
    everything = sum(_count(rank, "num_reqs") for rank in ranks)
    tokens = sum(_count(rank, "num_used_tokens") or _count(rank, "num_tokens") for rank in ranks)
    return OthersLoad(running + waiting + everything, tokens)


def _count(told: Mapping[str, Any], name: str) -> int:
    value = told.get(name)
    return value if isinstance(value, int) and value > 0 else 0
