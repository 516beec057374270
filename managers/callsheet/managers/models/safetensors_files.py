"""Reads only the headers of the safetensors files in a model's directory. Imports nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from callsheet.managers.models.config_file import WeightsError, read_json

TENSORS_FILE = "model.safetensors"

INDEX_FILE = "model.safetensors.index.json"

_MOST_HEADER_BYTES = 100 << 20


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        dtype: As safetensors names it, for instance "F32".
        shape: Its shape.
        begin: Bytes before it in the file's data.
        end: Bytes before what follows it.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TensorsFile:
    """A file of safetensors.

    Attributes:
        path: The file.
        begin: Bytes before its data.
        size: Bytes of its data.
        tensors: What is in it, by name.
    """

    path: Path
    begin: int
    size: int
    tensors: Mapping[str, StoredTensor]


def read_tensor_files(directory: Path) -> list[TensorsFile]:
    """Reads the headers of the files that hold a model's tensors.

    Raises:
        WeightsError: A file is missing, is none of safetensors, or was cut short.
    """
    return [_read(path) for path in _paths(directory)]


def _paths(directory: Path) -> list[Path]:
    if (directory / INDEX_FILE).is_file():
        shards = read_json(directory / INDEX_FILE).get("weight_map")
        if not isinstance(shards, Mapping) or not shards:
            raise WeightsError(f"{directory / INDEX_FILE}: has no weight_map")
        if strange := next((name for name in shards.values() if Path(str(name)).name != name), None):
            raise WeightsError(f"{directory / INDEX_FILE}: {strange!r} is no name of a file beside it")
        files = [directory / str(name) for name in sorted(set(shards.values()))]
    else:
        files = sorted(directory.glob("*.safetensors")) or [directory / TENSORS_FILE]
    for file in files:
        if not file.is_file():
            other = next(iter(sorted(directory.glob("*.bin"))), None)
            hint = f"; {other.name} is another format, save the model with safetensors" if other else ""
            raise WeightsError(f"{file}: is missing{hint}")
    return files


def _read(path: Path) -> TensorsFile:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(size - 8, _MOST_HEADER_BYTES):
                raise WeightsError(f"{path}: is not a file of safetensors, or is cut short")
            header = json.loads(file.read(length))
        tensors = {
            name: StoredTensor(entry["dtype"], tuple(map(int, entry["shape"])), *map(int, entry["data_offsets"]))
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except WeightsError:
        raise
    except (OSError, ValueError, AttributeError, LookupError, TypeError) as error:
        raise WeightsError(f"{path}: is not a file of safetensors ({error})") from error
    data = max((tensor.end for tensor in tensors.values()), default=0)
    if 8 + length + data != size:
        raise WeightsError(f"{path}: has {size} bytes instead of {8 + length + data}; it is cut short")
    return TensorsFile(path, 8 + length, data, tensors)
