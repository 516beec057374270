"""Weights on disk: a directory with `config.json` (the shape) and `weights.pt` (a torch state file)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from callsheet.managers.models.config import TransformerConfig
from torch import Tensor, nn

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "weights.pt"


class WeightsError(ValueError):
    """A directory does not hold usable weights; the message names file, value and rule."""


def save_weights(model: nn.Module, config: TransformerConfig, directory: Path) -> None:
    """Writes `config.json` and `weights.pt` into a directory, which is made if it is not there."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / CONFIG_FILE).write_text(json.dumps(dataclasses.asdict(config), indent=2) + "\n", encoding="utf-8")
    torch.save(model.state_dict(), directory / WEIGHTS_FILE)


def read_config(directory: Path) -> TransformerConfig:
    """Returns the shape in `config.json`.

    Raises:
        WeightsError: The file is missing, is not JSON, or has unknown keys or bad values.
    """
    path = directory / CONFIG_FILE
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error})") from error
    except ValueError as error:
        raise WeightsError(f"{path}: is not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise WeightsError(f"{path}: holds {type(fields).__name__}; it must be one object")
    known = {field.name for field in dataclasses.fields(TransformerConfig)}
    unknown = sorted(set(fields) - known)
    if unknown:
        raise WeightsError(f"{path}: unknown keys {unknown}; known are {sorted(known)}")
    try:
        return TransformerConfig(**fields)
    except ValueError as error:
        raise WeightsError(f"{path}: {error}") from error


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
