"""The shape of a transformer. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """Shape of a transformer; what `config.json` beside its weights holds.

    Attributes:
        vocabulary_size: Token ids are 0 to `vocabulary_size - 1`.
        context_length: The most tokens of one sequence, prompt and output together.
        layers: Number of blocks.
        width: Width of the residual stream; a multiple of `heads`, with an even quotient.
        heads: Attention heads.
        hidden_width: Width inside the feed-forward part.
        rotary_base: Base of the rotary frequencies.
        norm_epsilon: Added to the mean square in RMSNorm.
    """

    vocabulary_size: int = 259
    context_length: int = 8192
    layers: int = 3
    width: int = 128
    heads: int = 4
    hidden_width: int = 352
    rotary_base: float = 10_000.0
    norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "context_length", "layers", "width", "heads", "hidden_width"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be an integer of at least 1")
        for name in ("rotary_base", "norm_epsilon"):
            value = getattr(self, name)
            if not isinstance(value, float | int) or not value > 0:
                raise ValueError(f"{name} is {value!r}; it must be a number above 0")
        if self.width % (2 * self.heads):
            raise ValueError(f"width is {self.width}; it must be a multiple of 2 x heads ({2 * self.heads})")

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.heads

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values in float32 that one token takes in a KV cache."""
        return self.layers * 2 * self.width * 4
