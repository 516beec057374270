"""The parts of a reply's text: reasoning, calls of tools, and what is for the reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from callsheet.gateway.chat import Tool
from callsheet.gateway.conversations.renderer import ParsedReply, text_before
from callsheet.gateway.renderers.tool_calls import ToolFormat, parse_calls

THINK: Final = "<think>"
END_THINK: Final = "</think>"


def parse_text(
    text: str,
    tools: Sequence[Tool],
    stop: Sequence[str],
    *,
    tool_format: ToolFormat,
    reasoning: bool,
    within_reasoning: bool = False,
) -> ParsedReply:
    """Returns what a reply says.

    Args:
        text: The reply, its markers of calls and reasoning included.
        tools: The tools that may have been called.
        stop: Texts that ended it; left out.
        tool_format: How the model writes calls.
        reasoning: Whether it marks its reasoning with `<think>`.
        within_reasoning: Whether the prompt has opened the reasoning already.
    """
    text = text_before(text, stop)
    thought, content = _split_reasoning(text, within_reasoning) if reasoning else (None, text)
    content, calls = parse_calls(content, tools, tool_format)
    return ParsedReply(content, thought, calls)


def _split_reasoning(text: str, within: bool) -> tuple[str | None, str]:
    begun = text.lstrip().startswith(THINK)
    if not begun and not within:
        return None, text
    body = text.lstrip().removeprefix(THINK) if begun else text
    thought, closed, content = body.partition(END_THINK)
    # A reply that was cut while the model still thought says nothing yet.
    return thought.strip(), content.lstrip("\n") if closed else ""
