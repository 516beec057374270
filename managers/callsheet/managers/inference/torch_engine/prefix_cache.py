"""Keeps the KV of prompt chunks for later prompts that begin alike.

Only whole chunks that a prefill computed are kept, and a prefill always cuts a prompt at multiples of the chunk. So a
reused chunk holds the very bits that computing it again would give, and reuse never changes a token.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor


def chunk_keys(token_ids: Sequence[int], chunk: int) -> list[bytes]:
    """Returns one key for each whole chunk of a prompt; a key stands for all tokens up to its chunk's end."""
    keys: list[bytes] = []
    previous = b""
    for begin in range(0, len(token_ids) - chunk + 1, chunk):
        tokens = array("q", token_ids[begin : begin + chunk]).tobytes()
        previous = hashlib.blake2b(previous + tokens, digest_size=16).digest()
        keys.append(previous)
    return keys


class PrefixCache:
    """Chunks by key, the least recently used dropped first."""

    def __init__(self, capacity_chunks: int) -> None:
        """Keeps at most `capacity_chunks` chunks; 0 keeps none."""
        self._capacity = capacity_chunks
        self._chunks: OrderedDict[bytes, Tensor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._chunks)

    def find(self, keys: Sequence[bytes]) -> list[Tensor]:
        """Returns the KV of the longest run of leading chunks that is here."""
        found: list[Tensor] = []
        for key in keys:
            chunk = self._chunks.get(key)
            if chunk is None:
                break
            self._chunks.move_to_end(key)
            found.append(chunk)
        return found

    def put(self, key: bytes, chunk: Tensor) -> None:
        """Keeps a copy of a chunk's KV."""
        if self._capacity == 0:
            return
        if key not in self._chunks:
            self._chunks[key] = chunk.clone()
        self._chunks.move_to_end(key)
        while len(self._chunks) > self._capacity:
            self._chunks.popitem(last=False)

    def clear(self) -> None:
        """Forgets everything."""
        self._chunks.clear()
