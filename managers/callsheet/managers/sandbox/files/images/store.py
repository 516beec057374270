"""The image store: a directory of root file systems, by name.

Below the store, the image NAME (which may hold "/") is the first of these that is there:

    NAME              a directory that is a root file system: it has /bin, /usr or /etc
    NAME.layers       a list of layers, one a line, the lowest first: directories or archives, relative to the store
    NAME.tar, NAME.tar.gz, .tgz, .tar.xz, .tar.zst, .tar.bz2
                      an archive of a root file system, as `docker export` writes it

Nothing in a directory may be changed in its place while a manager runs; another one may be put there by a rename.
An archive that is a layer may delete what lies below it, by the marks of the OCI image format (".wh.NAME").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from callsheet.managers.sandbox.errors import InputRefusedError
from callsheet.managers.sandbox.files.images.errors import ImageError
from callsheet.managers.sandbox.files.paths import checked_path, path_refused

ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.zst", ".tar.bz2")
_LIST_SUFFIX = ".layers"
_ROOT_DIRECTORIES = ("bin", "usr", "etc")
_DEEPEST = 4
_MOST_LAYERS = 100
_MOST_SHOWN = 10


class NotInStoreError(ImageError):
    """The store has no image of this name; the message says which it has, and how to add one."""


@dataclass(frozen=True, slots=True)
class Image:
    """A root file system that a store holds.

    Attributes:
        name: Its name.
        layers: Directories and archives, the lowest first.
    """

    name: str
    layers: tuple[Path, ...]


class ImageStore:
    """Finds images; reads the store anew each time, since images may be added while a manager runs."""

    def __init__(self, directory: Path) -> None:
        """Args: directory: Absolute."""
        self._directory = directory

    def names(self) -> list[str]:
        """All images, sorted. Blocks."""
        return sorted(set(self._names(self._directory, "", 1)))

    def find(self, name: str) -> Image:
        """Returns an image. Blocks.

        Raises:
            NotInStoreError: There is no image of this name.
            ImageError: Its list of layers breaks a rule.
        """
        try:
            place = self._directory.joinpath(_relative(name))
        except InputRefusedError as error:
            raise NotInStoreError(f"image {name[:300]!r}: {error}") from error
        # An image's own links may lead anywhere on this machine.
        if any(_is_root(each) for each in place.parents if self._directory in each.parents):
            raise self._missing(name)
        if _is_root(place):
            return Image(name, (place,))
        listed = place.with_name(place.name + _LIST_SUFFIX)
        if listed.is_file():
            return Image(name, self._layers(name, listed))
        for suffix in ARCHIVE_SUFFIXES:
            archive = place.with_name(place.name + suffix)
            if archive.is_file():
                return Image(name, (archive,))
        raise self._missing(name)

    def _missing(self, name: str) -> NotInStoreError:
        return NotInStoreError(f"image {name[:300]!r}: is not in the image store of this manager: {self.described()}")

    def described(self) -> str:
        """Returns a clause about the images that there are and how to add one. Blocks."""
        names = self.names()
        more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
        there = f"it has {', '.join(names[:_MOST_SHOWN])}{more}" if names else "it is empty"
        return f"{there}; put a directory, an archive or a list of layers with the name below --images to add one"

    def _layers(self, name: str, listed: Path) -> tuple[Path, ...]:
        layers = []
        for line in listed.read_text().splitlines():
            entry = line.partition("#")[0].strip()
            if not entry:
                continue
            try:
                layer = self._directory.joinpath(_relative(entry))
            except InputRefusedError as error:
                raise ImageError(f"image {name!r}: layer {entry[:200]!r}: {error}") from error
            if not layer.is_dir() and not (layer.is_file() and _archive_name(layer.name)):
                raise ImageError(f"image {name!r}: layer {entry[:200]!r}: must be a directory or an archive")
            layers.append(layer)
        if not 1 <= len(layers) <= _MOST_LAYERS:
            raise ImageError(f"image {name!r}: has {len(layers)} layers: must have 1 to {_MOST_LAYERS}")
        return tuple(layers)

    def _names(self, directory: Path, prefix: str, depth: int) -> Iterator[str]:
        for path in directory.iterdir():
            if path.name.startswith("."):
                continue
            if path.is_file():
                stem = path.name.removesuffix(_LIST_SUFFIX) if path.name.endswith(_LIST_SUFFIX) else ""
                found = stem or _archive_name(path.name)
                if found:
                    yield prefix + found
            elif _is_root(path):
                yield prefix + path.name
            elif path.is_dir() and depth < _DEEPEST:
                yield from self._names(path, f"{prefix}{path.name}/", depth + 1)


def _archive_name(file_name: str) -> str:
    """The name without the suffix of an archive; empty if it has none."""
    return next((file_name.removesuffix(suffix) for suffix in ARCHIVE_SUFFIXES if file_name.endswith(suffix)), "")


def _is_root(path: Path) -> bool:
    return any((path / name).is_dir() for name in _ROOT_DIRECTORIES)


def _relative(path: str) -> str:
    checked = checked_path(path)
    if checked.startswith("/"):
        raise path_refused(path, "must be relative to the image store")
    return checked
