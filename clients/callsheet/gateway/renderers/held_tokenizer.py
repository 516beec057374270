"""The renderer of a tokenizer that a trainer holds in its process, as transformers loaded it."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from callsheet.gateway.renderers.chat_template import ChatTemplate
from callsheet.gateway.renderers.reply_text import END_THINK
from callsheet.gateway.renderers.template_renderer import TemplateRenderer
from callsheet.gateway.renderers.tool_calls import ToolFormat, detect
from tokenizers import Tokenizer


class HeldTokenizer(Protocol):
    """What is used of a fast tokenizer of transformers."""

    @property
    def backend_tokenizer(self) -> Tokenizer:
        """The tokenizer itself."""

    @property
    def chat_template(self) -> Any:
        """Its chat template's source; None if it has none."""

    @property
    def special_tokens_map(self) -> Mapping[str, Any]:
        """Texts of special tokens by names such as "eos_token"."""

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text; None if there is none."""


def renderer_of(
    tokenizer: HeldTokenizer,
    *,
    chat_template: str | None = None,
    template_arguments: Mapping[str, Any] | None = None,
    stop_token_ids: Iterable[int] = (),
    tool_format: ToolFormat | None = None,
    reasoning: bool | None = None,
    today: datetime.date | None = None,
) -> TemplateRenderer:
    """Returns the renderer of a tokenizer. It keeps a copy, so that what the trainer sets later does not change it.

    Args:
        tokenizer: A fast tokenizer, or a processor that has one.
        chat_template: Another template than the tokenizer's.
        template_arguments: What the template is given with every conversation, such as `enable_thinking`.
        stop_token_ids: Tokens that end a reply; the tokenizer's end token is added.
        tool_format: How the model writes calls; None goes by the template's markers.
        reasoning: Whether it marks its reasoning with `<think>`; None goes by the template's markers.
        today: The date for templates that ask for it; None is this day.

    Raises:
        ValueError: It has no chat template, or is no fast tokenizer.
    """
    held = getattr(tokenizer, "tokenizer", tokenizer)
    backend = getattr(held, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(f"processing_class is a {type(held).__name__}; it must be a fast tokenizer of transformers")
    source = chat_template or getattr(tokenizer, "chat_template", None) or held.chat_template
    if not isinstance(source, str):
        raise ValueError(f"processing_class is a {type(held).__name__} without a chat template; set `chat_template`")
    copied = Tokenizer.from_str(backend.to_str())
    # A trainer pads and truncates with its own; what is rendered here is neither.
    copied.no_padding()
    copied.no_truncation()
    given = {**_texts(held.special_tokens_map), **(template_arguments or {})}
    eos = [] if held.eos_token_id is None else [held.eos_token_id]
    return TemplateRenderer(
        copied,
        ChatTemplate(source, given, today or datetime.date.today()),
        stop_token_ids={*stop_token_ids, *eos},
        tool_format=detect(source) if tool_format is None else tool_format,
        reasoning=END_THINK in source if reasoning is None else reasoning,
    )


def _texts(special_tokens: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in special_tokens.items() if isinstance(value, str)}
