"""The memory of one device for weights: one tensor, allocated once, that restores copy into."""

from __future__ import annotations

import mmap
import os
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
        for part in layout.parts:
            self._copy(part, offset + part.offset)
        if self.device.type != "cpu":
            torch.cuda.synchronize(self.device)

    def tensor(self, place: TensorPlace, offset: int) -> torch.Tensor:
        """A tensor of a model that lies at `offset`, without a copy."""
        begin = offset + place.offset
        return self._bytes[begin : begin + place.size].view(_DTYPES[place.dtype]).view(place.shape)

    def _copy(self, part: FilePart, offset: int) -> None:
        file = os.open(part.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if self._view is not None:
                _read_into(file, self._view[offset : offset + part.size], part.begin, part.path)
                return
            buffer = torch.empty(min(_PIECE, part.size), dtype=torch.uint8, pin_memory=True)
            for done in range(0, part.size, _PIECE):
                size = min(_PIECE, part.size - done)
                _read_into(file, buffer.numpy().data[:size], part.begin + done, part.path)
                self._bytes[offset + done : offset + done + size].copy_(buffer[:size])
        finally:
            os.close(file)


def supported(layout: WeightsLayout) -> bool:
    """Whether all tensors have a type that can lie in an arena, at a place where it may."""
    return all(
        place.dtype in _DTYPES and place.offset % max(_DTYPES[place.dtype].itemsize, 1) == 0
        for place in layout.tensors.values()
    )


def _read_into(file: int, into: memoryview, begin: int, path: Path) -> None:
    done = 0
    while done < len(into):
        read = os.preadv(file, [into[done : done + _PIECE]], begin + done)
        if not read:
            raise OSError(f"{path}: ends after {begin + done} bytes, earlier than its header says")
        done += read
