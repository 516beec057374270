"""Requests and answers of vLLM's /inference/v1/generate, and its load."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from callsheet.managers.inference.driver import (
    OthersLoad,
)
from callsheet.managers.inference.http_engine.live_requests import LiveRequest
from callsheet.managers.inference.http_engine.log_probs import Derivation
from callsheet.managers.inference.http_engine.replies import Reply
from callsheet.managers.inference.http_engine.requests import (
    new_tokens,
    sampling_parameters,
)
from callsheet.managers.inference.vllm_engine.server import VLLMServer
from callsheet.managers.models.completions import told_tokens

_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_KV_SHARE = "vllm:kv_cache_usage_perc"
_LOAD_METRICS = frozenset({_RUNNING, _WAITING, _KV_SHARE})


def generate_body(live: LiveRequest, server: VLLMServer, how: Derivation, seed: int) -> dict[str, Any]:
    """The body of a request."""
    request, sampling = live.request, live.request.sampling
    params = sampling_parameters(sampling) | {
        "max_tokens": new_tokens(request, server.bounds.limits),
        "top_k": sampling.top_k,
        "seed": seed,
    }
    if how is Derivation.AS_TOLD:
        params["logprobs"] = 0
    elif how is Derivation.OVER_TOP_K:
        params["logprobs"] = sampling.top_k
    body: dict[str, Any] = {
        "request_id": live.server_id,
        "token_ids": list(request.prompt_token_ids),
        "sampling_params": params,
        # Its texts begin with the prompt's where that ends within a character.
        "output_mode": "tokens",
        "stream": False,
    }
    if request.kv_namespace:
        body["cache_salt"] = request.kv_namespace
    return body


def server_request_id(live: LiveRequest) -> str:
    """Returns the server's own name for a request, as its aborts want it."""
    return f"generate-tokens-{live.server_id}"


def reply_of(content: Any) -> Reply:
    """Reads an answer."""
    choice = content["choices"][0]
    told = (choice.get("logprobs") or {}).get("content") or ()
    return Reply(
        token_ids=tuple(int(token) for token in choice.get("token_ids") or ()),
        finish_reason=choice.get("finish_reason"),
        own=[entry["logprob"] for entry in told],
        # The token itself is among the most likely, or comes before them.
        likeliest=[[top["logprob"] for top in entry.get("top_logprobs") or ()] for entry in told],
        versions=choice.get("weight_versions") or None,
        cached_tokens=told_tokens(content).get("tokens_cached", 0),
    )


def load_of(metrics: str, kv_tokens: int) -> OthersLoad | None:
    """All that a server has, by the text of its /metrics; None where that does not tell.

    Args:
        metrics: Lines of a name, labels in braces, and a value.
        kv_tokens: What its KV cache holds, of which it tells a share; 0 where that is not known.
    """
    seen: dict[str, float] = {}
    for line in metrics.splitlines():
        left, _, value = line.rpartition(" ")
        name = left.partition("{")[0]
        if name in _LOAD_METRICS:
            with suppress(ValueError):
                seen[name] = seen.get(name, 0.0) + float(value)
    if _RUNNING not in seen:
        return None
    sequences = int(seen[_RUNNING] + seen.get(_WAITING, 0.0))
    return OthersLoad(sequences, int(min(max(seen.get(_KV_SHARE, 0.0), 0.0), 1.0) * kv_tokens))
