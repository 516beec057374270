"""Archives of what a task folder has: the same files are the same bytes, wherever and whenever they are read."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path


def archive_of(directory: Path | None, more: Iterable[Path] = (), *, executable: bool = False) -> bytes:
    """Returns a compressed tar archive of a directory's content. Blocks.

    Args:
        directory: The directory; None for further files alone.
        more: Further files, which are put beside its content by their names.
        executable: Whether scripts (*.sh) can be executed, whatever they are on disk.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        own = [(path, str(path.relative_to(directory))) for path in _below(directory)] if directory is not None else []
        for path, name in [*own, *((path, path.name) for path in more)]:
            member = archive.gettarinfo(path, name)
            member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "root", "root"
            if executable and name.endswith(".sh") and member.isreg():
                member.mode |= 0o755
            if member.isreg():
                with path.open("rb") as file:
                    archive.addfile(member, file)
            elif member.isdir() or member.issym():
                archive.addfile(member)
    return gzip.compress(out.getvalue(), 6, mtime=0)


def empty_directories(*names: str) -> bytes:
    """Returns a tar archive of empty directories."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o777
            archive.addfile(member)
    return out.getvalue()


def _below(directory: Path) -> Iterator[Path]:
    for place, directories, files in os.walk(directory):
        directories.sort()
        yield from (Path(place, name) for name in sorted([*directories, *files]))
