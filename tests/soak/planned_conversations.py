"""Conversations that are drawn from a seed before they begin: what is said, and what the model replies.

A harness plays them as harnesses are: it sends messages, and changes what it sends back of replies.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from callsheet.gateway.chat import ChatRequest, Message, Tool
from callsheet.managers.inference.scripted_engine.script import ScriptedReply

from tests.support.chat_model import END, words

KEY: Final = r"\[call (\w+)\]"
"""Finds in a prompt which reply is its own."""
TOOLS: Final[tuple[Tool, ...]] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Does {name}.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
    for name in ("run", "look_up")
)
_SPACES: Final = ("", " ", "\n", "\n\n", "  \n", "\t", " \u00a0")
_FEWEST_CALLS: Final = 6
_MOST_CALLS: Final = 14
"""Branches left out."""
_BRANCHING: Final = 0.3
"""Share of conversations in which sub-agents make branches."""
_FEWEST_WORDS: Final = 6
"""Of a reply that is sent back shortened."""

Encode = Callable[[str], Sequence[int]]
CallModel = Callable[[ChatRequest], Awaitable[Message]]
"""Makes a call and returns the reply."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call.

    Attributes:
        key: Names it, and its reply.
        after: The place of the call whose reply it follows; None begins.
        text: What the user or the tool says.
        reply: What the engine answers.
        keeps_reasoning: Whether the harness sends the reasoning of the reply back.
        strips: Whether it strips the reply's whitespace.
        shortens: Whether it sends only the beginning of the reply back.
    """

    key: str
    after: int | None
    text: str
    reply: ScriptedReply
    keeps_reasoning: bool
    strips: bool
    shortens: bool


@dataclass(frozen=True, slots=True)
class PlannedConversation:
    """One conversation.

    Attributes:
        name: Unique.
        system: What the harness tells the model first; None is nothing.
        tools: The tools.
        calls: In their order.
    """

    name: str
    system: str | None
    tools: tuple[Tool, ...]
    calls: tuple[PlannedCall, ...]

    @property
    def branches(self) -> bool:
        """Whether a reply is followed by more than one call."""
        return len({call.after for call in self.calls}) < len(self.calls)


def plan_conversations(count: int, seed: int, encode: Encode, *, shortened: float) -> list[PlannedConversation]:
    """Returns the conversations of a seed.

    Args:
        count: How many.
        seed: All is drawn from it.
        encode: The model's tokenizer.
        shortened: Share of replies of which the harness sends back only the beginning.
    """
    return [
        _conversation(f"c{number}", random.Random(f"{seed}-{number}"), encode, shortened) for number in range(count)
    ]


def script_of(plans: Sequence[PlannedConversation]) -> str:
    """Returns the script that has an engine answer as planned."""
    replies = [
        {
            "key": call.key,
            "token_ids": call.reply.token_ids,
            "log_probs": call.reply.log_probs,
            "versions": call.reply.versions,
            "cut": call.reply.cut,
        }
        for plan in plans
        for call in plan.calls
    ]
    return json.dumps({"key": KEY, "replies": replies})


def _conversation(name: str, rng: random.Random, encode: Encode, shortened: float) -> PlannedConversation:
    branching = rng.random() < _BRANCHING
    tools = TOOLS if rng.random() < 0.8 else ()
    calls: list[PlannedCall] = []
    last: int | None = None
    for _ in range(rng.randint(_FEWEST_CALLS, _MOST_CALLS)):
        siblings = rng.randint(2, 3) if branching and rng.random() < 0.3 else 1
        for _ in range(siblings):
            calls.append(_call(f"{name}x{len(calls)}", last, rng, encode, shortened))
        last = len(calls) - 1
    system = words(rng, 20) if rng.random() < 0.7 else None
    return PlannedConversation(name, system, tools, tuple(calls))


def _call(key: str, after: int | None, rng: random.Random, encode: Encode, shortened: float) -> PlannedCall:
    text = f"{rng.choice(_SPACES)}[call {key}] {words(rng, rng.randint(3, 30))}{rng.choice(_SPACES)}"
    return PlannedCall(
        key=key,
        after=after,
        text=text,
        reply=_reply(key, rng, encode),
        keeps_reasoning=rng.random() < 0.3,
        strips=rng.random() < 0.5,
        shortens=rng.random() < shortened,
    )


def _reply(key: str, rng: random.Random, encode: Encode) -> ScriptedReply:
    """Returns a reply, its log-probabilities and its versions."""
    kind = rng.choices(("text", "call", "split"), (5, 4, 1))[0]
    thought = f"<think>\n{words(rng, 12)}\n</think>\n\n" if rng.random() < 0.5 else ""
    said = rng.choice(_SPACES) + words(rng, rng.randint(1, 25)) + rng.choice(_SPACES)
    if kind == "call":
        said += _call_text(rng)
    tokens = _split(thought + said, rng, encode)
    if kind == "split":
        # The limit is met in the middle of a character of four bytes, which no merge has made one token of.
        tokens += list(encode("\U0001f9e9"))[:-1]
    else:
        tokens += encode(END)
    versions = _versions(len(tokens), rng)
    # Numbers that are the same in four bytes, which is how results are sent.
    log_probs = tuple(-rng.randrange(8192) / 1024 for _ in tokens)
    return ScriptedReply(token_ids=tuple(tokens), key=key, log_probs=log_probs, versions=versions, cut=kind == "split")


def _split(text: str, rng: random.Random, encode: Encode) -> list[int]:
    """Returns tokens of a text; half of them in pieces, as a model samples them and no tokenizer would make them."""
    if rng.random() < 0.5:
        return list(encode(text))
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randint(1, 4)))
    return [token for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True) for token in encode(text[a:b])]


def _call_text(rng: random.Random) -> str:
    arguments: dict[str, Any] = {"path": words(rng, 2), "b": rng.randrange(99), "a": [1, {"x": None}]}
    names = list(arguments)
    rng.shuffle(names)
    separators = rng.choice(((", ", ": "), (",", ":"), (" , ", " : ")))
    call = {"name": rng.choice(("run", "look_up")), "arguments": {name: arguments[name] for name in names}}
    text = json.dumps(call, ensure_ascii=rng.random() < 0.3, separators=separators)
    return f"\n<tool_call>{rng.choice(_SPACES[:4])}{text}{rng.choice(_SPACES[:4])}</tool_call>"


def _versions(tokens: int, rng: random.Random) -> tuple[tuple[int, int, int], ...]:
    version = rng.randrange(5)
    place = rng.randrange(tokens) if rng.random() < 0.3 else 0
    spans = ((version, 0, place), (version + 1, place, tokens))
    return spans if place else spans[1:]


async def play(conversation: PlannedConversation, call_model: CallModel) -> None:
    """Makes all calls of a conversation, one after another."""
    beginning: list[Message] = []
    if conversation.system is not None:
        beginning.append({"role": "system", "content": conversation.system})
    sent: list[list[Message]] = []
    for call in conversation.calls:
        history = beginning if call.after is None else sent[call.after]
        messages = [*history, *_said(call, history)]
        reply = await call_model(ChatRequest(messages=messages, tools=conversation.tools))
        sent.append([*messages, _sent_back(call, reply)])


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
