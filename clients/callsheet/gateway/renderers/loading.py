"""Finds the renderer of a model: the one of the demo's bytes, or a directory with a tokenizer and its chat template."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from callsheet.gateway.conversations.renderer import Renderer
from callsheet.gateway.renderers.byte_renderer import ByteRenderer

BYTES: Final = "bytes"
"""Names the demo's vocabulary in place of a directory."""
_TOKENIZER_FILE: Final = "tokenizer.json"
_TEMPLATE_FILE: Final = "chat_template.jinja"


def load_renderer(
    tokenizer: str,
    *,
    chat_template: Path | None = None,
    today: datetime.date | None = None,
) -> Renderer:
    """Returns the renderer of a model.

    Args:
        tokenizer: "bytes", or a directory with `tokenizer.json` and a chat template.
        chat_template: A file with another template than the directory's.
        today: The date for templates that ask for it; None is this day.

    Raises:
        ValueError: Something is missing, or cannot be read; it names the file.
    """
    if tokenizer == BYTES:
        return ByteRenderer()
    # Only here, so that the demo's gateway starts without them.
    from callsheet.gateway.renderers.chat_template import ChatTemplate
    from callsheet.gateway.renderers.template_renderer import TemplateRenderer
    from tokenizers import Tokenizer

    directory = Path(tokenizer)
    if not (directory / _TOKENIZER_FILE).is_file():
        raise ValueError(f"tokenizer is {tokenizer!r}; it must be {BYTES!r} or a directory with {_TOKENIZER_FILE}")
    config = _read_json(directory / "tokenizer_config.json")
    source = chat_template.read_text() if chat_template else _template_source(directory, config)
    template = ChatTemplate(source, _special_tokens(config), today or datetime.date.today())
    loaded = Tokenizer.from_file(str(directory / _TOKENIZER_FILE))
    return TemplateRenderer(loaded, template, _stop_token_ids(directory, config, loaded.token_to_id))


def _template_source(directory: Path, config: Mapping[str, Any]) -> str:
    if (directory / _TEMPLATE_FILE).is_file():
        return (directory / _TEMPLATE_FILE).read_text()
    source = config.get("chat_template")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source}
        source = named.get("tool_use") or named.get("default")
    if not isinstance(source, str):
        raise ValueError(f"{directory} has no chat template: neither {_TEMPLATE_FILE} nor one in tokenizer_config.json")
    return source


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    return {name: _content(config.get(name)) for name in names}


def _content(token: object) -> str:
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _stop_token_ids(directory: Path, config: Mapping[str, Any], token_id: Any) -> set[int]:
    ends = _read_json(directory / "generation_config.json").get("eos_token_id", [])
    own = token_id(_content(config.get("eos_token")))
    return {*(ends if isinstance(ends, list) else [ends]), *([own] if own is not None else [])}


def _read_json(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    return value if isinstance(value, dict) else {}
