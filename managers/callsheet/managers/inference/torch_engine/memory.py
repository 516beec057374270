"""Gives a model's memory back for a while: a GPU's weights go to host memory, a CPU's to a file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


class SleepingWeights:
    """The weights of a model whose own memory is given back."""

    def __init__(self, model: nn.Module) -> None:
        """Takes a model's weights out of its device's memory.

        Raises:
            OSError: The file cannot be written; the model still has its weights.
        """
        # Tied weights are one parameter, and come once.
        self._parameters = dict(model.named_parameters())
        self._file: Path | None = None
        self._copies: dict[str, Tensor] = {}
        if all(parameter.device.type == "cpu" for parameter in self._parameters.values()):
            self._file = _written({name: value.data.contiguous() for name, value in self._parameters.items()})
        else:
            self._copies = {name: value.data.to("cpu") for name, value in self._parameters.items()}
        for parameter in self._parameters.values():
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)

    def wake(self) -> None:
        """Puts the weights back.

        Raises:
            OSError: The file cannot be read.
        """
        copies = self._copies if self._file is None else load_file(self._file)
        for name, parameter in self._parameters.items():
            parameter.data = copies[name].to(parameter.device)
        self._copies = {}
        self.forget()

    def forget(self) -> None:
        """Removes the file."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def _written(tensors: dict[str, Tensor]) -> Path:
    with tempfile.NamedTemporaryFile(prefix="callsheet-weights-", suffix=".safetensors", delete=False) as file:
        path = Path(file.name)
    try:
        save_file(tensors, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path
