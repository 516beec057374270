"""From the zip archives that SWE-ReX uploads directories as to the tar archives that sandboxes unpack."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib

from callsheet.integrations.swerex.errors import value_error

_MODE = 0o777
_DEFAULT_MODE = 0o644
_DIRECTORY_MODE = 0o755


def tar_of_zip(content: bytes, limit: int) -> bytes:
    """Returns a tar archive of the files in a zip archive, with their permissions.

    Args:
        content: The zip archive.
        limit: The most bytes that its files may have together.

    Raises:
        TransferredError: It is no zip archive, has too much in it, or names a place outside of its directory.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            _check(archive.infolist(), limit)
            return _pack(archive)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise value_error("file", error, "must be a zip archive without password") from error


def _check(members: list[zipfile.ZipInfo], limit: int) -> None:
    # What is read of a member is bounded by the size that it declares.
    size = sum(member.file_size for member in members)
    if size > limit:
        raise value_error("file", f"{size} bytes unpacked", f"must have at most {limit}")
    for member in members:
        if member.filename.startswith("/") or ".." in member.filename.split("/"):
            raise value_error("file", member.filename, "members must stay inside the archive's directory")


def _pack(archive: zipfile.ZipFile) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for member in archive.infolist():
            entry = tarfile.TarInfo(member.filename.rstrip("/") or ".")
            if member.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, _DIRECTORY_MODE
                tar.addfile(entry)
                continue
            data = archive.read(member)
            entry.size = len(data)
            entry.mode = (member.external_attr >> 16) & _MODE or _DEFAULT_MODE
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
