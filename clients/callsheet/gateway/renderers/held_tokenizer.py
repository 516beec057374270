"""The renderer of a tokenizer that a trainer holds in its process, as transformers loaded it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Protocol

from callsheet.gateway.renderers.chat_template import ChatTemplate
from callsheet.gateway.renderers.template_renderer import TemplateRenderer
from tokenizers import Tokenizer


class HeldTokenizer(Protocol):
    """Members that are used of a fast tokenizer of transformers."""

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
) -> TemplateRenderer:
    """Returns the renderer of a tokenizer. It keeps a copy, so that what the trainer sets later does not change it.

    Args:
        tokenizer: A fast tokenizer, or a processor that has one.
        chat_template: Another template than the tokenizer's.
        template_arguments: What the template is given with every conversation, such as `enable_thinking`.

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
    template = ChatTemplate(source, given, datetime.date.today())
    return TemplateRenderer(copied, template, [] if held.eos_token_id is None else [held.eos_token_id])


def _texts(special_tokens: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in special_tokens.items() if isinstance(value, str)}
