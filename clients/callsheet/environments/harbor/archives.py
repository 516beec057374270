"""Archives of what a task folder has: the same files are the same bytes, wherever and whenever they are read."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path


def archive_of(directory: Path | None, more: Iterable[Path] = (), *, executable: bool = False) -> bytes:
    """Returns a compressed tar archive of a directory's content. Blocks.

    Sockets and devices are left out, as Docker leaves them out of what it builds of.

    Args:
        directory: The directory; None for further files alone.
        more: Further files, which are put beside its content by their names.
        executable: Whether scripts (*.sh) can be executed, whatever they are on disk.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        own = [(path, str(path.relative_to(directory))) for path in _below(directory)] if directory is not None else []
        for path, name in [*own, *((path, path.name) for path in more)]:
            status = path.lstat()
            if stat.S_ISSOCK(status.st_mode) or stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                continue
            member = archive.gettarinfo(path, name)
            member.mtime, member.uid, member.gid, member.uname, member.gname = 0, 0, 0, "root", "root"
            if member.islnk():
                # A second name of a file is a file of its own.
                member.type, member.size, member.linkname = tarfile.REGTYPE, status.st_size, ""
            if executable and name.endswith(".sh") and member.isreg():
                member.mode |= 0o755
            if member.isreg():
                with path.open("rb") as file:
                    archive.addfile(member, file)
            else:
                archive.addfile(member)
    return gzip.compress(out.getvalue(), 6, mtime=0)


def odd_members(directory: Path, *, built: bool = False) -> list[str]:
    """Returns what cannot be taken of a directory, each with the reason. Blocks.

    Args:
        directory: The directory; one that is not there has nothing odd.
        built: Whether an image is built of it, which may have any links.
    """
    found = []
    for path in _below(directory):
        mode, name = path.lstat().st_mode, str(path.relative_to(directory.parent))
        if stat.S_ISLNK(mode):
            inside = os.path.normpath(path.parent.relative_to(directory) / os.readlink(path))
            if not built and (inside.startswith("/") or inside.split("/")[0] == ".."):
                found.append(f"{name}: a link to {os.readlink(path)!r}, which leads out of {directory.name}")
        elif not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
            found += [] if built else [f"{name}: neither a file nor a directory nor a link"]
        elif not os.access(path, os.R_OK):
            found.append(f"{name}: may not be read")
    return found


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
