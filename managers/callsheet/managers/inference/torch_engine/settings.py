"""Settings of the torch engine's own. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from callsheet.managers.models.config import TransformerConfig
from callsheet.options.declaration import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """What only this engine is told.

    Attributes:
        shape: Shape of a model with random weights; unused when there are weights.
    """

    shape: TransformerConfig = field(default_factory=TransformerConfig)
    device: Annotated[str, Setting('Torch device, such as "cuda".')] = "cpu"
    prefix_cache_tokens: Annotated[
        int, Setting("Prompt tokens whose KV is kept for later prompts; 0 keeps none.", least=0)
    ] = 8_192
    prefill_chunk: Annotated[int, Setting("Prompt tokens computed in one piece.", least=1)] = 128
