"""The jobs that move files. Imported at the first of them: every sandbox pays for what the agent's start imports."""

from __future__ import annotations

import errno
import os
import stat

from .clearing import clear_way
from .paths import RefusedJobError, components_of, open_directory, place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import tarfile
    from typing import IO, Any

CHUNK = 1 << 20


def write(details: dict[str, Any], content: int, work: str) -> None:
    """Writes one file, unpacks one archive or makes one directory."""
    root, components = place_of(work, details["path"])
    if details["replaces"] and not details["unpack"]:
        clear_way(root, components, details["directory"])
    if details["directory"]:
        os.close(open_directory(root, components, True))
    elif details["unpack"]:
        unpack(root, components, content, replaces=details["replaces"])
    else:
        with open(os.dup(content), "rb") as source:
            source.seek(0)
            place_file(root, components, source, details["mode"])


def remove(details: dict[str, Any], work: str) -> None:
    """Removes whatever has a path, and links on the way to it; if nothing has it, that is no error."""
    root, components = place_of(work, details["path"])
    clear_way(root, components, False)


def send_file(details: dict[str, Any], output: int, root: str) -> None:
    """Copies a regular file into a pipe, up to a limit. No symbolic link is followed."""
    root, components = place_of(root, details["path"])
    directory = open_directory(root, components[:-1], False)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(components[-1], flags, dir_fd=directory), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise RefusedJobError("read", errno.EINVAL)
        left = details["limit"]
        while left > 0:
            chunk = file.read(min(left, CHUNK))
            if not chunk:
                return
            left -= len(chunk)
            while chunk:
                chunk = chunk[os.write(output, chunk) :]


def place_file(root: str, components: list[str], source: IO[bytes], mode: int) -> None:
    """Writes a file beside its place and renames it there, so that a symbolic link in its place is replaced."""
    if not components:
        raise RefusedJobError("path", errno.EISDIR)
    directory = open_directory(root, components[:-1], True)
    # A name that nobody can have taken before.
    temporary = f".callsheet-{os.urandom(8).hex()}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600, dir_fd=directory), "wb") as file:
            try:
                while True:
                    chunk = source.read(CHUNK)
                    if not chunk:
                        break
                    file.write(chunk)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.rename(temporary, components[-1], src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                os.unlink(temporary, dir_fd=directory)
                raise
    finally:
        os.close(directory)


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


def unpack(root: str, base: list[str], content: int, *, replaces: bool = False) -> None:
    """Unpacks a tar archive, plain or gzip.

    Stricter than the standard library's data filter, which older system Pythons lack: names that are absolute or climb,
    links that lead out, devices and paths through symbolic links are refused, and ownership and special bits dropped.
    """
    # Imported in the child of a job only: they would double the time that every sandbox takes to start.
    import gzip
    import tarfile
    import zlib

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
                    unpack_member(root, base, archive, member)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise RefusedJobError("archive", errno.EINVAL) from error


def unpack_member(root: str, base: list[str], archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
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
