"""OpenAI's chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from callsheet.gateway.chat import ChatReply, ChatRequest, Message, Tool
from callsheet.gateway.dialects.fields import Fields, Refusal, text_of_parts
from callsheet.gateway.dialects.openai_fields import (
    REFUSED_SAMPLING,
    error,
    log_probs,
    sampling,
    usage,
)
from callsheet.gateway.dialects.server_sent_events import DONE, event, pieces
from callsheet.gateway.dialects.tools import called_arguments, declared_function, named_tool

__all__ = ["REFUSED", "answer", "error", "events", "read"]

REFUSED: Final[Mapping[str, Refusal]] = REFUSED_SAMPLING | {
    "audio": Refusal("left out, as the model writes text alone"),
    "modalities": Refusal('["text"], as the model writes text alone', (["text"],)),
    "functions": Refusal("left out; `tools` has taken its place", ([],)),
    "function_call": Refusal("left out; `tool_choice` has taken its place", ("auto", "none")),
    "web_search_options": Refusal("left out, as the gateway searches nothing"),
}
"""The fields that are refused, unless their values change nothing."""
_ROLES: Final[Mapping[str, str]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_TEXT_PARTS: Final = {"text": "text"}
_ASSISTANT_PARTS: Final = {"text": "text", "refusal": "refusal"}


def read(body: Mapping[str, Any]) -> ChatRequest:
    """Returns the request of a caller.

    Raises:
        BadRequestError: A field breaks its rule, or would change the answer in a way that the gateway cannot.
    """
    fields = Fields(body)
    fields.refuse(REFUSED)
    messages = [_message(message) for message in fields.objects("messages")]
    if not messages:
        raise fields.error("messages", "a list of at least one message")
    tools = [_tool(tool) for tool in fields.objects("tools")]
    options = fields.object("stream_options")
    return ChatRequest(
        messages=messages,
        model=fields.text("model") or "",
        tools=tools,
        tool_choice=_tool_choice(fields, tools),
        sampling=sampling(
            fields, max_tokens=("max_completion_tokens", "max_tokens"), log_probs=fields.flag("logprobs")
        ),
        stream=fields.flag("stream"),
        stream_usage=options is not None and options.flag("include_usage"),
        template_arguments=_template_arguments(fields),
    )


def _message(message: Fields) -> Message:
    role = _ROLES[message.choice("role", _ROLES)]
    if role == "assistant":
        return _assistant_message(message)
    read_message = {"role": role, "content": text_of_parts(message, "content", _TEXT_PARTS)}
    if role == "tool":
        read_message["tool_call_id"] = message.name("tool_call_id")
    return read_message


def _assistant_message(message: Fields) -> Message:
    read_message: dict[str, Any] = {
        "role": "assistant",
        "content": text_of_parts(message, "content", _ASSISTANT_PARTS),
    }
    if reasoning := message.text("reasoning_content") or message.text("reasoning"):
        read_message["reasoning_content"] = reasoning
    if calls := [_tool_call(call) for call in message.objects("tool_calls")]:
        read_message["tool_calls"] = calls
    return read_message


def _tool_call(call: Fields) -> dict[str, Any]:
    function = call.required_object("function")
    return {
        "id": call.name("id"),
        "type": "function",
        "function": {"name": function.name("name"), "arguments": called_arguments(function, "arguments")},
    }


def _tool(tool: Fields) -> Tool:
    tool.choice("type", ("function",))
    function = tool.required_object("function")
    return declared_function(function, function.object("parameters"))


def _tool_choice(fields: Fields, tools: Sequence[Tool]) -> str:
    value = fields.values.get("tool_choice")
    if value is None:
        return "auto"
    if isinstance(value, str):
        choice = fields.choice("tool_choice", ("auto", "none", "required"))
        if choice == "required" and not tools:
            raise fields.error("tool_choice", "auto or none where there are no tools")
        return choice
    chosen = fields.required_object("tool_choice")
    chosen.choice("type", ("function",))
    function = chosen.required_object("function")
    return named_tool(function.path("name"), function.name("name"), tools)


def _template_arguments(fields: Fields) -> Mapping[str, Any]:
    """Returns the arguments of the chat template; `chat_template_kwargs` is the field of vLLM and SGLang."""
    told = fields.object("chat_template_kwargs")
    arguments = dict(told.values) if told else {}
    if effort := fields.text("reasoning_effort"):
        arguments.setdefault("reasoning_effort", effort)
    return arguments


def answer(request: ChatRequest, reply: ChatReply) -> dict[str, Any]:
    """The body of an answer to a call that asked for no stream."""
    choice = {
        "index": 0,
        "message": _answered_message(reply.message),
        "logprobs": _answered_log_probs(request, reply),
        "finish_reason": reply.end.value,
    }
    return _head(reply, "chat.completion") | {"choices": [choice], "usage": usage(reply)}


def _answered_message(message: Message) -> dict[str, Any]:
    """Reasoning is where vLLM, SGLang and the frameworks that speak to them have it."""
    calls = message.get("tool_calls") or []
    answered: dict[str, Any] = {
        "role": "assistant",
        "content": message.get("content") or (None if calls else ""),
        "refusal": None,
    }
    if reasoning := message.get("reasoning_content"):
        answered["reasoning_content"] = reasoning
    if calls:
        answered["tool_calls"] = [dict(call) for call in calls]
    return answered


def _answered_log_probs(request: ChatRequest, reply: ChatReply) -> dict[str, Any] | None:
    return {"content": log_probs(reply.tokens), "refusal": None} if request.sampling.log_probs else None


def _head(reply: ChatReply, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{reply.call_id}", "object": kind, "created": reply.created_s, "model": reply.model}


def events(request: ChatRequest, reply: ChatReply) -> Iterator[bytes]:
    """The events of an answer to a call that asked for a stream.

    Log-probabilities of all tokens come in one chunk before the end, as a token may be of no text that is shown.
    """
    head = _head(reply, "chat.completion.chunk") | ({"usage": None} if request.stream_usage else {})
    for delta in _deltas(reply.message):
        yield event(head | {"choices": [_chunk_choice(delta)]})
    if request.sampling.log_probs:
        yield event(head | {"choices": [_chunk_choice({}) | {"logprobs": _answered_log_probs(request, reply)}]})
    yield event(head | {"choices": [_chunk_choice({}, reply.end.value)]})
    if request.stream_usage:
        yield event(head | {"choices": [], "usage": usage(reply)})
    yield DONE


def _chunk_choice(delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _deltas(message: Message) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in pieces(message.get("reasoning_content") or ""):
        yield {"reasoning_content": piece}
    for piece in pieces(message.get("content") or ""):
        yield {"content": piece}
    for index, call in enumerate(message.get("tool_calls") or []):
        function = call["function"]
        named = {"id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": ""}}
        yield {"tool_calls": [{"index": index} | named]}
        for piece in pieces(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
