"""The items of a response's output: reasoning, a text, and calls of tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from callsheet.gateway.chat import ChatReply, ChatRequest, ReplyEnd, ToolForm
from callsheet.gateway.dialects.openai_fields import log_probs
from callsheet.gateway.dialects.response_input import encrypted
from callsheet.gateway.dialects.response_tools import CUSTOM_INPUT, LOCAL_SHELL
from callsheet.gateway.model_json import read_json

ENCRYPTED: Final = "reasoning.encrypted_content"
"""What `include` has if the caller wants reasoning in a form that it gives back."""

_FUNCTION: Final = "function"


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
