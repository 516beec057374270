"""Keeps the KV of prompt chunks for later prompts that begin alike.

Only whole chunks that a prefill computed are kept, and a prefill always cuts a prompt at multiples of the chunk. So a
reused chunk holds the very bits that computing it again would give, and reuse never changes a token.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from callsheet.managers.inference.torch_engine.batch_runner import KvChunk


def chunk_keys(token_ids: Sequence[int], chunk: int, namespace: str = "") -> list[bytes]:
    """Returns one key for each whole chunk of a prompt; a key stands for its namespace and all tokens up to its end."""
    keys: list[bytes] = []
    previous = namespace.encode("utf-8", errors="surrogatepass")
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
        self._chunks: OrderedDict[bytes, KvChunk] = OrderedDict()

    def __len__(self) -> int:
        return len(self._chunks)

    def find(self, keys: Sequence[bytes]) -> list[KvChunk]:
        """Returns the KV of the longest run of leading chunks that is here."""
        found: list[KvChunk] = []
        for key in keys:
            chunk = self._chunks.get(key)
            if chunk is None:
                break
            self._chunks.move_to_end(key)
            found.append(chunk)
        return found

    def put(self, key: bytes, chunk: KvChunk) -> None:
        """Keeps a copy of a chunk's KV."""
        if self._capacity == 0:
            return
        if key not in self._chunks:
            self._chunks[key] = tuple(part.clone() for part in chunk)
        self._chunks.move_to_end(key)
        while len(self._chunks) > self._capacity:
            self._chunks.popitem(last=False)

    def clear(self) -> None:
        """Forgets everything."""
        self._chunks.clear()
