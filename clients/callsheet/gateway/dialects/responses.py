"""OpenAI's responses: `POST /v1/responses`.

The gateway keeps no responses: a caller sends the whole conversation each time, as agents do that set `store` to false.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from callsheet.gateway.chat import ChatReply, ChatRequest, Message, ReplyEnd, ToolForm
from callsheet.gateway.dialects.fields import Fields, Refusal
from callsheet.gateway.dialects.openai_fields import REFUSED_SAMPLING, error, log_probs, sampling
from callsheet.gateway.dialects.response_input import encrypted, read_items
from callsheet.gateway.dialects.response_tools import CUSTOM_INPUT, LOCAL_SHELL, declared_tools, read_tool_choice
from callsheet.gateway.dialects.server_sent_events import event, pieces
from callsheet.gateway.model_json import read_json

# The items of a response's output: reasoning, a text, and calls of tools.
ENCRYPTED: Final = "reasoning.encrypted_content"
"""Value of `include` with which a caller asks for reasoning in a form that it gives back."""

_FUNCTION: Final = "function"

# The events by which a stream of OpenAI's responses tells an item of the output.
_ARGUMENTS: Final[Mapping[str, tuple[str, str]]] = {
    "function_call": ("arguments", "response.function_call_arguments"),
    "custom_tool_call": ("input", "response.custom_tool_call_input"),
}
_PARTS: Final[Mapping[str, str]] = {
    "output_text": "response.output_text",
    "reasoning_text": "response.reasoning_text",
}

__all__ = ["REFUSED", "answer", "error", "events", "read"]

_WHOLE: Final = "left out, as nothing is kept between calls: send the whole conversation"
REFUSED: Final[Mapping[str, Refusal]] = REFUSED_SAMPLING | {
    "background": Refusal("false, as answers are not kept", (False,)),
    "context_management": Refusal("left out, as conversations are not edited", ([],)),
    "conversation": Refusal(_WHOLE),
    "previous_response_id": Refusal(_WHOLE),
    "prompt": Refusal("left out, as no templates of prompts are kept"),
    "truncation": Refusal("disabled, as conversations are not edited", ("disabled",)),
}
"""The fields that are refused, unless their values change nothing."""
_LOG_PROBS: Final = "message.output_text.logprobs"


def output_items(request: ChatRequest, reply: ChatReply) -> list[dict[str, Any]]:
    """The items of a reply."""
    status = "incomplete" if reply.end is ReplyEnd.LENGTH else "completed"
    items: list[dict[str, Any]] = []
    if reasoning := reply.message.get("reasoning_content"):
        items.append(_reasoning(request, reply, reasoning) | {"status": status})
    if content := reply.message.get("content"):
        items.append(_message(request, reply, content) | {"status": status})
    for index, call in enumerate(reply.message.get("tool_calls") or []):
        form = request.tool_forms.get(call["function"]["name"])
        items.append(_call(call, form) | {"id": f"fc_{reply.call_id}_{index}", "status": status})
    return items


def _reasoning(request: ChatRequest, reply: ChatReply, text: str) -> dict[str, Any]:
    return {
        "id": f"rs_{reply.call_id}",
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "encrypted_content": encrypted(text) if ENCRYPTED in request.extras else None,
    }


def _message(request: ChatRequest, reply: ChatReply, text: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    if request.sampling.log_probs:
        part["logprobs"] = [token | {"bytes": token["bytes"] or []} for token in log_probs(reply.tokens)]
    return {"id": f"msg_{reply.call_id}", "type": "message", "role": "assistant", "content": [part]}


def _call(call: Mapping[str, Any], form: ToolForm | None) -> dict[str, Any]:
    """A call in the tool's own form; one whose arguments do not fit that stays the call of a function."""
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    told = _object(arguments)
    form = form or ToolForm(_FUNCTION, name)
    if form.kind == "custom" and isinstance(text := told.get(CUSTOM_INPUT), str):
        return {"type": "custom_tool_call", "call_id": call["id"], "name": form.name, "input": text}
    if form.kind == LOCAL_SHELL and isinstance(told.get("command"), list):
        return {"type": "local_shell_call", "call_id": call["id"], "action": {"type": "exec", "env": {}} | told}
    item = {"type": "function_call", "call_id": call["id"], "name": form.name, "arguments": arguments}
    return item | ({"namespace": form.namespace} if form.namespace else {})


def _object(arguments: str) -> dict[str, Any]:
    try:
        told = read_json(arguments)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def item_events(index: int, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of an item, without their numbers; `index` is its place in the output."""
    place = {"output_index": index, "item_id": item["id"]}
    yield {"type": "response.output_item.added", "output_index": index, "item": _started(item)}
    if told := _ARGUMENTS.get(item["type"]):
        name, kind = told
        yield from _text_events(kind, place, name, item[name])
    for number, part in enumerate(item.get("content") or []):
        yield from _part_events(place | {"content_index": number}, part)
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _started(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item before anything of it is told; what has no pieces is there at once."""
    emptied: dict[str, Any] = {"arguments": "", "input": "", "content": [], "encrypted_content": None}
    return {**item, **{name: empty for name, empty in emptied.items() if name in item}, "status": "in_progress"}


def _part_events(place: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    more = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": "", **{n: [] for n in more}}}
    yield from _text_events(_PARTS[part["type"]], place, "text", part["text"], more)
    yield {"type": "response.content_part.done", **place, "part": part}


def _text_events(
    kind: str, place: Mapping[str, Any], name: str, text: str, more: Mapping[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """A text in pieces, then as a whole; log-probabilities come with the whole."""
    more = more or {}
    for piece in pieces(text):
        yield {"type": f"{kind}.delta", **place, "delta": piece, **{n: [] for n in more}}
    yield {"type": f"{kind}.done", **place, name: text, **more}


def read(body: Mapping[str, Any]) -> ChatRequest:
    """Reads the request of a caller.

    `parallel_tool_calls`, `max_tool_calls` and `text.verbosity` are not obeyed: the reply stays as it was sampled.

    Raises:
        BadRequestError: A field breaks its rule, or would change the answer in a way that the gateway cannot.
    """
    fields = Fields(body)
    fields.refuse(REFUSED)
    if text := fields.object("text"):
        text.refuse({"format": REFUSED_SAMPLING["response_format"]})
    tools, forms = declared_tools(fields)
    included = fields.texts("include")
    return ChatRequest(
        messages=_messages(fields),
        model=fields.text("model") or "",
        tools=tools,
        tool_choice=read_tool_choice(fields, tools),
        sampling=sampling(fields, max_tokens=("max_output_tokens",), log_probs=_LOG_PROBS in included),
        stream=fields.flag("stream"),
        stream_usage=True,
        template_arguments=_template_arguments(fields),
        tool_forms=forms,
        extras=frozenset({ENCRYPTED}.intersection(included)),
    )


def _messages(fields: Fields) -> list[Message]:
    messages: list[Message] = []
    if instructions := fields.text("instructions"):
        messages.append({"role": "system", "content": instructions})
    told = fields.values.get("input")
    messages += [{"role": "user", "content": told}] if isinstance(told, str) else read_items(fields.objects("input"))
    if not told:
        raise fields.error("input", "a text, or a list of at least one item")
    return messages


def _template_arguments(fields: Fields) -> Mapping[str, Any]:
    reasoning = fields.object("reasoning")
    effort = reasoning.text("effort") if reasoning else None
    return {"reasoning_effort": effort} if effort else {}


def answer(request: ChatRequest, reply: ChatReply) -> dict[str, Any]:
    """The body of an answer to a call that asked for no stream."""
    cut = reply.end is ReplyEnd.LENGTH
    return _head(request, reply) | {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output_items(request, reply),
        "usage": _usage(reply),
    }


def _head(request: ChatRequest, reply: ChatReply) -> dict[str, Any]:
    """A response as a stream starts it."""
    asked = request.sampling
    return {
        "id": f"resp_{reply.call_id}",
        "object": "response",
        "created_at": reply.created_s,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": asked.max_tokens,
        "metadata": {},
        "model": reply.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": asked.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": request.tool_choice if request.tool_choice in ("none", "required") else "auto",
        "tools": [],
        "top_p": asked.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _usage(reply: ChatReply) -> dict[str, Any]:
    """Tokens of reasoning are not counted apart."""
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }


def events(request: ChatRequest, reply: ChatReply) -> Iterator[bytes]:
    """The events of an answer to a call that asked for a stream."""
    for number, told in enumerate(_told(request, reply)):
        yield event(told | {"sequence_number": number}, told["type"])


def _told(request: ChatRequest, reply: ChatReply) -> Iterator[dict[str, Any]]:
    head = _head(request, reply)
    yield {"type": "response.created", "response": head}
    yield {"type": "response.in_progress", "response": head}
    whole = answer(request, reply)
    for index, item in enumerate(whole["output"]):
        yield from item_events(index, item)
    yield {"type": f"response.{whole['status']}", "response": whole}
