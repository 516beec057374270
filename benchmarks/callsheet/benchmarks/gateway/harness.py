"""A harness as they are: it sends messages, and changes what it sends back of replies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from callsheet.benchmarks.gateway.plan import PlannedCall, PlannedConversation
from callsheet.gateway.chat import ChatRequest, Message

_FEWEST_WORDS = 6


class CallTarget(Protocol):
    """Where a harness sends its calls."""

    async def call(self, conversation: PlannedConversation, request: ChatRequest) -> Message:
        """Returns the reply to a call."""


async def play(conversation: PlannedConversation, gateway: CallTarget) -> list[list[Message]]:
    """Makes all calls of a conversation.

    Returns:
        The messages of each call with its reply as it came, by place.
    """
    beginning: list[Message] = []
    if conversation.system is not None:
        beginning.append({"role": "system", "content": conversation.system})
    sent: list[list[Message]] = []
    whole: list[list[Message]] = []
    for call in conversation.calls:
        history = beginning if call.after is None else sent[call.after]
        messages = [*history, *_said(call, history)]
        reply = await gateway.call(conversation, ChatRequest(messages=messages, tools=conversation.tools))
        sent.append([*messages, _sent_back(call, reply)])
        whole.append([*messages, reply])
    return whole


def _said(call: PlannedCall, history: list[Message]) -> list[Message]:
    """Returns the results of the tools that the last reply calls, or what the user says."""
    calls = history[-1].get("tool_calls") if history else None
    if not calls:
        return [{"role": "user", "content": call.text}]
    results: list[Message] = [{"role": "tool", "tool_call_id": one["id"], "content": "done"} for one in calls]
    return [*results[:-1], {**results[-1], "content": call.text}]


def _sent_back(call: PlannedCall, reply: Message) -> Message:
    """Returns a reply as the harness sends it back."""
    message: dict[str, Any] = {key: value for key, value in reply.items() if key != "reasoning_content"}
    if call.keeps_reasoning and reply.get("reasoning_content") is not None:
        message["reasoning_content"] = reply["reasoning_content"]
    content = reply.get("content") or ""
    if call.strips:
        message["content"] = content.strip()
    if call.shortens and len(content.split()) >= _FEWEST_WORDS and not reply.get("tool_calls"):
        message["content"] = content.rstrip().rsplit(maxsplit=1)[0]
    if reply.get("tool_calls"):
        message["tool_calls"] = [_rewritten(one) for one in reply["tool_calls"]]
    return message


def _rewritten(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(json.loads(call["function"]["arguments"]), sort_keys=True, indent=1)
    return {**call, "function": {**call["function"], "arguments": arguments}}
