"""Reads the shape of a model on disk from `config.json` beside its weights. Imports nothing heavy."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from callsheet.managers.models.config import TransformerConfig

CONFIG_FILE = "config.json"

WEIGHTS_FILE = "weights.pt"


class WeightsError(ValueError):
    """A directory does not hold usable weights; the message names file, value and rule."""


def read_config(directory: Path) -> TransformerConfig:
    """Returns the shape in `config.json`.

    Raises:
        WeightsError: The file is missing, is not JSON, or has unknown keys or bad values.
    """
    path = directory / CONFIG_FILE
    fields = read_json(path)
    known = {field.name for field in dataclasses.fields(TransformerConfig)}
    unknown = sorted(set(fields) - known)
    if unknown:
        raise WeightsError(f"{path}: unknown keys {unknown}; known are {sorted(known)}")
    try:
        return TransformerConfig(**fields)
    except ValueError as error:
        raise WeightsError(f"{path}: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a file.

    Raises:
        WeightsError: The file is missing, or does not hold one JSON object.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise WeightsError(f"{path}: is missing") from error
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error})") from error
    except ValueError as error:
        raise WeightsError(f"{path}: is not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise WeightsError(f"{path}: holds {type(fields).__name__}; it must be one object")
    return fields


def check_weights(directory: Path) -> TransformerConfig:
    """Returns the shape in `config.json`, once the weights are known to be beside it.

    Raises:
        WeightsError: One of the files is missing, or `config.json` is not right.
    """
    config = read_config(directory)
    if not (directory / WEIGHTS_FILE).is_file():
        raise WeightsError(f"{directory / WEIGHTS_FILE}: is missing")
    return config
