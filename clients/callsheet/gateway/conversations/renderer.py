"""Protocol that turns messages into a model's tokens, and its tokens into messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from callsheet.gateway.chat import Message, Tool


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call of a tool, as the model wrote it.

    Attributes:
        name: The tool's name.
        arguments: JSON text of its arguments.
    """

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """Parts of a reply, parsed from its tokens.

    Attributes:
        content: Text for the reader.
        reasoning: The model's thoughts before; None if its format has no place for them, or it did not think.
        tool_calls: The tool calls that the model wrote, in order.
    """

    content: str
    reasoning: str | None = None
    tool_calls: tuple[WrittenCall, ...] = ()


def text_before(text: str, stop: Sequence[str]) -> str:
    """Returns a text up to the first of some texts that end it; all of it where none is there."""
    ends = [place for place in (text.find(one) for one in stop if one) if place >= 0]
    return text[: min(ends)] if ends else text


class Renderer(Protocol):
    """A model's tokenizer with its chat template. Equal arguments give equal results."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Tokens that end what one speaker says. A reply is sampled until one of them, which is its last token."""

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool], template_arguments: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """Returns the prompt of a whole conversation: its messages, then what has the model reply.

        Raises:
            BadRequestError: The template refuses the messages.
        """

    def bridge(
        self,
        token_ids: Sequence[int],
        messages: Sequence[Message],
        tools: Sequence[Tool],
        template_arguments: Mapping[str, Any],
    ) -> tuple[int, ...] | None:
        """Returns the tokens that turn a prompt and its reply into the next prompt.

        Args:
            token_ids: The old prompt and the reply to it, at least one token. They stay as they are.
            messages: The messages that came since the reply, at least one.
            tools: The tools of the old prompt.
            template_arguments: The arguments that the old prompt was rendered with.

        Returns:
            The tokens to append, or None where nothing proves that they would be the same after any other beginning.

        Raises:
            BadRequestError: The template refuses the messages.
        """

    def parse(
        self,
        token_ids: Sequence[int],
        tools: Sequence[Tool],
        stop: Sequence[str] = (),
        prompt_token_ids: Sequence[int] = (),
    ) -> ParsedReply:
        """Returns what a reply says.

        Args:
            token_ids: The sampled tokens.
            tools: The tools that may have been called; without any, a call is text.
            stop: Texts that ended the reply, left out of it with all that comes after them.
            prompt_token_ids: The prompt: some end within the reasoning.
        """

    def marked_text(self, token_ids: Sequence[int], prompt_token_ids: Sequence[int] = ()) -> str:
        """Returns the text of a reply with its markers of calls and reasoning, for a parser that reads text.

        Args:
            token_ids: The sampled tokens.
            prompt_token_ids: The prompt; where that has opened the reasoning, its marker comes first.
        """

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of tokens, without markers of structure. A part of a character becomes U+FFFD."""

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of a token, which may be a part of a character; a marker of structure has none."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Returns the tokens of a text to go on from, markers of structure in it included."""
