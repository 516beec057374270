"""Runs any causal language model of transformers, as its own `generate` does."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import torch
from callsheet.managers.inference.torch_engine.hf.weights import named_as_in_memory, read_model_weights
from callsheet.managers.inference.torch_engine.runner import Runner
from callsheet.managers.models.config_file import WeightsError
from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override

log = structlog.get_logger(__name__)

_PROBE_TOKENS = 24
_CHUNK = 9
# Rotary embeddings of these kinds turn all tokens of a pass by the last of their positions.
_ROPE_OF_A_WHOLE_PASS = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class ServedBounds:
    """Bounds of the sequences that are served: their vocabulary, and a length that also fits the KV cache."""

    vocabulary_size: int
    context_length: int


@dataclass(slots=True)
class HfState:
    """State that a model carries along a sequence, its own cache above all, and the tokens that are in it."""

    carried: dict[str, Any] = field(default_factory=dict)
    length: int = 0


class HfRunner(Runner):
    """A model of transformers, with a cache of its own for each sequence."""

    model: PreTrainedModel

    def __init__(self, model: PreTrainedModel, bounds: ServedBounds) -> None:
        """Finds how the model can be run, and proves it: with a cache it must compute what it does without one.

        Args:
            model: On its device; taken over.
            bounds: Which sequences are served.

        Raises:
            WeightsError: The model cannot be run; the message names its architecture.
        """
        self.model = model
        self.bounds = bounds
        takes_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        # Only the logits that are sampled from are worth their product with the vocabulary.
        self._always = {"use_cache": True} | ({"logits_to_keep": 1} if takes_keep else {})
        self._ropes = [
            module
            for module in model.modules()
            if any(kind in str(getattr(module, "rope_type", "")) for kind in _ROPE_OF_A_WHOLE_PASS)
        ]
        name = type(model).__name__
        problem = "its rotary embedding depends on the length of a pass" if self._ropes else self._problem()
        if problem:
            log.warning("prompts are computed in one piece", architecture=name, reason=problem)
            self.in_chunks = False
            problem = self._problem()
        if problem:
            raise WeightsError(f"{name} cannot be served by the torch engine ({problem})")

    @override
    def start(self, room: int, like: HfState | None = None) -> HfState:
        return HfState() if like is None else copy.deepcopy(like)

    @override
    def feed(self, token_ids: Sequence[int], state: HfState) -> Tensor:
        tokens = torch.tensor([list(token_ids)], device=self.model.device)
        first = state.length == 0
        for rope in self._ropes:
            # Otherwise it goes on as the longest sequence of all has left it.
            for name in [name for name in vars(rope) if name.endswith("max_seq_len_cached")]:
                setattr(rope, name, 0)
        state.length += len(token_ids)
        mask = torch.ones((1, state.length), dtype=torch.long, device=self.model.device)
        carried = state.carried | self._always | {"attention_mask": mask}
        inputs = self.model.prepare_inputs_for_generation(  # type: ignore[operator]
            tokens, next_sequence_length=len(token_ids), is_first_iteration=first, **carried
        )
        out = self.model(**inputs, return_dict=True)
        state.carried = self.model._update_model_kwargs_for_generation(out, carried)  # type: ignore[operator]
        return out.logits[0, -1].float()  # type: ignore[no-any-return]

    @override
    def read_weights(self, directory: Path) -> dict[str, Tensor]:
        return read_model_weights(directory, self.model)

    @override
    def named_as_in_memory(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return named_as_in_memory(state, self.model)

    @torch.inference_mode()
    def _problem(self) -> str:
        """Returns why the model cannot be run as `in_chunks` says; empty if it can."""
        seed = torch.Generator().manual_seed(0)
        tokens = torch.randint(self.bounds.vocabulary_size, (_PROBE_TOKENS,), generator=seed)
        try:
            expected = self.model(input_ids=tokens[None].to(self.model.device), use_cache=False).logits[0].float()
            state, begin = self.start(_PROBE_TOKENS), 0
            for end in (_CHUNK, 2 * _CHUNK, 2 * _CHUNK + 1, 2 * _CHUNK + 2) if self.in_chunks else (_CHUNK, _CHUNK + 1):
                found = self.feed(tokens[begin:end].tolist(), state)
                off, scale = float((found - expected[end - 1]).abs().max()), float(expected.abs().max())
                # Half precision rounds to some thousandths at each layer; a wrong mask or position changes all.
                if not off <= (1e-3 if self.model.dtype is torch.float32 else 5e-2) * max(1.0, scale):
                    return f"its logits with a cache are off by {off:.3g} of {scale:.3g}"
                # A copy must be as good as what it was made of.
                state, begin = self.start(_PROBE_TOKENS, state) if self.in_chunks else state, end
        except Exception as error:  # An architecture may fail anywhere when it is run as it was not written for.
            return f"{type(error).__name__}: {error}"
        return ""
