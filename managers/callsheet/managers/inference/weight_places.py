"""Bounds the places of the weights that jobs publish, because an engine reads them with its operator's rights.

A place is a directory, the beginning of a URI such as s3://bucket/runs, or tcp://HOST or tcp://HOST:PORT for the
rendezvous of transfer groups.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from callsheet.managers.inference.engine_errors import WeightUpdateError
from callsheet.managers.inference.weights import DiskWeights, GroupWeights, WeightSource

MAX_ENTRIES: Final = 10_000
"""Files and directories below one location: all of them are looked at."""
_SCHEME: Final = "://"
# In URIs these may lead elsewhere than their text says.
_MISLEADING: Final = ("..", "%", "\\", "?", "#", "@")


def check_place(place: str) -> str:
    """Returns a place as an operator gives it, as it is.

    Raises:
        ValueError: It is neither an absolute directory nor the beginning of a URI.
    """
    scheme, separator, rest = place.partition(_SCHEME)
    if separator:
        good = bool(rest.strip("/")) and scheme.isalnum() and scheme != "file" and not _misleads(place)
    else:
        good = _is_plainly_absolute(Path(place))
    if not good:
        raise ValueError(f"{place!r}: must be an absolute directory, or begin a URI as s3://bucket/runs")
    return place


def _misleads(uri: str) -> bool:
    return any(sign in uri for sign in _MISLEADING)


def _is_plainly_absolute(path: Path) -> bool:
    return path.is_absolute() and ".." not in path.parts


class WeightPlaces:
    """Holds sources of weights to some places."""

    def __init__(self, places: Sequence[str]) -> None:
        self._directories = [Path(place) for place in places if _SCHEME not in place]
        self._uris = [place.rstrip("/") for place in places if _SCHEME in place]
        self._rule = f"must lie below {' or '.join(places)}" if places else "may lie nowhere"

    def bound(self, source: WeightSource) -> WeightSource:
        """Returns a source as an engine may read it: a path without links. Blocks on files.

        Raises:
            WeightUpdateError: It lies elsewhere. The message does not depend on anything that is elsewhere.
            OSError: What is there changes just now.
        """
        match source:
            case DiskWeights(location):
                inside = location if self._has_uri(location) else self._resolved(location)
                return DiskWeights(inside)
            case GroupWeights(address=address, port=port):
                host = f"tcp{_SCHEME}{address}"
                if not {host, f"{host}:{port}"}.intersection(self._uris):
                    raise self._outside(f"{host}:{port}")
        return source

    def _has_uri(self, location: str) -> bool:
        return not _misleads(location) and any(f"{location}/".startswith(f"{uri}/") for uri in self._uris)

    def _resolved(self, location: str) -> str:
        path = Path(location.removeprefix(f"file{_SCHEME}"))
        if not _is_plainly_absolute(path):
            raise self._outside(location)
        roots = [directory.resolve() for directory in self._directories]
        resolved = _below(path, roots)
        if resolved is None or (resolved.exists() and not (resolved.is_dir() or resolved.is_file())):
            raise self._outside(location)
        for number, entry in enumerate(_entries(resolved) if resolved.is_dir() else ()):
            if number >= MAX_ENTRIES:
                raise WeightUpdateError(f"{location}: must hold at most {MAX_ENTRIES} files", intact=True)
            if not _is_plain(entry, roots):
                message = f"{location}: {entry.name!r} is no plain file, or a link to a directory or out of the places"
                raise WeightUpdateError(f"{message}; published weights {self._rule}", intact=True)
        return str(resolved)

    def _outside(self, location: str) -> WeightUpdateError:
        rule = f"{self._rule}, by an absolute path without '..' or links out of there"
        cure = "the operator names places with --weights-below of the engine's manager"
        return WeightUpdateError(f"location {location!r}: published weights {rule}; {cure}", intact=True)


def _entries(directory: Path) -> list[Path]:
    """Returns the entries below a directory, at most one more than are allowed."""
    found: list[Path] = []
    for place, directories, files in os.walk(directory, onerror=_fail):
        found += (Path(place, name) for name in (*directories, *files))
        if len(found) > MAX_ENTRIES:
            break
    return found


def _fail(error: OSError) -> NoReturn:
    raise error


def _is_plain(entry: Path, roots: Sequence[Path]) -> bool:
    """Returns whether an engine that opens an entry reads a file of these directories, and does not wait for a pipe."""
    mode = entry.lstat().st_mode
    if not stat.S_ISLNK(mode):
        return stat.S_ISDIR(mode) or stat.S_ISREG(mode)
    target = _below(entry, roots)
    return target is not None and target.is_file()


def _below(path: Path, roots: Sequence[Path]) -> Path | None:
    """Returns the target of a path, if it is below one of some directories."""
    try:
        resolved = path.resolve()
        with suppress(FileNotFoundError):
            resolved.stat()
    except (OSError, RuntimeError):  # Links in a circle, of which newer versions of Python resolve a part.
        return None
    return resolved if any(resolved.is_relative_to(root) for root in roots) else None
