"""Looks at weights on disk before a server is told to read them: servers die of torn files, in the middle of a model.

Only headers are read. A directory that this machine does not see is for the server alone to judge.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from callsheet.managers.inference.driver import WeightUpdateError

MAX_HEADER_BYTES = 100 * 2**20
Shapes = dict[str, tuple[int, ...]]


def check_weights(location: str, served: str) -> None:
    """Refuses weights that a server could not use; blocks on files.

    Args:
        location: Directory of the new weights.
        served: Directory of the weights that it serves now; what cannot be read from here is not compared.

    Raises:
        WeightUpdateError: A file is torn or missing, or tensors have other names or shapes than those it serves.
    """
    directory = Path(location)
    if not directory.is_dir():
        if directory.is_absolute() and Path(served).is_dir():
            # What the server serves can be seen from here, so its file system is this one.
            raise WeightUpdateError(f"{location}: there is no such directory", intact=True)
        return
    try:
        shapes = shapes_in(directory)
    except ValueError as error:
        raise WeightUpdateError(str(error), intact=True) from error
    try:
        known = shapes_in(Path(served)) if Path(served).is_dir() else {}
    except ValueError:
        known = {}  # Those that are served may have been replaced on disk.
    if shapes and known and shapes != known:
        names = sorted(name for name in shapes.keys() | known.keys() if shapes.get(name) != known.get(name))
        message = f"{location}: {names[0]} and {len(names) - 1} more tensors are not those of the running model"
        raise WeightUpdateError(message, intact=True)


def shapes_in(directory: Path) -> Shapes:
    """Shapes of all tensors in a directory's files of safetensors; none where there is no such file.

    Raises:
        ValueError: A file is torn, or one that the index names is missing.
    """
    shapes: Shapes = {}
    for path in _files(directory):
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                header = _header(file.read(8), file.read, size)
        except (OSError, ValueError, struct.error) as error:
            raise ValueError(f"{path}: is torn or missing: {error}") from error
        shapes.update(_shapes(header))
    return shapes


def _files(directory: Path) -> Iterable[Path]:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return sorted(directory.glob("*.safetensors"))
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{index}: is torn or missing: {error}") from error
    return [directory / str(name) for name in sorted(named)]


def _header(length: bytes, read: Callable[[int], bytes], size: int) -> Mapping[str, Any]:
    (header_bytes,) = struct.unpack("<Q", length)
    if header_bytes > min(size, MAX_HEADER_BYTES):
        raise ValueError("its header is longer than the file")
    header = json.loads(read(header_bytes))
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    if 8 + header_bytes + max(ends, default=0) != size:
        raise ValueError("it is not as long as its header says")
    return header


def _shapes(header: Mapping[str, Any]) -> Shapes:
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
