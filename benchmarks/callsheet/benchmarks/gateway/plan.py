"""What happens in a conversation, drawn from a seed before it begins: what is said, and what the model replies."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from callsheet.benchmarks.gateway.model import END, words
from callsheet.benchmarks.gateway.settings import GatewayBenchSettings
from callsheet.gateway.chat import Tool
from callsheet.managers.inference.scripted_engine.script import ScriptedReply

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

Encode = Callable[[str], Sequence[int]]


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
        restarts: Whether the gateway is restarted after each call.
    """

    name: str
    system: str | None
    tools: tuple[Tool, ...]
    calls: tuple[PlannedCall, ...]
    restarts: bool

    @property
    def branches(self) -> bool:
        """Whether a reply is followed by more than one call."""
        return len({call.after for call in self.calls}) < len(self.calls)


def plan_conversations(settings: GatewayBenchSettings, encode: Encode) -> list[PlannedConversation]:
    """Returns the conversations of a seed.

    Args:
        settings: How many, and of what kind.
        encode: The model's tokenizer.
    """
    return [
        _conversation(f"c{number}", random.Random(f"{settings.seed}-{number}"), settings, encode)
        for number in range(settings.conversations)
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


def _conversation(name: str, rng: random.Random, settings: GatewayBenchSettings, encode: Encode) -> PlannedConversation:
    branching = rng.random() < settings.branching
    tools = TOOLS if rng.random() < 0.8 else ()
    calls: list[PlannedCall] = []
    last: int | None = None
    for _ in range(rng.randint(_FEWEST_CALLS, settings.calls)):
        siblings = rng.randint(2, 3) if branching and rng.random() < 0.3 else 1
        for _ in range(siblings):
            calls.append(_call(f"{name}x{len(calls)}", last, rng, settings, encode))
        last = len(calls) - 1
    system = words(rng, 20) if rng.random() < 0.7 else None
    return PlannedConversation(name, system, tools, tuple(calls), rng.random() < settings.restarts)


def _call(
    key: str, after: int | None, rng: random.Random, settings: GatewayBenchSettings, encode: Encode
) -> PlannedCall:
    text = f"{rng.choice(_SPACES)}[call {key}] {words(rng, rng.randint(3, 30))}{rng.choice(_SPACES)}"
    return PlannedCall(
        key=key,
        after=after,
        text=text,
        reply=_reply(key, rng, encode),
        keeps_reasoning=rng.random() < 0.3,
        strips=rng.random() < 0.5,
        shortens=rng.random() < settings.shortened,
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
