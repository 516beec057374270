"""OpenAI's legacy completions: `POST /v1/completions`, which go on from a text or from token ids."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from callsheet.gateway.chat import ChatReply, ChatRequest, ReplyEnd
from callsheet.gateway.dialects.fields import Fields, Refusal
from callsheet.gateway.dialects.openai_fields import REFUSED_SAMPLING, bytes_of, error, sampling, usage
from callsheet.gateway.dialects.server_sent_events import DONE, event, pieces

__all__ = ["REFUSED", "answer", "error", "events", "read"]

REFUSED: Final[Mapping[str, Refusal]] = REFUSED_SAMPLING | {
    "echo": Refusal("false, as prompts are not scored", (False,)),
    "suffix": Refusal("left out, as a reply only goes on", ("",)),
    "logprobs": Refusal("0 or 1, as only the sampled tokens' log-probabilities are known", (0, 1)),
}
"""The fields that are refused, unless their values change nothing."""
_PROMPT: Final = "a text or a list of token ids, or a list with one of them"


def read(body: Mapping[str, Any]) -> ChatRequest:
    """Returns the request of a caller.

    Raises:
        BadRequestError: A field breaks its rule, or would change the answer in a way that the gateway cannot.
    """
    fields = Fields(body)
    fields.refuse(REFUSED)
    options = fields.object("stream_options")
    return ChatRequest(
        messages=(),
        model=fields.text("model") or "",
        sampling=sampling(fields, max_tokens=("max_tokens",), log_probs=_asks_log_probs(fields)),
        stream=fields.flag("stream"),
        stream_usage=options is not None and options.flag("include_usage"),
        prompt=_prompt(fields),
    )


def _asks_log_probs(fields: Fields) -> bool:
    """Here 0 asks for the sampled tokens' log-probabilities; 1 would add those of the likeliest ones."""
    value = fields.values.get("logprobs")
    return value is not None and value is not False


def _prompt(fields: Fields) -> str | Sequence[int]:
    told = fields.values.get("prompt")
    if isinstance(told, list) and len(told) == 1 and isinstance(told[0], str | list):
        told = told[0]
    if isinstance(told, str) and told:
        return told
    if isinstance(told, list) and told and all(type(token) is int and token >= 0 for token in told):
        return tuple(told)
    raise fields.error("prompt", _PROMPT)


def answer(request: ChatRequest, reply: ChatReply) -> dict[str, Any]:
    """The body of an answer to a call that asked for no stream."""
    choice = _choice(reply.message.get("content") or "", _finish_reason(reply)) | _log_probs(request, reply)
    return _head(reply) | {"choices": [choice], "usage": usage(reply)}


def _head(reply: ChatReply) -> dict[str, Any]:
    return {
        "id": f"cmpl-{reply.call_id}",
        "object": "text_completion",
        "created": reply.created_s,
        "model": reply.model,
    }


def _choice(text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}


def _finish_reason(reply: ChatReply) -> str:
    return "length" if reply.end is ReplyEnd.LENGTH else "stop"


def _log_probs(request: ChatRequest, reply: ChatReply) -> dict[str, Any]:
    if not request.sampling.log_probs:
        return {}
    characters = codecs.getincrementaldecoder("utf-8")("replace")
    told = {
        "tokens": [token.text for token in reply.tokens],
        "token_logprobs": [token.log_prob for token in reply.tokens],
        "top_logprobs": None,
        "text_offset": [0, *accumulate(len(characters.decode(bytes(bytes_of(token) or ()))) for token in reply.tokens)][
            :-1
        ],
    }
    return {"logprobs": told}


def events(request: ChatRequest, reply: ChatReply) -> Iterator[bytes]:
    """The events of an answer to a call that asked for a stream; log-probabilities come with its last chunk."""
    head = _head(reply) | ({"usage": None} if request.stream_usage else {})
    for piece in pieces(reply.message.get("content") or ""):
        yield event(head | {"choices": [_choice(piece, None)]})
    yield event(head | {"choices": [_choice("", _finish_reason(reply)) | _log_probs(request, reply)]})
    if request.stream_usage:
        yield event(head | {"choices": [], "usage": usage(reply)})
    yield DONE
