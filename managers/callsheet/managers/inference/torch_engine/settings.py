"""Settings of the torch engine's own. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from callsheet.managers.models.config import TransformerConfig
from callsheet.options.declaration import Setting


class Dtype(Enum):
    """In which numbers a model is computed."""

    AUTO = "auto"
    """Its own on a GPU; float32 on a CPU, where half precision is slow and rounds."""
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """Settings of this engine only.

    Attributes:
        shape: Shape of a model with random weights; unused when there are weights.
    """

    shape: TransformerConfig = field(default_factory=TransformerConfig)
    device: Annotated[str, Setting('Torch device, such as "cuda".')] = "cpu"
    dtype: Annotated[Dtype, Setting("Numbers that --model DIR is computed in; auto is float32 on a CPU.")] = Dtype.AUTO
    prefix_cache_tokens: Annotated[
        int, Setting("Prompt tokens whose KV is kept for later prompts; 0 keeps none.", least=0)
    ] = 8_192
    prefill_chunk: Annotated[int, Setting("Prompt tokens computed in one piece.", least=1)] = 128


def served_dtype(dtype: Dtype, device: str, own: str) -> str:
    """Returns torch's name of the numbers to compute in; `own` is what the model's config.json names."""
    if dtype is not Dtype.AUTO:
        return str(dtype.value)
    return "float32" if device.startswith("cpu") else own


def served_context(own: int | None, kv_cache_tokens: int) -> int:
    """Returns the most tokens of one sequence: what the model takes, as far as the KV cache has room for it."""
    return kv_cache_tokens if own is None else min(own, kv_cache_tokens)
