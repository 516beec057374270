"""Unpacks archives, as a program of its own: `agent/__main__.py unpack REPORT CONTENT REPLACES ROOT NAME ...`.

The agent loads nothing after its start, and what an archive needs would double the time and memory that every sandbox
takes. REPORT and CONTENT are inherited descriptors. REPLACES is 1 where what is in the way is removed, else 0. What
follows are the directory to begin from and the components below it. A refusal goes into REPORT, as that of every job.
"""

from __future__ import annotations

import errno
import gzip
import os
import sys
import tarfile
import zlib

from .clearing import clear_bytecode, clear_way
from .files import place_file
from .paths import RefusedJobError, components_of, open_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    """Unpacks one archive; exits with 1 if that is refused."""
    report, content, replaces, root, *base = sys.argv[2:]
    try:
        unpack(root, base, int(content), replaces == "1")
    except RefusedJobError as refusal:
        os.write(int(report), f"{refusal.stage} {refusal.number}".encode())
        sys.exit(1)
    except OSError as error:
        os.write(int(report), f"write {error.errno or errno.EIO}".encode())
        sys.exit(1)


def place_link(root: str, member: tarfile.TarInfo, base: list[str]) -> None:
    """Makes a link of an archive; both kinds must stay inside the directory that is unpacked into."""
    components = components_of(member.name)
    target = member.linkname if member.islnk() else "/".join([*components[:-1], member.linkname])
    if member.linkname.startswith("/") or os.path.normpath(target).split("/")[0] == "..":
        raise RefusedJobError("archive", errno.EPERM)
    directory = open_directory(root, base + components[:-1], True)
    try:
        if member.issym():
            os.symlink(member.linkname, components[-1], dir_fd=directory)
        else:
            linked = components_of(target)
            origin = open_directory(root, base + linked[:-1], False)
            try:
                os.link(linked[-1], components[-1], src_dir_fd=origin, dst_dir_fd=directory, follow_symlinks=False)
            finally:
                os.close(origin)
    finally:
        os.close(directory)


def unpack(root: str, base: list[str], content: int, replaces: bool) -> None:
    """Unpacks a tar archive, plain or gzip.

    Stricter than the standard library's data filter, which older system Pythons lack: names that are absolute or climb,
    links that lead out, devices and paths through symbolic links are refused, and ownership and special bits dropped.
    """
    if replaces:
        clear_way(root, base, True)
    os.close(open_directory(root, base, True))
    try:
        with open(os.dup(content), "rb") as file:
            file.seek(0)
            compressed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream: Any = gzip.GzipFile(fileobj=file) if compressed else file
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    if replaces:
                        clear_way(root, base + components_of(member.name), member.isdir())
                    unpack_member(root, base, archive, member, replaces)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise RefusedJobError("archive", errno.EINVAL) from error


def unpack_member(
    root: str, base: list[str], archive: tarfile.TarFile, member: tarfile.TarInfo, replaces: bool
) -> None:
    """Makes one entry of an archive."""
    name = base + components_of(member.name)
    if member.isdir():
        os.close(open_directory(root, name, True))
    elif member.issym() or member.islnk():
        place_link(root, member, base)
    else:
        source = archive.extractfile(member) if member.isreg() else None
        if source is None:
            raise RefusedJobError("archive", errno.EPERM)
        place_file(root, name, source, (member.mode & 0o755) | 0o600)
        if replaces:
            clear_bytecode(root, name)
