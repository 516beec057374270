"""Runs a model of transformers with its own cache, one sequence at a time, whatever its state is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from callsheet.managers.inference.torch_engine.batch_runner import DecodeRow
from callsheet.managers.inference.torch_engine.extents import Extent
from callsheet.managers.inference.torch_engine.hf.packed_runner import HfRunner, ServedBounds
from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override


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
