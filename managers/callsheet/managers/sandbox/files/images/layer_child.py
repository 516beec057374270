"""The child process that unpacks one layer: a request comes as JSON on stdin, the answer goes as JSON to stdout.

    {"archive": path or descriptor, "target": empty directory, "lower": [directories], "limit": bytes,
     "digest": "sha256:..." or "", "size": bytes or -1, "diff_id": "sha256:..." or ""}
    and perhaps "only": path of the one member that is wanted, which becomes `ONLY`

    {"bytes": N, "opaque": [directories that are to hide those below them]}, {"refused": why},
    or {"errno": N, "error": why}

It keeps the decompression of hostile bytes and the work of Python away from the manager, and it can be killed. Its own
bounds are those of time and memory; `layer_cache` says what else keeps it in.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import math
import os
import posixpath
import resource
import signal
import sys
import tarfile
import zlib
from typing import IO, Any, cast

import zstandard
from callsheet.managers.sandbox.files.images.layer_tree import LayerRefusedError, LayerTree
from callsheet.managers.sandbox.files.images.lower_layers import LowerLayers

ONLY = "file"
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz"}
_LONGEST_MAGIC = 6
# A window beyond this takes more memory than any layer needs; "zstd --ultra" goes up to it.
_MOST_ZSTD_WINDOW = 1 << 27
# A small archive may become much, and not without end: zeros shrink to a thousandth.
_FREE_BYTES = 512 << 20
_MOST_RATIO = 200
_MOST_MEMORY_MIB = 1024
_MOST_CPU_S = 900
_BLOCK = 1 << 18
_RECORD = 512
# The last of them: headers of headers without end.
_BROKEN = (
    tarfile.TarError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    zstandard.ZstdError,
    gzip.BadGzipFile,
    RecursionError,
)


class _Hashing(io.RawIOBase):
    """Reads another file, up to a bound, and knows digest, number and last bytes of what was read."""

    def __init__(self, file: IO[bytes], most: float = math.inf) -> None:
        self._file = file
        self._most = most
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
        if self.size > self._most:
            raise LayerRefusedError(f"has more than {int(self._most) >> 20} MiB in its archive, with what is left out")
        self.end = (self.end + block[-_RECORD:])[-_RECORD:]
        return len(block)

    def digest(self) -> str:
        """Returns the digest of the bytes that were read so far."""
        return f"sha256:{self._digest.hexdigest()}"


def unpack(request: dict[str, Any]) -> tuple[int, list[str]]:
    """Unpacks an archive; returns the bytes that it takes, about, and the directories that hide those below them.

    Raises:
        LayerRefusedError: It is no archive, is not what its digests say, or breaks a rule.
        OSError: It cannot be read or written.
    """
    most = _FREE_BYTES + _MOST_RATIO * os.stat(request["archive"]).st_size
    limit, rule = min(
        (request["limit"], "all that it may take"),
        (most, f"{_FREE_BYTES >> 20} MiB and {_MOST_RATIO} times its archive"),
    )
    tree = LayerTree(request["target"], LowerLayers(request["lower"]), limit, rule)
    with open(request["archive"], "rb") as file:
        stored = _Hashing(file)
        buffered = io.BufferedReader(stored, _BLOCK)
        archive = _Hashing(_decompressed(buffered), most)
        try:
            with tarfile.open(fileobj=io.BufferedReader(archive, _BLOCK), mode="r|", encoding="utf-8") as members:
                for member in members:
                    if request.get("only"):
                        if posixpath.normpath(f"/{member.name}").lstrip("/") != request["only"]:
                            continue
                        member.name = ONLY
                    tree.add(member, members.extractfile(member) if member.isreg() else None)
                    # It would keep all of them.
                    cast(Any, members).members.clear()
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
    return tree.bytes, tree.finish()


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


def _bound(most_bytes: int) -> None:
    """Bounds what this process takes of the machine, files apart."""
    memory = _MOST_MEMORY_MIB << 20
    for kind, limits in (
        (resource.RLIMIT_AS, (memory, memory)),
        (resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S + 10)),
        (resource.RLIMIT_FSIZE, (most_bytes, most_bytes)),
        (resource.RLIMIT_CORE, (0, 0)),
    ):
        resource.setrlimit(kind, limits)

    def end(_: int, __: object) -> None:
        raise LayerRefusedError(f"takes more than {_MOST_CPU_S} s of a core to unpack")

    signal.signal(signal.SIGXCPU, end)


def main() -> None:
    """Answers one request."""
    answer: dict[str, object]
    try:
        request = json.load(sys.stdin)
        _bound(request["limit"])
        taken, opaque = unpack(request)
        answer = {"bytes": taken, "opaque": opaque}
    except MemoryError:
        answer = {"refused": f"takes more than {_MOST_MEMORY_MIB} MiB of memory to unpack"}
    except LayerRefusedError as error:
        answer = {"refused": str(error)}
    except OSError as error:
        answer = {"errno": error.errno or 0, "error": f"{error.strerror or error}"}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
