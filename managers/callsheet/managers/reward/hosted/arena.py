"""The memory of one device for weights: one tensor, allocated once, that restores copy into."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from callsheet.managers.reward.hosted.weights_layout import FilePart, TensorPlace, WeightsLayout

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}

# Read at once; on its way to a GPU it passes a buffer of this size.
_PIECE = 16 << 20

# To a GPU: one thread copies from the page cache at a tenth of what its bus carries.
_READERS = 8


class WeightsArena:
    """The arena of one device. On a CPU the workers of a manager share it, as a file in memory."""

    def __init__(self, device: str, budget_bytes: int, memory_file: int | None = None) -> None:
        """Allocates it, or takes over the shared one.

        Args:
            device: "cpu", or a torch device such as "cuda:0".
            budget_bytes: Its size.
            memory_file: Descriptor of the shared arena, for a CPU.
        """
        self.device = torch.device(device)
        if self.device.type == "cpu" and memory_file is not None:
            self._mapped = mmap.mmap(memory_file, budget_bytes)
            self._bytes = torch.frombuffer(self._mapped, dtype=torch.uint8)
            self._view: memoryview | None = memoryview(self._mapped)
        else:
            self._bytes = torch.empty(budget_bytes, dtype=torch.uint8, device=self.device)
            self._view = self._bytes.numpy().data if self.device.type == "cpu" else None

    def restore(self, layout: WeightsLayout, offset: int) -> None:
        """Copies the data of a model's files to its place.

        Raises:
            OSError: A file cannot be read, or is shorter than its header says.
        """
        with ThreadPoolExecutor(1 if self._view is not None else _READERS) as readers:
            pieces = (
                readers.submit(self._copy, part, begin, offset + part.offset + begin)
                for part in layout.parts
                for begin in range(0, part.size, _PIECE)
            )
            for piece in list(pieces):
                piece.result()

    def tensor(self, place: TensorPlace, offset: int) -> torch.Tensor:
        """A tensor of a model that lies at `offset`, without a copy."""
        begin = offset + place.offset
        return self._bytes[begin : begin + place.size].view(_DTYPES[place.dtype]).view(place.shape)

    def _copy(self, part: FilePart, begin: int, offset: int) -> None:
        size = min(_PIECE, part.size - begin)
        file = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if self._view is not None:
                _read_into(file, self._view[offset : offset + size], part.begin + begin, part.path)
            else:
                buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
                _read_into(file, buffer.numpy().data, part.begin + begin, part.path)
                self._bytes[offset : offset + size].copy_(buffer)
        finally:
            os.close(file)


def supported(layout: WeightsLayout) -> bool:
    """Returns whether all tensors have a type that can lie in an arena, at a place where it may."""
    return all(
        place.dtype in _DTYPES and place.offset % max(_DTYPES[place.dtype].itemsize, 1) == 0
        for place in layout.tensors.values()
    )


def _read_into(file: int, into: memoryview, begin: int, path: Path) -> None:
    done = 0
    while done < len(into):
        read = os.preadv(file, [into[done:]], begin + done)
        if not read:
            raise OSError(f"{path}: ends after {begin + done} bytes, earlier than its header says")
        done += read
