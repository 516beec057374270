"""Anthropic's messages: `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from callsheet.gateway.chat import AskedSampling, ChatReply, ChatRequest, Message, ReplyEnd, Tool
from callsheet.gateway.dialects.anthropic_content import TEXT_PARTS, blocks, read_message
from callsheet.gateway.dialects.fields import Fields, Refusal, text_of_parts
from callsheet.gateway.dialects.server_sent_events import event, pieces
from callsheet.gateway.dialects.tools import declared_function, named_tool

_ELSEWHERE: Final = "left out, as the gateway runs no tools itself"
_KEPT: Final = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
REFUSED: Final[Mapping[str, Refusal]] = {
    "container": Refusal(_ELSEWHERE),
    "mcp_servers": Refusal(_ELSEWHERE, ([],)),
    "context_management": Refusal("left out, as conversations are not edited", ({}, {"edits": []}, _KEPT)),
    "output_format": Refusal("left out, as replies are not constrained"),
    "prefill": Refusal("left out, as a reply is the model's from its first token"),
}
"""The fields that are refused, unless their values change nothing."""
_ROLES: Final = ("assistant", "system", "user")
# A line that an agent puts before its system prompt for the provider's accounts. It differs from call to call, and no
# model reads it.
_ACCOUNTS_LINE: Final = "x-anthropic-billing-header:"
_STOP_REASONS: Final[Mapping[ReplyEnd, str]] = {
    ReplyEnd.STOP: "end_turn",
    ReplyEnd.LENGTH: "max_tokens",
    ReplyEnd.TOOL_CALLS: "tool_use",
}

_ERROR_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def read(body: Mapping[str, Any]) -> ChatRequest:
    """Reads the request of a caller, of either path.

    Raises:
        BadRequestError: A field breaks its rule, or would change the answer in a way that the gateway cannot.
    """
    fields = Fields(body)
    fields.refuse(REFUSED)
    tools = [_tool(tool) for tool in fields.objects("tools")]
    return ChatRequest(
        messages=[*_system_messages(fields), *_messages(fields)],
        model=fields.text("model") or "",
        tools=tools,
        tool_choice=_tool_choice(fields, tools),
        sampling=AskedSampling(
            max_tokens=fields.integer("max_tokens", least=1),
            temperature=fields.number("temperature", least=0, most=1),
            top_p=fields.number("top_p", least=0, most=1),
            top_k=fields.integer("top_k", least=1),
            stop=fields.texts("stop_sequences"),
        ),
        stream=fields.flag("stream"),
        stream_usage=True,
        template_arguments=_template_arguments(fields),
    )


def _system_messages(fields: Fields) -> list[Message]:
    if isinstance(told := fields.values.get("system"), list):
        shown = [block for block in told if not _is_accounts_line(block)]
        text = text_of_parts(Fields({"system": shown}), "system", TEXT_PARTS)
    else:
        text = fields.text("system") or ""
    return [{"role": "system", "content": text}] if text else []


def _is_accounts_line(block: object) -> bool:
    return isinstance(block, Mapping) and str(block.get("text", "")).startswith(_ACCOUNTS_LINE)


def _messages(fields: Fields) -> list[Message]:
    told = fields.objects("messages")
    if not told:
        raise fields.error("messages", "a list of at least one message")
    if told[-1].choice("role", _ROLES) == "assistant":
        raise told[-1].error("role", "user or system at the end, as a reply is the model's from its first token")
    return [message for each in told for message in read_message(each, each.choice("role", _ROLES))]


def _tool(tool: Fields) -> Tool:
    if (kind := tool.values.get("type")) not in (None, "custom"):
        raise tool.error("type", f"custom or left out, as the gateway does not know the tool {kind!r:.80}")
    return declared_function(tool, tool.object("input_schema"))


def _tool_choice(fields: Fields, tools: Sequence[Tool]) -> str:
    """`disable_parallel_tool_use` is not obeyed: the reply stays as it was sampled."""
    chosen = fields.object("tool_choice")
    if chosen is None:
        return "auto"
    kind = chosen.choice("type", ("any", "auto", "none", "tool"))
    if kind == "tool":
        return named_tool(chosen.path("name"), chosen.name("name"), tools)
    if kind == "any" and not tools:
        raise chosen.error("type", "auto or none where there are no tools")
    return "required" if kind == "any" else kind


def _template_arguments(fields: Fields) -> Mapping[str, Any]:
    """Returns whether the model thinks, and how hard; a budget in tokens is nothing that templates know."""
    arguments: dict[str, Any] = {}
    if thinking := fields.object("thinking"):
        kind = thinking.choice("type", ("adaptive", "between_tools", "disabled", "enabled"))
        arguments["enable_thinking"] = kind != "disabled"
    if output := fields.object("output_config"):
        output.refuse({"format": Refusal("left out, as replies are not constrained")})
        if effort := output.text("effort"):
            arguments["reasoning_effort"] = effort
    return arguments


def answer(request: ChatRequest, reply: ChatReply) -> dict[str, Any]:
    """The body of an answer to a call that asked for no stream."""
    return _head(reply) | {
        "content": blocks(reply.message),
        "stop_reason": _STOP_REASONS[reply.end],
        "usage": _usage(reply, reply.completion_tokens),
    }


def token_count(tokens: int) -> dict[str, Any]:
    """The body of an answer to a call that counts tokens; `tokens` is the length of the prompt."""
    return {"input_tokens": tokens}


def _head(reply: ChatReply) -> dict[str, Any]:
    """A message as a stream starts it; which of the stop sequences ended it is not known."""
    return {
        "id": f"msg_{reply.call_id}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(reply, 0),
    }


def _usage(reply: ChatReply, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reply.cached_tokens,
        "output_tokens": output_tokens,
    }


def events(request: ChatRequest, reply: ChatReply) -> Iterator[bytes]:
    """The events of an answer to a call that asked for a stream."""
    yield _event("message_start", message=_head(reply))
    for index, block in enumerate(blocks(reply.message)):
        empty, deltas = _streamed(block)
        yield _event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    end = {"stop_reason": _STOP_REASONS[reply.end], "stop_sequence": None}
    yield _event("message_delta", delta=end, usage=_usage(reply, reply.completion_tokens))
    yield _event("message_stop")


def _event(kind: str, **data: Any) -> bytes:
    return event({"type": kind} | data, kind)


def _streamed(block: Mapping[str, Any]) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """A block as a stream starts it, and what then comes."""
    match block["type"]:
        case "thinking":
            return {"type": "thinking", "thinking": "", "signature": ""}, _thinking_deltas(block)
        case "tool_use":
            told = json.dumps(block["input"], ensure_ascii=False)
            deltas = ({"type": "input_json_delta", "partial_json": piece} for piece in pieces(told))
            return {**block, "input": {}}, deltas
        case _:
            texts = ({"type": "text_delta", "text": piece} for piece in pieces(block["text"]))
            return {"type": "text", "text": ""}, texts


def _thinking_deltas(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for piece in pieces(block["thinking"]):
        yield {"type": "thinking_delta", "thinking": piece}
    yield {"type": "signature_delta", "signature": block["signature"]}


def error(status: int, message: str, *, field: str | None = None, code: str | None = None) -> dict[str, Any]:
    """The body of an error, by its HTTP status; `message` names the field."""
    kind = _ERROR_TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
