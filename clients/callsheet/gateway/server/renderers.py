"""The renderer that a gateway works with."""

from __future__ import annotations

from pathlib import Path

from callsheet.gateway.conversations.renderer import Renderer
from callsheet.gateway.renderers.byte_renderer import ByteRenderer


def load_renderer(tokenizer: Path | None) -> Renderer:
    """Returns the renderer of a model's directory; that of the demo's model where none is given. Blocks.

    Raises:
        ValueError: The directory holds no tokenizer with a chat template.
    """
    if tokenizer is None:
        return ByteRenderer()
    raise ValueError(f"tokenizer: {tokenizer}: not built yet")
