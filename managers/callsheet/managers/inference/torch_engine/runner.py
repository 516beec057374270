"""Protocol between the engine and a model: computes the next tokens of one sequence, whose state no other has.

Floating-point sums depend on the shapes of the kernels that make them: a product with one row may differ in its last
bits from the same row inside a product of eight, and one differing bit can change a token. Hence a model is given one
sequence at a time, and a prompt is cut at multiples of a fixed chunk: no token depends on what else is
computed. Other machines, devices and thread counts may give other bits; on one of them they stay the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from callsheet.managers.models.config_file import WeightsError, read_config
from callsheet.managers.models.requests import SequenceBounds
from callsheet.managers.models.transformer import LanguageModel
from callsheet.managers.models.weights import read_state, shapes
from torch import Tensor, nn
from typing_extensions import override


class Runner(ABC):
    """A model on one device. Not thread-safe.

    Attributes:
        model: The model.
        bounds: Which sequences the model can take.
        in_chunks: Whether a prompt may be computed in pieces, so that the state of a prefix can be reused.
    """

    model: nn.Module
    bounds: SequenceBounds
    in_chunks: bool = True

    @abstractmethod
    def start(self, room: int, like: Any = None) -> Any:
        """Returns the state of a sequence: empty, or a copy of another one.

        Args:
            room: The most tokens that the sequence will have.
            like: The state to copy; None has no token.
        """

    @abstractmethod
    def feed(self, token_ids: Sequence[int], state: Any) -> Tensor:
        """Computes the next tokens of a sequence, and adds them to its state.

        Returns:
            Logits of the last token, [vocabulary], float32.
        """

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
    def device(self) -> torch.device:
        """Returns the device of the model."""
        return next(self.model.parameters()).device

    @property
    def half_precision(self) -> bool:
        """Returns whether the model computes in numbers of 16 bits."""
        return any(parameter.dtype.itemsize == 2 for parameter in self.model.parameters())

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Replaces weights in place; names and shapes must be the model's. Those left out stay."""
        own = self.model.state_dict()
        for name, values in state.items():
            own[name].copy_(values)

    def differing(self, state: Mapping[str, Tensor]) -> list[str]:
        """Names of tensors in which the model is not what a state makes of it."""
        own = self.model.state_dict()
        return [name for name, values in state.items() if not torch.equal(own[name], values.to(own[name]))]


@dataclass(slots=True)
class KvCache:
    """Keys and values of one sequence.

    Attributes:
        keys: [layers, heads, head width, room], as the product with one query reads them.
        values: [layers, heads, room, head width].
        length: Tokens that are there.
    """

    keys: Tensor
    values: Tensor
    length: int = 0


class ModelRunner(Runner):
    """The demo's own model of byte tokens."""

    model: LanguageModel

    def __init__(self, model: LanguageModel, *, device: str = "cpu") -> None:
        """Moves the model to the device: "cpu", "cuda" or any other one of torch."""
        self.config = self.bounds = model.config
        self.model = model.to(torch.device(device)).eval().requires_grad_(False)

    @override
    def start(self, room: int, like: KvCache | None = None) -> KvCache:
        config = self.config
        # Rows of whole cache lines: kernels may sum what is not aligned in another order.
        room += -room % 16
        keys = torch.empty((config.layers, config.heads, config.head_width, room), device=self.device)
        state = KvCache(keys, torch.empty_like(keys.mT, memory_format=torch.contiguous_format))
        if like is not None:
            state.length = like.length
            state.keys[..., : like.length] = like.keys[..., : like.length]
            state.values[:, :, : like.length] = like.values[:, :, : like.length]
        return state

    @override
    def feed(self, token_ids: Sequence[int], state: KvCache) -> Tensor:
        begin, end = state.length, state.length + len(token_ids)
        positions = torch.arange(begin, end, device=self.device)
        # The only new token sees all.
        hidden_from = torch.arange(end, device=self.device) > positions[:, None] if end - begin > 1 else None

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            # By hand: for one query, torch's fused attention takes several times as long as these kernels.
            keys, values = state.keys[layer], state.values[layer]
            keys[:, :, begin:end] = key.permute(1, 2, 0)
            values[:, begin:end] = value.transpose(0, 1)
            scores = torch.bmm(query.transpose(0, 1) * self.config.head_width**-0.5, keys[:, :, :end])
            if hidden_from is not None:
                scores.masked_fill_(hidden_from, -torch.inf)
            return torch.bmm(scores.softmax(-1), values[:, :end]).transpose(0, 1)

        hidden = self.model.transformer(torch.tensor(token_ids, device=self.device), positions, attend)
        state.length = end
        return self.model.head(hidden[-1:])[0]  # type: ignore[no-any-return]

    @override
    def read_weights(self, directory: Path) -> dict[str, Tensor]:
        if read_config(directory) != self.config:
            raise WeightsError(f"{directory}: its config.json is not that of the running model")
        return read_state(directory, shapes(self.model))
