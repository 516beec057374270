"""Contents of any size in messages: inline, or by reference. Pure: uploads and fetches are collected, not made."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from callsheet.client.errors import invalid
from callsheet.v1 import common_pb2

MAX_INLINE_BYTES = 64 * 1024
"""The contract's limit for one inline blob."""
MAX_INLINE_TOTAL_BYTES = 512 * 1024
"""Inline bytes of one action after which its further blobs go by reference too, to keep the streams thin."""


class BlobWriter:
    """Makes blobs and collects the contents that have to be stored before they can be referred to.

    Attributes:
        uploads: Contents by their SHA-256.
    """

    __slots__ = ("_inline_bytes", "uploads")

    def __init__(self) -> None:
        self.uploads: dict[str, bytes] = {}
        self._inline_bytes = 0

    def blob(self, field: str, content: bytes) -> common_pb2.Blob:
        """Returns a blob: inline while small, otherwise by reference."""
        if not isinstance(content, bytes):
            raise invalid(field, type(content).__name__, "content is bytes")
        size = len(content)
        if size <= MAX_INLINE_BYTES and self._inline_bytes + size <= MAX_INLINE_TOTAL_BYTES:
            self._inline_bytes += size
            return common_pb2.Blob(inline=content)
        sha256 = hashlib.sha256(content).hexdigest()
        self.uploads[sha256] = content
        return common_pb2.Blob(reference=common_pb2.PayloadReference(sha256=sha256, size=size))


class BlobReader:
    """Reads blobs and collects the references whose bytes have to be fetched first.

    Attributes:
        missing: References that were met and are not in `fetched`, by SHA-256.
    """

    __slots__ = ("_fetched", "missing")

    def __init__(self, fetched: Mapping[str, bytes]) -> None:
        self._fetched = fetched
        self.missing: dict[str, common_pb2.PayloadReference] = {}

    def read(self, blob: common_pb2.Blob) -> bytes:
        """Returns the bytes; none for a reference that is missing."""
        if not blob.HasField("reference"):
            return blob.inline
        content = self._fetched.get(blob.reference.sha256)
        if content is None:
            self.missing[blob.reference.sha256] = blob.reference
            return b""
        return content
