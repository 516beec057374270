"""Makes a layer of an archive, in a child process."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
from callsheet.managers.sandbox.files.images import layer_child
from callsheet.managers.sandbox.files.images.errors import ImageError
from callsheet.managers.sandbox.files.images.oci import Blob

_UNPACK_SECONDS = 1800.0
_SHOWN_BYTES = 2000
# Names that no file here can have are the archive's fault and not the disk's.
_OF_ARCHIVE = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ})


@dataclass(frozen=True, slots=True)
class ExpectedLayer:
    """What a blob must be: by size and digest as it is stored, and by digest as it is uncompressed."""

    blob: Blob
    diff_id: str


async def unpack_layer(
    archive: Path,
    target: Path,
    limit_bytes: int,
    lower: Sequence[Path] = (),
    expected: ExpectedLayer | None = None,
) -> int:
    """Unpacks an archive into an empty directory; returns the bytes that takes, about.

    Everything belongs to this process's user afterwards. Devices, pipes, sockets and set-user-id are left out.

    Args:
        archive: A tar archive, also compressed by gzip, zstd, bzip2 or xz.
        target: The directory.
        limit_bytes: The most that it may take.
        lower: The layers below, the lowest first.
        expected: What it must be; None for anything.

    Raises:
        ImageError: It is no such archive, or took too long.
        OSError: There is no space.
    """
    blob = expected.blob if expected is not None else None
    request = {
        "archive": str(archive),
        "target": str(target),
        "lower": [str(path) for path in lower],
        "limit": limit_bytes,
        "as_root": os.geteuid() == 0,
        "digest": blob.digest if blob is not None else "",
        "size": blob.size if blob is not None else -1,
        "diff_id": expected.diff_id if expected is not None else "",
    }
    what = f"layer {blob.digest}" if blob is not None else f"archive {archive.name!r}"
    with anyio.move_on_after(_UNPACK_SECONDS) as waiting:
        done = await anyio.run_process(
            [sys.executable, "-m", layer_child.__name__], input=json.dumps(request).encode(), check=False
        )
    if waiting.cancelled_caught:
        raise ImageError(f"{what}: took more than {_UNPACK_SECONDS:g} s to unpack")
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        said = done.stderr[-_SHOWN_BYTES:].decode(errors="replace").strip()
        raise ImageError(f"{what}: unpacking it ended with {done.returncode}: {said}") from error
    if "refused" in answer:
        raise ImageError(f"{what}: {answer['refused']}")
    if "error" in answer:
        if answer["errno"] in _OF_ARCHIVE:
            raise ImageError(f"{what}: cannot be unpacked: {answer['error']}")
        raise OSError(answer["errno"], answer["error"])
    return int(answer["bytes"])
