"""A call of any dialect, as the gateway works on it: messages in the shape of OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

Message = Mapping[str, Any]
"""A message: `role`, `content`, and of an assistant `reasoning_content` and `tool_calls` (arguments are a string)."""

Tool = Mapping[str, Any]
"""A tool as chat completions declare it: `{"type": "function", "function": {"name", "description", "parameters"}}`."""

FAILURE_HEADER: Final = "x-callsheet-failure"
"""In this header a gateway names the failure of an action, as "KIND/reason"."""
RETRY_HEADER: Final = "x-stainless-retry-count"
"""In this header OpenAI's clients count their repeats of one request."""
_NO_TOOLS: Final[tuple[Tool, ...]] = ()


class ReplyEnd(Enum):
    """Reason why a reply ended, by the words of chat completions."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class AskedSampling:
    """How a caller wants to sample; None leaves it to the trainer's or the engine's setting.

    Attributes:
        max_tokens: The most new tokens.
        temperature: 0 is greedy.
        top_p: Share of probability that is kept.
        top_k: Tokens that are kept.
        seed: Of the draw.
        stop: Texts that end the reply, left out of it.
        log_probs: Whether the answer is to have the tokens' log-probabilities.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    log_probs: bool = False


@dataclass(frozen=True, slots=True)
class ToolForm:
    """How a dialect speaks of a tool that the model knows as a function of `ChatRequest.tools`.

    Attributes:
        kind: The dialect's kind of tool, such as "custom".
        name: The dialect's name of it.
        namespace: What the dialect groups it under; empty for none.
    """

    kind: str
    name: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A caller's request, whatever the dialect.

    Attributes:
        messages: The conversation so far, oldest first.
        model: The model's name, as the caller gave it.
        tools: The tools the model may call.
        tool_choice: "auto", "none", "required", or the name of one tool.
        sampling: How to sample.
        stream: Whether the answer is a stream of events.
        stream_usage: Whether a stream ends with the usage.
        template_arguments: Arguments of the chat template, such as `enable_thinking`.
        prompt: A text or token ids to go on from, instead of messages; None if there are messages. The reply's
            content is then all its text: neither reasoning nor calls of tools are taken out of it.
        tool_forms: By the names of `tools`, those that the dialect writes in another way. Only dialects read it.
        extras: Values that a dialect needs again for its answer. Only dialects read it.
    """

    messages: Sequence[Message]
    model: str = ""
    tools: Sequence[Tool] = _NO_TOOLS
    tool_choice: str = "auto"
    sampling: AskedSampling = field(default_factory=AskedSampling)
    stream: bool = False
    stream_usage: bool = False
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    prompt: str | Sequence[int] | None = None
    tool_forms: Mapping[str, ToolForm] = field(default_factory=dict)
    extras: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ReplyToken:
    """A token of a reply, for callers that asked for log-probabilities.

    Attributes:
        token_id: Its id.
        text: Its text; a token that is a part of a character only has replacement characters.
        log_prob: Natural logarithm of its probability.
        raw: Its bytes; those of all tokens make the text. None where they are those of `text`.
    """

    token_id: int
    text: str
    log_prob: float
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The model's answer, whatever the dialect.

    Attributes:
        call_id: Id of the call, unique in the gateway.
        created_s: Time of the request, in seconds since 1970.
        model: The model's name, as the caller gave it.
        message: The assistant's message.
        end: The reason for which the reply ended.
        prompt_tokens: Tokens of the prompt.
        completion_tokens: Tokens that were sampled.
        cached_tokens: Tokens of the prompt that the engine had in its cache.
        tokens: The sampled tokens; empty unless the caller asked for log-probabilities.
    """

    call_id: str
    created_s: int
    model: str
    message: Message
    end: ReplyEnd
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    tokens: Sequence[ReplyToken] = ()


class BadRequestError(ValueError):
    """A call that breaks a rule: it names the field, the value and the rule.

    Attributes:
        field: The field, such as "messages[2].role".
        rule: What its value is to be.
    """

    def __init__(self, field: str, value: object, rule: str) -> None:
        super().__init__(f"{field} is {value!r:.200}; it must be {rule}")
        self.field = field
        self.rule = rule
