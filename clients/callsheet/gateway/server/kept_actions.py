"""What is kept of a call's action before it is submitted, so that a retry submits the very same one. Pure.

The prompt is kept as what it adds to the turn that it continues. So neither a template that tells the date, nor a
context that became another, nor a newer gateway makes it another action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from callsheet.client import Generate, Sampling
from callsheet.client.words.sampling import LogProbsMode
from callsheet.gateway.chat import ChatRequest
from callsheet.gateway.conversations.conversation import Conversation
from callsheet.gateway.conversations.turns import Drift, Prepared


def to_kept(prepared: Prepared, action: Generate) -> dict[str, Any]:
    """Returns a prompt and its action as JSON can hold them."""
    sampling = asdict(action.sampling) | {"log_probs_mode": action.sampling.log_probs_mode.value}
    return {
        "parent": prepared.parent,
        "kept": prepared.kept,
        "suffix": list(prepared.token_ids[prepared.kept :]),
        "known_messages": prepared.known_messages,
        "drift": prepared.drift.value,
        "reason": prepared.reason,
        "prompt_digest": prepared.prompt_digest,
        "sampling": sampling,
        "model": action.model,
    }


def from_kept(kept: Mapping[str, Any], request: ChatRequest, conversation: Conversation) -> tuple[Prepared, Generate]:
    """Returns the prompt and the action that were kept.

    Args:
        kept: As `to_kept` made it.
        request: The call, which the retry repeats.
        conversation: Of the call. It may have had turns since.
    """
    parent = kept["parent"]
    known = () if parent is None else conversation.tokens_of(parent)[: kept["kept"]]
    prepared = Prepared(
        request,
        (*known, *kept["suffix"]),
        parent,
        kept["kept"],
        kept["known_messages"],
        Drift(kept["drift"]),
        kept["reason"],
        kept["prompt_digest"],
    )
    said = kept["sampling"]
    sampling = Sampling(
        **said
        | {
            "stop": tuple(said["stop"]),
            "stop_token_ids": tuple(said["stop_token_ids"]),
            "log_probs_mode": LogProbsMode(said["log_probs_mode"]),
        }
    )
    return prepared, Generate(prepared.token_ids, sampling, kept["model"])
