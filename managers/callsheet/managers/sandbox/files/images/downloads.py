"""Blobs on their way from a registry. The next pull of an image goes on with the bytes of an interrupted one."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from callsheet.managers.sandbox.files.directories import remove_directory
from callsheet.managers.sandbox.files.images.oci import Blob
from callsheet.options.private_files import make_private_directory

_KEPT = 4

_BLOB = re.compile(r"[0-9a-f]{64}")


class Downloads:
    """A directory with a layout for each image that is being pulled. All of it blocks."""

    def __init__(self, directory: Path) -> None:
        """Removes what an earlier process left; `directory` belongs to this one alone."""
        remove_directory(directory)
        make_private_directory(directory)
        self._directory = directory
        self._interrupted: list[str] = []

    def begin(self, name: str, not_needed: Collection[Blob]) -> Path:
        """Returns the layout of an image, with the blobs that an interrupted pull brought.

        A file of holes, as long as a blob that is not needed, stands in for it: skopeo leaves out what is there.
        """
        layout = self._directory / name
        blobs = layout / "blobs" / "sha256"
        blobs.mkdir(parents=True, exist_ok=True)
        if name in self._interrupted:
            self._interrupted.remove(name)
        for path in (*layout.iterdir(), *(layout / "blobs").iterdir(), *blobs.iterdir()):
            # Halves of blobs have other names.
            if path.is_file() and not (path.parent == blobs and _BLOB.fullmatch(path.name)):
                path.unlink()
        for blob in not_needed:
            with (blobs / blob.file_name).open("wb") as file:
                file.truncate(blob.size)
        return layout

    def end_stand_ins(self, name: str, not_needed: Collection[Blob]) -> None:
        """Removes what stands in for blobs."""
        for blob in not_needed:
            (self._directory / name / "blobs" / "sha256" / blob.file_name).unlink(missing_ok=True)

    def interrupt(self, name: str) -> None:
        """Keeps what has come of an image, and gives up what is kept of others for longest."""
        self._interrupted.append(name)
        while len(self._interrupted) > _KEPT:
            remove_directory(self._directory / self._interrupted.pop(0))

    def end(self, name: str) -> None:
        """Removes what has come of an image."""
        remove_directory(self._directory / name)
