"""From what a caller asks for and what its trainer forces to how a generate samples; from outcomes to replies. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from callsheet.client import FinishReason, GenerateResult, Sampling
from callsheet.gateway.chat import AskedSampling, ReplyEnd, ReplyToken
from callsheet.gateway.conversations.turns import Generated, GeneratedSpan
from callsheet.gateway.server.faults import BAD_REQUEST, PROMPT, TOO_LONG, NoReplyError
from callsheet.gateway.server.keys import ForcedSampling


def sampling_of(
    asked: AskedSampling,
    forced: ForcedSampling,
    *,
    stop_token_ids: Collection[int],
    prompt_tokens: int,
    context_length: int | None,
    default_max_tokens: int,
) -> Sampling:
    """Returns how to sample.

    Args:
        asked: By the caller.
        forced: By its trainer.
        stop_token_ids: What ends a reply of the model.
        prompt_tokens: Length of the prompt.
        context_length: The most tokens of prompt and reply; None if it is not known.
        default_max_tokens: For callers that name no number.

    Raises:
        NoReplyError: The prompt leaves no room for a reply.
    """
    limits = [asked.max_tokens or default_max_tokens]
    if forced.max_tokens is not None:
        limits.append(forced.max_tokens)
    if context_length is not None:
        room = context_length - prompt_tokens
        if room < 1:
            said = f"the prompt has {prompt_tokens} tokens; the model's maximum context length is {context_length}"
            raise NoReplyError(BAD_REQUEST, f"prompt is too long: {said}", field=PROMPT, code=TOO_LONG)
        limits.append(room)
    return Sampling(
        max_new_tokens=min(limits),
        temperature=_first(forced.temperature, asked.temperature, 1.0),
        top_p=_first(forced.top_p, asked.top_p, 1.0),
        top_k=_first(forced.top_k, asked.top_k, 0),
        seed=asked.seed,
        stop=tuple(asked.stop),
        stop_token_ids=tuple(sorted(stop_token_ids)),
    )


def generated_of(result: GenerateResult) -> Generated:
    """Returns what an engine sampled, as conversations take it."""
    spans = tuple(GeneratedSpan(span.version, span.begin, span.end) for span in result.policy_versions)
    end = ReplyEnd.LENGTH if result.finish_reason is FinishReason.LENGTH else ReplyEnd.STOP
    return Generated(result.token_ids, result.log_probs, spans, end, result.cached_tokens)


def reply_tokens(generated: Generated, bytes_of: Callable[[int], bytes]) -> tuple[ReplyToken, ...]:
    """Returns the tokens of a reply for a caller that asked for their log-probabilities."""
    pairs = zip(generated.token_ids, generated.log_probs, strict=True) if generated.log_probs else ()
    told = ((token, bytes_of(token), log_prob) for token, log_prob in pairs)
    return tuple(ReplyToken(token, raw.decode(errors="replace"), log_prob, raw) for token, raw, log_prob in told)


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)
