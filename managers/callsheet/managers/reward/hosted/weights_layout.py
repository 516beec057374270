"""Finds the place of each tensor of a model in its safetensors files, only from their headers. No torch.

The data of a file is copied into an arena as it is, and so are the tensors' places in it: a restore is one long copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from callsheet.managers.models.safetensors_files import read_tensor_files


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
        WeightsError: There are none, or one is broken.
    """
    parts: list[FilePart] = []
    tensors: dict[str, TensorPlace] = {}
    offset = 0
    for file in read_tensor_files(directory):
        for name, each in file.tensors.items():
            tensors[name] = TensorPlace(each.dtype, each.shape, offset + each.begin, each.end - each.begin)
        parts.append(FilePart(file.path, file.begin, offset, file.size))
        offset += -(-file.size // 64) * 64
    return WeightsLayout(tuple(parts), tensors, offset)
