"""Runs a model of transformers with its own cache, one sequence at a time, whatever its state is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from callsheet.managers.inference.torch_engine.batch_runner import ALIGNMENT, BatchRunner, DecodeRow, KvChunk
from callsheet.managers.inference.torch_engine.extents import Extent, ExtentAllocator
from callsheet.managers.inference.torch_engine.hf.packed_runner import ServedBounds
from callsheet.managers.inference.torch_engine.hf.weights import named_as_in_memory, read_model_weights
from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override


class SequenceRunner(BatchRunner):
    """A model that keeps the state of each sequence itself. No prefix is reused, no rows are computed together."""

    model: PreTrainedModel
    keeps_prefixes = False
    whole_prompts = True

    def __init__(self, model: PreTrainedModel, bounds: ServedBounds, *, kv_cache_tokens: int) -> None:
        """Takes the model over.

        Args:
            model: On its device.
            bounds: Which sequences are served.
            kv_cache_tokens: The most tokens of all sequences together, a multiple of `ALIGNMENT`.
        """
        self.model = model
        # Only the books: the state itself is the model's.
        self.extents = ExtentAllocator(kv_cache_tokens, ALIGNMENT)
        self.tile_rows = 1
        self._bounds = bounds
        self._states: dict[Extent, dict[str, Any]] = {}

    @property
    @override
    def bounds(self) -> ServedBounds:
        return self._bounds

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

    @override
    def read_kv(self, place: Extent, begin: int, end: int) -> KvChunk:
        raise NotImplementedError("this model's state is not kept by position")

    @override
    def write_kv(self, place: Extent, begin: int, values: KvChunk) -> None:
        raise NotImplementedError("this model's state is not kept by position")

    @override
    def free_cache(self) -> None:
        self._states.clear()

    @override
    def make_cache(self) -> None:
        """Each sequence makes its own."""

    @override
    def read_weights(self, directory: Path) -> dict[str, Tensor]:
        return read_model_weights(directory, self.model)

    @override
    def named_as_in_memory(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return named_as_in_memory(state, self.model)
