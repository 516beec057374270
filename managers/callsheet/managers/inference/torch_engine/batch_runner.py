"""What the batcher asks of a model: to compute chunks of prompts and steps of many sequences over a KV cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from callsheet.managers.inference.torch_engine.extents import Extent, ExtentAllocator
from callsheet.managers.models.requests import SequenceBounds
from callsheet.managers.models.weights import shapes
from torch import Tensor, nn

KvChunk = tuple[Tensor, ...]
"""Keys and values of some positions of a sequence, in tensors [.., positions, width]."""

ALIGNMENT = 16
"""Extents of the KV cache begin at multiples of this many tokens, which keeps the memory of every view aligned."""

TILE_ROWS = 8
"""Rows of a decode tile where it is safe: enough to share the reading of weights, few enough to waste little."""


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One sequence's part of a decode step: the token fed, its position, and where the sequence's KV is."""

    token_id: int
    position: int
    place: Extent


class BatchRunner(ABC):
    """A model and its KV cache on one device. Not thread-safe.

    Attributes:
        model: The model.
        bounds: Which sequences the model can take.
        extents: Places of the KV cache.
        tile_rows: The most rows of a decode step; 1 until `choose_tile`.
        keeps_prefixes: Whether KV can be read and written by position, so that prefixes can be reused.
        whole_prompts: Whether a prompt must be computed in one piece.
        batch_invariant: Whether a token does not depend on what else is in the batch.
    """

    model: nn.Module
    bounds: SequenceBounds
    extents: ExtentAllocator
    tile_rows: int = 1
    keeps_prefixes: bool = True
    whole_prompts: bool = False
    batch_invariant: bool = True

    @abstractmethod
    def choose_tile(self) -> None:
        """Finds the largest usable tile. Call it in the thread and with the thread count that will decode."""

    @abstractmethod
    def prefill(self, token_ids: Sequence[int], begin: int, place: Extent) -> Tensor:
        """Computes one chunk of a prompt.

        Args:
            token_ids: The chunk.
            begin: Position of its first token; everything before is in the cache.
            place: Where the sequence's KV is.

        Returns:
            Logits of the chunk's last token, [1, vocabulary], float32.
        """

    @abstractmethod
    def decode(self, rows: Sequence[DecodeRow]) -> Tensor:
        """Computes one tile of a decode step.

        Args:
            rows: At most `tile_rows` sequences, each one once.

        Returns:
            Logits [rows or more, vocabulary], float32; rows after the last sequence mean nothing.
        """

    def read_kv(self, place: Extent, begin: int, end: int) -> KvChunk:
        """Returns views of the KV of a sequence's positions `begin` to `end - 1`, where the runner keeps prefixes."""
        raise NotImplementedError("this model's state is not kept by position")

    def write_kv(self, place: Extent, begin: int, values: KvChunk) -> None:
        """Copies KV that `read_kv` gave into a sequence from position `begin`."""
        raise NotImplementedError("this model's state is not kept by position")

    @abstractmethod
    def read_weights(self, directory: Path) -> dict[str, Tensor]:
        """Returns all weights of a directory in the model's own format; called from any thread.

        Raises:
            WeightsError: They cannot be used.
        """

    def named_as_in_memory(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Returns tensors of a file under the names of the model's state_dict(); called from any thread.

        Raises:
            WeightsError: Some are none of the model's.
        """
        return state

    @property
    def half_precision(self) -> bool:
        """Whether it computes in numbers of 16 bits."""
        return any(parameter.dtype.itemsize == 2 for parameter in self.model.parameters())

    def release(self, place: Extent) -> None:
        """Gives a sequence's place back."""
        self.extents.release(place)

    def state_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape by name of every tensor of the weights."""
        return shapes(self.model)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Replaces weights in place; names and shapes must be the model's. Those left out stay."""
        own = self.model.state_dict()
        for name, values in state.items():
            own[name].copy_(values)

    def differing(self, state: Mapping[str, Tensor]) -> list[str]:
        """Names of tensors in which the model is not what a state makes of it."""
        own = self.model.state_dict()
        return [name for name, values in state.items() if not torch.equal(own[name], values.to(own[name]))]
