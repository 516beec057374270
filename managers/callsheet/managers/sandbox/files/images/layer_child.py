"""The child process that unpacks one layer: a request comes as JSON on stdin, the answer goes as JSON to stdout.

    {"archive": path, "target": empty directory, "lower": [directories], "limit": bytes, "as_root": bool,
     "digest": "sha256:..." or "", "size": bytes or -1, "diff_id": "sha256:..." or ""}

    {"bytes": N}, {"refused": why}, or {"errno": N, "error": why}

It keeps the decompression of hostile bytes and the work of Python away from the manager, and it can be killed.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import sys
import tarfile
import zlib
from typing import IO, Any, cast

import zstandard
from callsheet.managers.sandbox.files.images.layer_tree import LayerRefusedError, LayerTree
from callsheet.managers.sandbox.files.images.lower_layers import LowerLayers

_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
_LONGEST_MAGIC = 6
# A window beyond this takes more memory than any layer needs; "zstd --ultra" goes up to it.
_MOST_ZSTD_WINDOW = 1 << 27
_BLOCK = 1 << 18
_RECORD = 512
_BROKEN = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError, gzip.BadGzipFile)


class _Hashing(io.RawIOBase):
    """Reads another file and knows digest, number and last bytes of what was read."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.size = 0
        self.end = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._file.read(len(buffer))
        buffer[: len(block)] = block
        self._digest.update(block)
        self.size += len(block)
        self.end = (self.end + block[-_RECORD:])[-_RECORD:]
        return len(block)

    def digest(self) -> str:
        """Of what was read so far."""
        return f"sha256:{self._digest.hexdigest()}"


def unpack(request: dict[str, Any]) -> int:
    """Unpacks an archive; returns the bytes that it takes, about.

    Raises:
        LayerRefusedError: It is no archive, is not what its digests say, or breaks a rule.
        OSError: It cannot be read or written.
    """
    tree = LayerTree(
        request["target"], LowerLayers(request["lower"]), request["limit"], as_root=bool(request["as_root"])
    )
    with open(request["archive"], "rb") as file:
        stored = _Hashing(file)
        buffered = io.BufferedReader(stored, _BLOCK)
        archive = _Hashing(_decompressed(buffered))
        try:
            with tarfile.open(fileobj=io.BufferedReader(archive, _BLOCK), mode="r|", encoding="utf-8") as members:
                for member in members:
                    tree.add(member, members.extractfile(member) if member.isreg() else None)
            # What follows the last member counts for the digests as well.
            while archive.read(_BLOCK):
                pass
        except _BROKEN as error:
            _check(request, stored, buffered)
            raise LayerRefusedError(f"cannot be unpacked: {error}") from error
        except OSError as error:
            # bz2 says so in this way that it was given something else; the system has a number for what it refuses.
            if error.errno is None:
                raise LayerRefusedError(f"cannot be unpacked: {error}") from error
            raise
        _check(request, stored, buffered)
    if not request["digest"] and archive.end != bytes(_RECORD):
        raise LayerRefusedError("is cut off, or no archive up to its end")
    if request["diff_id"] and archive.digest() != request["diff_id"]:
        raise LayerRefusedError(f"wrong digest: its archive has {archive.digest()} instead of {request['diff_id']}")
    return tree.finish()


def _decompressed(file: io.BufferedReader[_Hashing]) -> IO[bytes]:
    """Reads what an archive was before it was compressed, by its first bytes and not by what it is called."""
    start = file.peek(_LONGEST_MAGIC)
    kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), "")
    if kind == "gzip":
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if kind == "zstd":
        reader = zstandard.ZstdDecompressor(max_window_size=_MOST_ZSTD_WINDOW)
        return cast(IO[bytes], reader.stream_reader(file, read_across_frames=True))
    if kind == "bzip2":
        return cast(IO[bytes], bz2.BZ2File(file))
    return cast(IO[bytes], lzma.LZMAFile(file)) if kind == "xz" else file


def _check(request: dict[str, Any], stored: _Hashing, buffered: io.BufferedReader[_Hashing]) -> None:
    """Refuses a blob that is not the one that was asked for."""
    if not request["digest"]:
        return
    while buffered.read(_BLOCK):
        pass
    if stored.size != request["size"]:
        raise LayerRefusedError(f"is cut off: has {stored.size} of {request['size']} bytes")
    if stored.digest() != request["digest"]:
        raise LayerRefusedError(f"wrong digest: {stored.digest()} came instead of {request['digest']}")


def main() -> None:
    """Answers one request."""
    answer: dict[str, object]
    try:
        answer = {"bytes": unpack(json.load(sys.stdin))}
    except LayerRefusedError as error:
        answer = {"refused": str(error)}
    except OSError as error:
        answer = {"errno": error.errno or 0, "error": f"{error.strerror or error}"}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
