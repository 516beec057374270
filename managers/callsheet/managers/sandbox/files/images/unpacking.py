"""Reads the archives of strangers in a child process, which bwrap confines."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import anyio
import anyio.to_thread
from callsheet.managers.sandbox.files.images import layer_child
from callsheet.managers.sandbox.files.images.errors import ImageError
from callsheet.managers.sandbox.files.images.layer_tree import ENTRY_BYTES
from callsheet.managers.sandbox.files.images.lower_layers import OPAQUE_MARKS
from callsheet.managers.sandbox.files.images.oci import Blob
from callsheet.managers.sandbox.files.system_shown import library_path, system_options

_UNPACK_SECONDS = 1800.0
_SHOWN_BYTES = 2000
_MOST_TEXT_BYTES = (1 << 20) + ENTRY_BYTES
# Names that no file here can have are the archive's fault and not the disk's.
_OF_ARCHIVE = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ})


@dataclass(frozen=True, slots=True)
class ExpectedLayer:
    """Expected properties of a blob: size and digest as it is stored, and digest as it is uncompressed."""

    blob: Blob
    diff_id: str


async def unpack_layer(
    archive: Path,
    target: Path,
    limit_bytes: int,
    lower: Sequence[Path] = (),
    expected: ExpectedLayer | None = None,
    *,
    bwrap: Path | None,
    only: str = "",
) -> int:
    """Unpacks an archive into an empty directory; returns the bytes that takes, about.

    Everything belongs to this process's user afterwards. Devices, pipes, sockets and set-user-id are left out.

    Args:
        archive: A tar archive, also compressed by gzip, zstd, bzip2 or xz.
        target: The directory.
        limit_bytes: The most that it may take.
        lower: The layers below, the lowest first.
        expected: What it must be; None for anything.
        bwrap: Confines the process that does it; None for nothing.
        only: Path of the one member that is wanted, which becomes `layer_child.ONLY`; empty for all.

    Raises:
        ImageError: It is no such archive, or breaks a bound.
        OSError: There is no space.
    """
    blob = expected.blob if expected is not None else None
    request = {
        "target": str(target),
        "lower": [str(path) for path in lower],
        "limit": limit_bytes,
        "digest": blob.digest if blob is not None else "",
        "size": blob.size if blob is not None else -1,
        "diff_id": expected.diff_id if expected is not None else "",
        "only": only,
    }
    what = f"layer {blob.digest}" if blob is not None else f"archive {archive.name!r}"
    walls = _walls(bwrap, lower, target) if bwrap is not None else []
    environment = {**os.environ, **library_path(bwrap)} if bwrap is not None else None
    # Open, as its directory may be another user's, and within the walls root has no right over those.
    with archive.open("rb") as file, anyio.move_on_after(_UNPACK_SECONDS) as waiting:
        done = await anyio.run_process(
            [*walls, sys.executable, "-m", layer_child.__name__],
            input=json.dumps({**request, "archive": file.fileno()}).encode(),
            check=False,
            env=environment,
            pass_fds=[file.fileno()],
        )
    if waiting.cancelled_caught:
        raise ImageError(f"{what}: took more than {_UNPACK_SECONDS:g} s to unpack")
    answer = _answer_of(done, what)
    await anyio.to_thread.run_sync(hide_what_is_below, target, answer["opaque"])
    return int(answer["bytes"])


def _answer_of(done: CompletedProcess[bytes], what: str) -> dict[str, Any]:
    """Returns the process's answer about an archive that it has unpacked; raises as `unpack_layer`."""
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        said = done.stderr[-_SHOWN_BYTES:].decode(errors="replace").strip()
        raise ImageError(f"{what}: unpacking it ended with {done.returncode}: {said}") from error
    if "refused" in answer:
        raise ImageError(f"{what}: {answer['refused']}")
    if "error" in answer:
        if answer["errno"] in _OF_ARCHIVE:
            raise ImageError(f"{what}: cannot be unpacked: {answer['error']}")
        raise OSError(answer["errno"], answer["error"])
    return answer


async def read_archived(content: bytes, path: str, place: Path, bwrap: Path) -> str:
    """Returns the text of a file in an archive.

    Args:
        content: The archive.
        path: Of the file.
        place: An empty directory, which it is unpacked in.
        bwrap: Confines the process that does it.

    Raises:
        ImageError: It is no such archive, has no such file, or breaks a bound.
        OSError: There is no space.
    """
    archive, target = place / "archive", place / "unpacked"
    target.mkdir()
    await anyio.to_thread.run_sync(archive.write_bytes, content)
    await unpack_layer(archive, target, _MOST_TEXT_BYTES, bwrap=bwrap, only=path)
    archive.unlink()
    found = target / layer_child.ONLY
    if found.is_symlink() or not found.is_file():
        raise ImageError(f"has no file {path[:200]!r}")
    return found.read_text(errors="surrogateescape")


def _walls(bwrap: Path, lower: Sequence[Path], target: Path) -> list[str]:
    """Returns a command's beginning: no network, no other process, one directory to write to, no right over others."""
    words = [str(bwrap), "--unshare-all", "--die-with-parent", "--new-session", "--uid", "0", "--gid", "0"]
    # It reads and replaces files whose modes forbid that, all of its own user.
    words += ["--cap-drop", "ALL", "--cap-add", "CAP_DAC_OVERRIDE", *system_options(), "--dev", "/dev"]
    for path in dict.fromkeys([sys.prefix, sys.base_prefix, *filter(None, sys.path), *map(str, lower)]):
        words += ["--ro-bind-try", path, path]
    return [*words, "--bind", str(target), str(target), "--remount-ro", "/", "--chdir", "/", "--"]


def hide_what_is_below(layer: Path, directories: Sequence[str]) -> None:
    """Marks directories of a layer that hide those below them, which root's overlays let nobody do but root. Blocks.

    Args:
        layer: Made by a process that nobody trusts: no link in it is followed.
        directories: Relative paths; empty for the layer itself.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    for path in directories:
        with ExitStack() as opened:
            place = os.open(layer, flags)
            opened.callback(os.close, place)
            for name in filter(None, path.split("/")):
                if name == "..":
                    raise ImageError(f"directory {path[:200]!r}: leads out of its layer")
                place = os.open(name, flags, dir_fd=place)
                opened.callback(os.close, place)
            os.setxattr(place, OPAQUE_MARKS[0 if os.geteuid() == 0 else 1], b"y")
