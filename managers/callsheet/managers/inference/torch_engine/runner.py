"""Runs the model over the KV cache so that no token depends on what else is in the batch.

Floating-point sums depend on the shapes of the kernels that make them: a product with one row may differ in its last
bits from the same row inside a product of eight, and one differing bit can change a token. Hence every kernel here
gets a shape that depends on its own sequence or on constants only:

- A prompt is prefilled alone, cut at multiples of a fixed chunk.
- A decode step computes its rows in tiles of a fixed number of rows, padded where fewer are there.
- Attention of a decoded token runs over its own sequence alone.

What is left is a row's place in its tile. `invariant_tile` checks on the running machine, bit by bit, that the place
does not matter, and falls back to tiles of one row where it does. Other machines, devices and thread counts may give
other bits; on one of them they stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - the name torch's own documentation uses
from callsheet.managers.inference.torch_engine.batch_runner import (
    ALIGNMENT,
    TILE_ROWS,
    BatchRunner,
    DecodeRow,
    KvChunk,
)
from callsheet.managers.inference.torch_engine.extents import Extent, ExtentAllocator
from callsheet.managers.models.config_file import WeightsError, read_config
from callsheet.managers.models.transformer import LanguageModel
from callsheet.managers.models.weights import read_state
from torch import Tensor


class ModelRunner(BatchRunner):
    """The demo's own model of byte tokens."""

    model: LanguageModel

    def __init__(self, model: LanguageModel, *, kv_cache_tokens: int, device: str = "cpu") -> None:
        """Moves the model to the device and allocates the cache.

        Args:
            model: The model.
            kv_cache_tokens: Capacity, a multiple of `ALIGNMENT` and at least the model's context.
            device: "cpu", "cuda" or any other torch device.

        Raises:
            ValueError: The capacity breaks its rule.
        """
        config = model.config
        if kv_cache_tokens < config.context_length:
            raise ValueError(
                f"kv_cache_tokens is {kv_cache_tokens}; it must be at least context_length ({config.context_length})"
            )
        self.config = self.bounds = config
        self.device = torch.device(device)
        self.model = model.to(self.device).eval().requires_grad_(False)
        self.extents = ExtentAllocator(kv_cache_tokens, ALIGNMENT)
        # One place more than the allocator knows takes the keys and values of padding rows.
        self._scratch = kv_cache_tokens
        shape = (2 * config.layers, config.heads, self._scratch + 1, config.head_width)
        self._cache = torch.zeros(shape, device=self.device)

    def choose_tile(self) -> None:
        """See `BatchRunner`."""
        self.tile_rows = invariant_tile(self.model, TILE_ROWS, self.device)

    def prefill(self, token_ids: Sequence[int], begin: int, place: Extent) -> Tensor:
        """See `BatchRunner`."""
        end = begin + len(token_ids)
        positions = torch.arange(begin, end, device=self.device)
        mask = torch.arange(end, device=self.device) <= positions[:, None] if begin else None
        whole = self._cache[:, :, place.start : place.start + end]

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = whole[2 * layer], whole[2 * layer + 1]
            keys[:, begin:] = key.transpose(0, 1)
            values[:, begin:] = value.transpose(0, 1)
            context = F.scaled_dot_product_attention(
                query.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, is_causal=mask is None
            )
            return context[0].transpose(0, 1)

        tokens = torch.tensor(token_ids, device=self.device)
        hidden = self.model.transformer(tokens, positions, attend)
        logits: Tensor = self.model.head(hidden[-1:])
        return logits

    def decode(self, rows: Sequence[DecodeRow]) -> Tensor:
        """See `BatchRunner`."""
        padding = self.tile_rows - len(rows)
        inputs = torch.tensor(
            [(row.token_id, row.position, row.place.start + row.position) for row in rows]
            + [(0, 0, self._scratch)] * padding,
            device=self.device,
        )
        tokens, positions, slots = inputs.unbind(1)
        views = [
            self._cache[:, :, row.place.start : row.place.start + row.position + 1].unsqueeze(1).unbind(0)
            for row in rows
        ]
        blank = torch.zeros(padding, self.config.heads, self.config.head_width, device=self.device)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            self._cache[2 * layer].index_copy_(1, slots, key.transpose(0, 1))
            self._cache[2 * layer + 1].index_copy_(1, slots, value.transpose(0, 1))
            queries = query[:, None, :, None].unbind(0)
            contexts = [
                F.scaled_dot_product_attention(queries[index], view[2 * layer], view[2 * layer + 1])[0].transpose(0, 1)
                for index, view in enumerate(views)
            ]
            return torch.cat([*contexts, blank])

        logits: Tensor = self.model.head(self.model.transformer(tokens, positions, attend))
        return logits

    def read_kv(self, place: Extent, begin: int, end: int) -> KvChunk:
        """See `BatchRunner`."""
        return (self._cache[:, :, place.start + begin : place.start + end],)

    def write_kv(self, place: Extent, begin: int, values: KvChunk) -> None:
        """See `BatchRunner`."""
        start = place.start + begin
        self._cache[:, :, start : start + values[0].shape[2]] = values[0]

    def read_weights(self, directory: Path) -> dict[str, Tensor]:
        """See `BatchRunner`."""
        if read_config(directory) != self.config:
            raise WeightsError(f"{directory}: its config.json is not that of the running model")
        return read_state(directory, self.state_shapes())


def invariant_tile(model: LanguageModel, tile_rows: int, device: torch.device) -> int:
    """Returns `tile_rows` if a row's result depends neither on its place in a tile nor on the other rows, else 1.

    Checked on the model's own shapes with attention left out, as that runs for each sequence alone.
    """
    tokens = torch.randint(model.config.vocabulary_size, (tile_rows,), generator=torch.Generator().manual_seed(0)).to(
        device
    )
    positions = torch.arange(tile_rows, device=device)

    def outputs(order: Tensor) -> Tensor:
        hidden = model.transformer(tokens[order], positions[order], lambda _layer, _query, _key, value: value)
        result: Tensor = model.head(hidden)
        return result

    with torch.inference_mode():
        expected = outputs(positions)
        for shift in range(1, tile_rows):
            moved = torch.roll(positions, shift)
            repeated = torch.full_like(positions, shift)
            if not torch.equal(outputs(moved), expected[moved]):
                return 1
            if not torch.equal(outputs(repeated), expected[repeated]):
                return 1
    return tile_rows
