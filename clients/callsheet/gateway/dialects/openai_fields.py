"""Common parts of OpenAI's protocols: fields that sample, fields that are refused, and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from callsheet.gateway.chat import AskedSampling, ChatReply, ReplyToken
from callsheet.gateway.dialects.fields import Fields, Refusal

_TRAINED: Final = "as a trainer needs the model's own probabilities"
_ONE: Final = "1, as a call has one reply"
_FREE: Final = "left out, as replies are not constrained"

REFUSED_SAMPLING: Final[dict[str, Refusal]] = {
    "n": Refusal(_ONE, (1,)),
    "best_of": Refusal(_ONE, (1,)),
    "frequency_penalty": Refusal(f"0, {_TRAINED}", (0,)),
    "presence_penalty": Refusal(f"0, {_TRAINED}", (0,)),
    "repetition_penalty": Refusal(f"1, {_TRAINED}", (1,)),
    "logit_bias": Refusal(f"left out or empty, {_TRAINED}", ({},)),
    "min_p": Refusal(f"0, {_TRAINED}", (0,)),
    "min_tokens": Refusal(f"0, {_TRAINED}", (0,)),
    "ignore_eos": Refusal(f"false, {_TRAINED}", (False,)),
    "use_beam_search": Refusal(f"false, {_TRAINED}", (False,)),
    "stop_token_ids": Refusal("left out or empty; `stop` takes texts", ([],)),
    "top_logprobs": Refusal("0, as only the sampled tokens' log-probabilities are known", (0,)),
    "response_format": Refusal('{"type": "text"}, as replies are not constrained', ({"type": "text"},)),
    "structured_outputs": Refusal(_FREE),
    "guided_json": Refusal(_FREE),
    "guided_regex": Refusal(_FREE),
    "guided_choice": Refusal(_FREE),
    "guided_grammar": Refusal(_FREE),
    "json_schema": Refusal(_FREE),
    "regex": Refusal(_FREE),
    "ebnf": Refusal(_FREE),
}
"""Fields that would change how tokens are drawn; names beyond OpenAI's own are those of vLLM and SGLang."""

_ERROR_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


def sampling(body: Fields, *, max_tokens: Sequence[str], log_probs: bool) -> AskedSampling:
    """How a caller wants to sample.

    Args:
        body: The request's body.
        max_tokens: Fields that bound the reply's length; the first that is there counts.
        log_probs: Whether the answer is to have log-probabilities.

    Raises:
        BadRequestError: A field breaks its rule.
    """
    bounds = [body.integer(name, least=1) for name in max_tokens]
    return AskedSampling(
        max_tokens=next((bound for bound in bounds if bound is not None), None),
        temperature=body.number("temperature", least=0, most=2),
        top_p=body.number("top_p", least=0, most=1),
        top_k=_top_k(body),
        seed=body.integer("seed", least=-(2**63)),
        stop=body.texts("stop"),
        log_probs=log_probs,
    )


def _top_k(body: Fields) -> int | None:
    """vLLM and SGLang say "all tokens" by -1, and vLLM by 0 too."""
    return body.integer("top_k", least=-1) if body.values.get("top_k") not in (-1, 0) else None


def log_probs(tokens: Sequence[ReplyToken]) -> list[dict[str, Any]]:
    """Log-probabilities as chat completions and responses have them."""
    return [
        {"token": token.text, "bytes": bytes_of(token), "logprob": token.log_prob, "top_logprobs": []}
        for token in tokens
    ]


def bytes_of(token: ReplyToken) -> list[int] | None:
    """The bytes of a token; None where nobody knows which part of a character it is."""
    if token.raw is None and "\N{REPLACEMENT CHARACTER}" in token.text:
        return None
    return list(token.text.encode(errors="surrogatepass") if token.raw is None else token.raw)


def usage(reply: ChatReply) -> dict[str, Any]:
    """The usage as chat completions and completions have it."""
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


def error(status: int, message: str, *, field: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The body of an error.

    Args:
        status: The answer's HTTP status.
        message: For people.
        field: The request's field that broke a rule.
        code: What programs tell it by.
    """
    kind = _ERROR_TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": field, "code": code}}
