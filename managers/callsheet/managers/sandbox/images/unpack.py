"""Makes a layer of an archive: unpacked by tar(1), then put into the form in which an overlay takes it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import anyio
import anyio.to_thread
from callsheet.managers.sandbox.changes import ENTRY_BYTES, SPECIAL_BITS
from callsheet.managers.sandbox.images.store import ImageError

_UNPACK_SECONDS = 1800.0
_SHOWN_BYTES = 2000
_WHITEOUT, _OPAQUE_MARK = ".wh.", ".wh..wh..opq"


async def unpack_layer(archive: Path, target: Path) -> int:
    """Unpacks an archive into an empty directory; returns the bytes that takes, about.

    Everything belongs to this process's user afterwards. Devices, pipes, sockets and set-user-id are left out.

    Raises:
        ImageError: It is no archive that tar reads, or took too long.
        OSError: There is no tar, or no space.
    """
    # tar places links that lead elsewhere only at the end, so that no member is written through one.
    command = ["tar", "--extract", f"--file={archive}", f"--directory={target}", "--no-same-owner"]
    command += ["--preserve-permissions", "--delay-directory-restore", "--exclude=./dev/*", "--exclude=dev/*"]
    with anyio.move_on_after(_UNPACK_SECONDS) as waiting:
        done = await anyio.run_process(command, check=False, stdin=None, env={**os.environ, "LC_ALL": "C"})
    if waiting.cancelled_caught:
        raise ImageError(f"archive {archive.name!r}: took more than {_UNPACK_SECONDS:g} s to unpack")
    if done.returncode != 0:
        said = done.stderr[-_SHOWN_BYTES:].decode(errors="replace").strip()
        raise ImageError(f"archive {archive.name!r}: tar ended with {done.returncode}: {said}")
    return await anyio.to_thread.run_sync(_make_layer, target, os.geteuid() == 0)


def _make_layer(root: Path, as_root: bool) -> int:
    """Blocks: turns marks of deletion into those of overlays, drops what must not be there, and counts."""
    total = 0
    # `topdown` by default: a directory is made accessible before it is read.
    for place, directories, files in os.walk(root):
        for name in directories:
            path = os.path.join(place, name)
            if not os.path.islink(path):
                mode = stat.S_IMODE(os.lstat(path).st_mode)
                os.chmod(path, (mode & ~SPECIAL_BITS) | stat.S_IRWXU)
            total += ENTRY_BYTES
        for name in files:
            total += ENTRY_BYTES + _settle(place, name, as_root)
    return total


def _settle(place: str, name: str, as_root: bool) -> int:
    path = os.path.join(place, name)
    status = os.lstat(path)
    if name == _OPAQUE_MARK:
        os.unlink(path)
        os.setxattr(place, "trusted.overlay.opaque" if as_root else "user.overlay.opaque", b"y")
    elif name.startswith(_WHITEOUT):
        os.unlink(path)
        os.mknod(os.path.join(place, name.removeprefix(_WHITEOUT)), stat.S_IFCHR, 0)
    elif stat.S_ISREG(status.st_mode):
        if status.st_mode & SPECIAL_BITS:
            os.chmod(path, stat.S_IMODE(status.st_mode) & ~SPECIAL_BITS)
        return status.st_blocks * 512
    elif not stat.S_ISLNK(status.st_mode):
        os.unlink(path)
    return 0
