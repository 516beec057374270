"""Where each tensor of a model lies in its safetensors files, read from their headers alone. No torch.

The data of a file is copied into an arena as it is, and so are the tensors' places in it: a restore is one long copy.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MOST_HEADER_BYTES = 100 << 20


class LayoutError(ValueError):
    """The weights of a directory cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor in an arena.

    Attributes:
        dtype: As safetensors names it, for instance "F32".
        shape: Its shape.
        offset: Bytes before it, from the place of its model.
        size: Its bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class FilePart:
    """The data of one file.

    Attributes:
        path: The file.
        begin: Bytes of the file before its data.
        offset: Where the data goes, from the place of the model.
        size: Its bytes.
    """

    path: Path
    begin: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class WeightsLayout:
    """All tensors of a model.

    Attributes:
        parts: The data to copy.
        tensors: Where each is then.
        size: Bytes of the whole place.
    """

    parts: tuple[FilePart, ...]
    tensors: dict[str, TensorPlace]
    size: int


def read_layout(directory: Path) -> WeightsLayout:
    """Reads the headers of a directory's safetensors files.

    Raises:
        LayoutError: There are none, or one is broken.
    """
    parts: list[FilePart] = []
    tensors: dict[str, TensorPlace] = {}
    offset = 0
    for path in weights_files(directory):
        begin, header = _read_header(path)
        end = 0
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            tensors[name] = TensorPlace(entry["dtype"], tuple(entry["shape"]), offset + first, last - first)
            end = max(end, last)
        if path.stat().st_size < begin + end:
            raise LayoutError(f"{path}: {path.stat().st_size} bytes: must have {begin + end}, it was cut")
        parts.append(FilePart(path, begin, offset, end))
        offset += -(-end // 64) * 64
    return WeightsLayout(tuple(parts), tensors, offset)


def weights_files(directory: Path) -> list[Path]:
    """The safetensors files of a model.

    Raises:
        LayoutError: There are none.
    """
    index = directory / "model.safetensors.index.json"
    if index.exists():
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise LayoutError(f"{index}: cannot be read: {error}") from error
        return [directory / shard for shard in sorted(shards)]
    single = directory / "model.safetensors"
    if not single.exists():
        raise LayoutError(f"{directory}: must have model.safetensors, or shards with an index")
    return [single]


def _read_header(path: Path) -> tuple[int, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > _MOST_HEADER_BYTES:
                raise LayoutError(f"{path}: a header of {size} bytes: must be a safetensors file")
            header = json.loads(file.read(size))
    except (OSError, ValueError, struct.error) as error:
        raise LayoutError(f"{path}: cannot be read as safetensors: {error}") from error
    header.pop("__metadata__", None)
    return 8 + size, header
