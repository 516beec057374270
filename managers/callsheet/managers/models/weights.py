"""Reads weights from a directory with `config.json` (the shape) and `weights.pt` (a torch state file)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
from callsheet.managers.models.config import TransformerConfig
from callsheet.managers.models.config_file import WEIGHTS_FILE, WeightsError, read_config
from callsheet.managers.models.transformer import initialise
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


def load_model(
    kind: Callable[[TransformerConfig], Model], weights: Path | None, shape: TransformerConfig, seed: int
) -> Model:
    """Returns a model with the weights of a directory; of a shape and filled from a seed where there are none.

    Raises:
        WeightsError: The weights cannot be used.
    """
    if weights is None:
        model = kind(shape)
        initialise(model, seed)
        return model
    model = kind(read_config(weights))
    model.load_state_dict(read_state(weights, shapes(model)))
    return model


def read_state(directory: Path, expected: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Returns the float32 tensors of `weights.pt`, in CPU memory.

    Only tensors are unpickled, so a state file cannot run code.

    Args:
        directory: Where the file is.
        expected: Shape by parameter name, see `shapes`.

    Raises:
        WeightsError: The file is missing or damaged, or its names or shapes are not the expected ones.
    """
    path = directory / WEIGHTS_FILE
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # A reader that is fed garbage raises anything, IndexError for one.
        raise WeightsError(f"{path}: cannot be read as a torch state file ({error})") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise WeightsError(f"{path}: must hold one mapping of names to tensors")
    found = {name: tuple(value.shape) for name, value in state.items()}
    if found != dict(expected):
        wrong = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        details = ", ".join(f"{name}: {found.get(name)} instead of {expected.get(name)}" for name in wrong[:5])
        raise WeightsError(f"{path}: {len(wrong)} tensors do not fit the model ({details})")
    return {name: value.float() for name, value in state.items()}


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor in a model's state."""
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}
