"""OpenAI's responses: `POST /v1/responses`.

The gateway keeps no responses: a caller sends the whole conversation each time, as agents do that set `store` to false.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from callsheet.gateway.chat import ChatReply, ChatRequest, Message, ReplyEnd
from callsheet.gateway.dialects.fields import Fields, Refusal
from callsheet.gateway.dialects.openai_fields import REFUSED_SAMPLING, error, sampling
from callsheet.gateway.dialects.response_events import item_events
from callsheet.gateway.dialects.response_input import read_items
from callsheet.gateway.dialects.response_output import ENCRYPTED, output_items
from callsheet.gateway.dialects.response_tools import declared_tools, read_tool_choice
from callsheet.gateway.dialects.server_sent_events import event

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


def read(body: Mapping[str, Any]) -> ChatRequest:
    """What a caller asks for.

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
