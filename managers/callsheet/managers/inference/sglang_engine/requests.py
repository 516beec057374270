"""Requests and answers of SGLang's /generate, and its load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callsheet.managers.inference.driver import (
    GenerateRequest,
    OthersLoad,
    RequestRefusedError,
    Sampling,
)
from callsheet.managers.inference.http_engine.live_requests import LiveRequest
from callsheet.managers.inference.http_engine.log_probs import Derivation
from callsheet.managers.inference.http_engine.replies import Reply
from callsheet.managers.inference.http_engine.requests import new_tokens, sampling_parameters
from callsheet.managers.inference.sglang_engine.server import SGLangServer


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
        params["sampling_seed"] = seed
    return params


def reply_of(content: Any) -> Reply:
    """Reads an answer."""
    meta = content.get("meta_info") or {}
    return Reply(
        token_ids=tuple(int(token) for token in content.get("output_ids") or ()),
        finish_reason=(meta.get("finish_reason") or {}).get("type"),
        own=[entry[0] for entry in meta.get("output_token_logprobs") or ()],
        likeliest=[[entry[0] for entry in top or ()] for top in meta.get("output_top_logprobs") or ()],
        versions=meta.get("weight_versions"),
        cached_tokens=int(meta.get("cached_tokens") or 0),
        text=content.get("text"),
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
