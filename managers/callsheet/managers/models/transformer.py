"""A decoder-only transformer: RMSNorm, rotary positions, SwiGLU, one embedding, no biases.

One forward pass serves every use. It takes flat rows (one row per token) and leaves attention to its caller, so the
same layers run a whole sequence, a chunk of a prompt over a KV cache, or one token each of many sequences.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - the name torch's own documentation uses
from callsheet.managers.models.config import TransformerConfig
from torch import Tensor, nn

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, query, key, value) -> context; all tensors are [rows, heads, head width]."""


class RootMeanSquareNorm(nn.Module):
    """Divides each row by its root mean square and scales it."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self._epsilon = epsilon

    def forward(self, rows: Tensor) -> Tensor:
        """Returns the normalised rows, same shape."""
        return F.rms_norm(rows, self.scale.shape, self.scale, self._epsilon)


class Block(nn.Module):
    """Attention and a gated feed-forward part, each behind a norm and a residual connection."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self._heads, self._head_width = config.heads, config.head_width
        self.attention_norm = RootMeanSquareNorm(config.width, config.norm_epsilon)
        self.query_key_value = nn.Linear(config.width, 3 * config.width, bias=False)
        self.attention_output = nn.Linear(config.width, config.width, bias=False)
        self.feed_forward_norm = RootMeanSquareNorm(config.width, config.norm_epsilon)
        self.gate_up = nn.Linear(config.width, 2 * config.hidden_width, bias=False)
        self.down = nn.Linear(config.hidden_width, config.width, bias=False)

    def forward(self, layer: int, rows: Tensor, rotation: Tensor, attend: Attend) -> Tensor:
        """Returns the residual stream after this block; `rows` is [rows, width]."""
        projected = self.query_key_value(self.attention_norm(rows)).view(-1, 3, self._heads, self._head_width)
        turned = rotate(projected[:, :2], rotation)
        context = attend(layer, turned[:, 0], turned[:, 1], projected[:, 2])
        rows = rows + self.attention_output(context.reshape(rows.shape))
        gate, up = self.gate_up(self.feed_forward_norm(rows)).chunk(2, dim=-1)
        return rows + self.down(F.silu(gate) * up)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Token rows in, final hidden rows out."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = RootMeanSquareNorm(config.width, config.norm_epsilon)
        self.register_buffer("rotations", rotation_table(config), persistent=False)

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Returns the normalised hidden rows.

        Args:
            token_ids: [rows], integers.
            positions: [rows], each token's index in its own sequence.
            attend: Mixes the rows of a sequence; called once per block, in order.

        Returns:
            [rows, width], float32.
        """
        rows: Tensor = self.embedding(token_ids)
        rotations: Tensor = self.get_buffer("rotations")
        rotation = rotations[positions][:, None, None, :]
        for layer, block in enumerate(self.blocks):
            rows = block(layer, rows, rotation, attend)
        return self.final_norm(rows)  # type: ignore[no-any-return]


class LanguageModel(nn.Module):
    """A transformer with a head over the vocabulary."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)
        self.head = nn.Linear(config.width, config.vocabulary_size, bias=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Returns logits [batch, length, vocabulary] of whole sequences [batch, length], without a cache."""
        hidden = whole_sequences(self.transformer, token_ids)
        return self.head(hidden)  # type: ignore[no-any-return]


class ScoringModel(nn.Module):
    """A transformer with a scalar head on the last token."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)
        self.head = nn.Linear(config.width, 1, bias=False)

    def forward(self, token_ids: Tensor, lengths: Tensor) -> Tensor:
        """Returns one score per sequence.

        Args:
            token_ids: [batch, length], padded on the right with any valid token; attention is causal, so padding
                cannot reach the tokens before it.
            lengths: [batch], tokens of each sequence without padding, at least 1.

        Returns:
            [batch], float32, unbounded.
        """
        hidden = whole_sequences(self.transformer, token_ids)
        last = hidden[torch.arange(len(lengths), device=hidden.device), lengths - 1]
        return self.head(last).squeeze(-1)  # type: ignore[no-any-return]


def whole_sequences(transformer: Transformer, token_ids: Tensor) -> Tensor:
    """Runs whole sequences [batch, length] with causal attention; returns [batch, length, width]."""
    batch, length = token_ids.shape
    positions = torch.arange(length, device=token_ids.device).repeat(batch)

    def attend(_layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        by_head = [rows.view(batch, length, *rows.shape[1:]).transpose(1, 2) for rows in (query, key, value)]
        context = F.scaled_dot_product_attention(by_head[0], by_head[1], by_head[2], is_causal=True)
        return context.transpose(1, 2).flatten(0, 1)

    hidden: Tensor = transformer(token_ids.reshape(-1), positions, attend)
    return hidden.view(batch, length, -1)


def rotation_table(config: TransformerConfig) -> Tensor:
    """Unit complex numbers that turn a head's pairs: [context length, head width / 2], complex64."""
    half = config.head_width // 2
    frequencies = config.rotary_base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(config.context_length, dtype=torch.float64)[:, None] * frequencies
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def rotate(vectors: Tensor, rotation: Tensor) -> Tensor:
    """Turns neighbouring pairs of the last dimension; `rotation` broadcasts over the pairs."""
    pairs = torch.view_as_complex(vectors.reshape(*vectors.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation).flatten(-2)


def initialise(model: nn.Module, seed: int) -> None:
    """Fills all parameters from a seed, the same on every device.

    Linear layers get a standard deviation of 1/sqrt(inputs), so that the logits of random weights spread by about 1
    and sampling from them is not uniform. Norm scales stay 1.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _name, parameter in sorted(model.named_parameters()):
            if parameter.dim() == 2:
                values = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(values / parameter.shape[1] ** 0.5)
