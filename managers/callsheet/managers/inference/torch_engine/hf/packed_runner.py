"""Runs a model of transformers over our own KV cache, with rows of many sequences in one pass.

The promises are those of `runner.py`: a prompt is prefilled alone, a decode step has tiles of a fixed number of rows,
and attention runs over each sequence alone. So no token depends on what else is in the batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from callsheet.managers.inference.torch_engine.batch_runner import (
    ALIGNMENT,
    TILE_ROWS,
    BatchRunner,
    DecodeRow,
    KvChunk,
)
from callsheet.managers.inference.torch_engine.extents import Extent, ExtentAllocator
from callsheet.managers.inference.torch_engine.hf.attention import AttentionPass, attending
from callsheet.managers.inference.torch_engine.hf.kv_cache import (
    DecodePass,
    KvCache,
    LayerShape,
    PrefillPass,
    RowsApartPass,
)
from callsheet.managers.inference.torch_engine.hf.weights import named_as_in_memory, read_model_weights
from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override

TILE_SIZES = (1, 2, 4, TILE_ROWS)
"""Rows of a step that may be computed together."""
MOST_ROWS = 64
"""The most rows of a step where rows may depend on each other."""


@dataclass(frozen=True, slots=True)
class ServedBounds:
    """Which sequences are served: those of a vocabulary, up to a length that also fits the KV cache."""

    vocabulary_size: int
    context_length: int


class HfRunner(BatchRunner):
    """A runner of a model of transformers.

    Args:
        model: On its device; taken over.
        bounds: Which sequences are served.
        kv_cache_tokens: The most tokens of all sequences together, a multiple of `ALIGNMENT`.

    Raises:
        ValueError: The capacity breaks its rule.
    """

    model: PreTrainedModel
    bounds: ServedBounds

    def __init__(self, model: PreTrainedModel, bounds: ServedBounds, *, kv_cache_tokens: int) -> None:
        self.model = model
        self.bounds = bounds
        self.extents = ExtentAllocator(kv_cache_tokens, ALIGNMENT)

    @override
    def read_weights(self, directory: Path) -> dict[str, Tensor]:
        return read_model_weights(directory, self.model)

    @override
    def named_as_in_memory(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return named_as_in_memory(state, self.model)


class PackedRunner(HfRunner):
    """A model whose attention is ours.

    Attributes:
        batch_invariant: Whether a row's result must not depend on the other rows of its step; read by `choose_tile`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layers: Mapping[int, LayerShape],
        bounds: ServedBounds,
        *,
        kv_cache_tokens: int,
    ) -> None:
        """Takes the model over and allocates the cache.

        Args:
            model: On its device, with the attention of `attention.ATTENTION_NAME`.
            layers: What each layer keeps of a token.
            bounds: Which sequences are served.
            kv_cache_tokens: Capacity, a multiple of `ALIGNMENT`.

        Raises:
            ValueError: The capacity breaks its rule.
        """
        super().__init__(model, bounds, kv_cache_tokens=kv_cache_tokens)
        self._tiles: tuple[int, ...] = ()
        self._cache = KvCache(layers, kv_cache_tokens, model.device)
        # Only the logits that are sampled from are worth their product with the vocabulary.
        self._keeps_last = "logits_to_keep" in inspect.signature(model.forward).parameters

    @override
    def choose_tile(self) -> None:
        if self.batch_invariant:
            self._tiles = invariant_tiles(self, TILE_SIZES)
            self.tile_rows = self._tiles[-1]
        else:
            self.tile_rows = MOST_ROWS

    @override
    def prefill(self, token_ids: Sequence[int], begin: int, place: Extent) -> Tensor:
        end = begin + len(token_ids)
        tokens = torch.tensor(token_ids, device=self.model.device)
        positions = torch.arange(begin, end, device=self.model.device)
        logits = self.forward(tokens, positions, PrefillPass(self._cache, place, begin, end), last_only=True)
        return logits[-1:]

    @override
    def decode(self, rows: Sequence[DecodeRow]) -> Tensor:
        padding = next((tile for tile in self._tiles if tile >= len(rows)), len(rows)) - len(rows)
        inputs = torch.tensor(
            [(row.token_id, row.position, row.place.start + row.position) for row in rows]
            + [(0, 0, self._cache.scratch)] * padding,
            device=self.model.device,
        )
        tokens, positions, slots = inputs.unbind(1)
        return self.forward(tokens, positions, DecodePass(self._cache, rows, slots))

    def forward(self, tokens: Tensor, positions: Tensor, by: AttentionPass, *, last_only: bool = False) -> Tensor:
        """Returns logits of rows of tokens, [rows, vocabulary], float32; of the last row alone if that is enough."""
        fewer = {"logits_to_keep": 1} if last_only and self._keeps_last else {}
        with attending(by):
            out = self.model(input_ids=tokens[None], position_ids=positions[None], use_cache=False, **fewer)
        logits: Tensor = out.logits[0].float()
        return logits

    @override
    def read_kv(self, place: Extent, begin: int, end: int) -> KvChunk:
        return self._cache.read(place.start + begin, place.start + end)

    @override
    def write_kv(self, place: Extent, begin: int, values: KvChunk) -> None:
        self._cache.write(place.start + begin, values)


def invariant_tiles(runner: PackedRunner, sizes: Sequence[int]) -> tuple[int, ...]:
    """Returns the largest usable size of a tile, and smaller ones that give every row the very same bits.

    In a usable one a row's result depends neither on its place nor on the other rows. Measured as
    `runner.invariant_tile` does it: on the model's own shapes, with attention left out. One row always is usable.

    Args:
        runner: The model.
        sizes: What to try, rising.
    """
    if any(name.endswith(".experts") for name, _ in runner.model.named_modules()):
        # Which rows an expert computes together is up to the rows: no measurement sees all cases.
        return (1,)
    device = runner.model.device
    seed = torch.Generator().manual_seed(0)
    tokens = torch.randint(runner.bounds.vocabulary_size, (sizes[-1],), generator=seed).to(device)
    positions = torch.arange(sizes[-1], device=device)

    def outputs(order: Tensor) -> Tensor:
        return runner.forward(tokens[order], positions[order], RowsApartPass())

    def usable(rows: int) -> bool:
        own = positions[:rows]
        expected = outputs(own)
        for shift in range(1, rows):
            moved, repeated = torch.roll(own, shift), torch.full_like(own, shift)
            if not torch.equal(outputs(moved), expected[moved]):
                return False
            if not torch.equal(outputs(repeated), expected[repeated]):
                return False
        return True

    with torch.inference_mode():
        largest = next((rows for rows in reversed(sizes) if usable(rows)), 1)
        whole = outputs(positions[:largest])
        equal = [
            rows
            for rows in sizes
            if rows < largest
            and usable(rows)
            and all(
                torch.equal(outputs(positions[begin : begin + rows]), whole[begin : begin + rows])
                for begin in range(0, largest, rows)
            )
        ]
    return (*equal, largest)


class SequenceRunner(HfRunner):
    """A model that keeps the state of each sequence itself. No prefix is reused, no rows are computed together."""

    keeps_prefixes = False
    whole_prompts = True

    def __init__(self, model: PreTrainedModel, bounds: ServedBounds, *, kv_cache_tokens: int) -> None:
        # The cache has books alone: the state itself is the model's.
        super().__init__(model, bounds, kv_cache_tokens=kv_cache_tokens)
        self._states: dict[Extent, dict[str, Any]] = {}

    @override
    def choose_tile(self) -> None:
        """One row is all there is."""

    @override
    def prefill(self, token_ids: Sequence[int], begin: int, place: Extent) -> Tensor:
        if begin:
            raise ValueError(f"begin is {begin}; a prompt must be computed in one piece")
        tokens = torch.tensor([list(token_ids)], device=self.model.device)
        return self._step(tokens, place, {"use_cache": True, "attention_mask": torch.ones_like(tokens)}, first=True)

    @override
    def decode(self, rows: Sequence[DecodeRow]) -> Tensor:
        tokens = torch.tensor([[rows[0].token_id]], device=self.model.device)
        return self._step(tokens, rows[0].place, self._states[rows[0].place], first=False)

    def _step(self, tokens: Tensor, place: Extent, state: dict[str, Any], *, first: bool) -> Tensor:
        """As one round of transformers' own `generate`, which knows what each architecture carries along."""
        inputs = self.model.prepare_inputs_for_generation(  # type: ignore[operator]
            tokens, next_sequence_length=tokens.shape[1], is_first_iteration=first, **state
        )
        out = self.model(**inputs, return_dict=True)
        self._states[place] = self.model._update_model_kwargs_for_generation(out, state)  # type: ignore[operator]
        logits: Tensor = out.logits[0, -1:].float()
        return logits

    @override
    def release(self, place: Extent) -> None:
        self._states.pop(place, None)
        super().release(place)
