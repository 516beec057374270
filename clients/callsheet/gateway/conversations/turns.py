"""One call of a conversation, and what is kept of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from callsheet.gateway.chat import ChatRequest, Message, ReplyEnd


class Drift(Enum):
    """How the prompt of a call stands to the tokens of the calls before it."""

    CLEAN = "clean"
    """It keeps every token of the call that it continues, or begins a conversation of its own."""
    REALIGNED = "realigned"
    """The harness changed the end of the last reply: the tokens from there on are replaced, and are not trained on."""
    FORKED = "forked"
    """It repeats a reply whose tokens could not be kept."""


@dataclass(frozen=True, slots=True)
class GeneratedSpan:
    """Tokens `begin` to `end - 1` of a reply were made by policy `version`."""

    version: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Generated:
    """Tokens that an engine sampled for a prompt.

    Attributes:
        token_ids: The reply, the token that ended it included.
        log_probs: Natural logarithm of each token's probability; none if the engine does not report them.
        versions: The policy version of each span of tokens; none if the engine does not report them.
        end: STOP, or LENGTH for a reply that was cut; whether it calls tools is found out from its tokens.
        cached_tokens: Tokens of the prompt that the engine had in its cache.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()
    versions: tuple[GeneratedSpan, ...] = ()
    end: ReplyEnd = ReplyEnd.STOP
    cached_tokens: int = 0

    def __post_init__(self) -> None:
        if self.log_probs and len(self.log_probs) != len(self.token_ids):
            raise ValueError(
                f"log_probs has {len(self.log_probs)} numbers; it must have one for each of the"
                f" {len(self.token_ids)} tokens"
            )


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call whose prompt is known and whose reply is not.

    Attributes:
        request: The call.
        token_ids: Its prompt.
        parent: The turn that it continues; None if it begins anew.
        kept: How many tokens of the parent the prompt begins with.
        known_messages: How many of the request's messages are in the parent, its reply included.
        drift: How the prompt stands to the tokens before it.
        reason: Why it is not clean; empty if it is.
        prompt_digest: Digest of the request's messages.
    """

    request: ChatRequest
    token_ids: tuple[int, ...]
    parent: int | None
    kept: int
    known_messages: int
    drift: Drift
    reason: str
    prompt_digest: str


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """One call with its reply. Its tokens are the first `kept` ones of its parent, its own prompt's and its reply's.

    Attributes:
        number: Its place in the order of commits, from 0.
        parent: The turn that it continues; None if it begins anew.
        kept: How many tokens of the parent's prompt and reply it begins with.
        suffix: The other tokens of its prompt.
        reply: What was sampled.
        messages: The messages that its parent has not.
        message: The reply as a message.
        prompt_digest: Digest of all its messages without the reply.
        digest: Digest of all its messages with the reply.
        length: How many messages these are.
        drift: How its prompt stands to the tokens before it.
        reason: Why it is not clean.
    """

    number: int
    parent: int | None
    kept: int
    suffix: tuple[int, ...]
    reply: Generated
    messages: tuple[Message, ...]
    message: Message
    prompt_digest: str
    digest: str
    length: int
    drift: Drift
    reason: str

    @property
    def end(self) -> ReplyEnd:
        """Returns the reason for which the reply ended, as its caller sees it."""
        calls_tools = bool(self.message.get("tool_calls")) and self.reply.end is ReplyEnd.STOP
        return ReplyEnd.TOOL_CALLS if calls_tools else self.reply.end

    @property
    def prompt_length(self) -> int:
        """Tokens before the reply."""
        return self.kept + len(self.suffix)

    @property
    def total_length(self) -> int:
        """Tokens of the prompt and the reply."""
        return self.prompt_length + len(self.reply.token_ids)


def to_record(turn: ConversationTurn) -> dict[str, Any]:
    """Returns a turn as JSON can hold it. A record is written once and never changes."""
    return {
        "turn": turn.number,
        "parent": turn.parent,
        "kept": turn.kept,
        "suffix": list(turn.suffix),
        "reply": list(turn.reply.token_ids),
        "log_probs": list(turn.reply.log_probs),
        "versions": [[span.version, span.begin, span.end] for span in turn.reply.versions],
        "end": turn.reply.end.value,
        "cached_tokens": turn.reply.cached_tokens,
        "messages": [dict(message) for message in turn.messages],
        "message": dict(turn.message),
        "prompt_digest": turn.prompt_digest,
        "digest": turn.digest,
        "length": turn.length,
        "drift": turn.drift.value,
        "reason": turn.reason,
    }


def from_record(record: Mapping[str, Any]) -> ConversationTurn:
    """Returns the turn of a record."""
    return ConversationTurn(
        number=record["turn"],
        parent=record["parent"],
        kept=record["kept"],
        suffix=tuple(record["suffix"]),
        reply=Generated(
            tuple(record["reply"]),
            tuple(record["log_probs"]),
            tuple(GeneratedSpan(*span) for span in record["versions"]),
            ReplyEnd(record["end"]),
            record["cached_tokens"],
        ),
        messages=tuple(record["messages"]),
        message=record["message"],
        prompt_digest=record["prompt_digest"],
        digest=record["digest"],
        length=record["length"],
        drift=Drift(record["drift"]),
        reason=record["reason"],
    )
