"""Turns the images of a store into layers that sandboxes can be made of, each part once."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.sandbox.files.images.errors import ImageError
from callsheet.managers.sandbox.files.images.layer_cache import BuiltLayer, LayerCache, LayerHold
from callsheet.managers.sandbox.files.images.source import PreparedImage
from callsheet.managers.sandbox.files.images.store import ImageStore

# Until an archive was unpacked here: bytes of it that take a second.
_USUAL_BYTES_PER_S = 50e6
_FEWEST_SETUP_S = 0.1
_PREFIX = "archive-"

_log = structlog.get_logger(__name__)


class _Identity(NamedTuple):
    """Changes whenever a file may have changed, or another directory has been put in the place of one."""

    path: str
    inode: int
    size: int
    changed_ns: int


class ImagePreparation:
    """Implements `source.ImageSource` for the images of a store."""

    def __init__(self, store: ImageStore, cache: LayerCache) -> None:
        """Blocks: looks at the images that are there."""
        self._store = store
        self._cache = cache
        # What was unpacked before need not be read again to know that it is the same.
        self._digests: dict[_Identity, str] = {
            _Identity(*json.loads(note)): key.removeprefix(_PREFIX)
            for key, note in cache.notes().items()
            if key.startswith(_PREFIX)
        }
        self._reading = anyio.Lock()
        self._bytes_per_s = _USUAL_BYTES_PER_S
        self._listeners: list[Callable[[], None]] = []
        self._setups_s = {name: self._setup_s(name) for name in store.names()}
        cache.on_change(self._on_layer)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Takes a function to call, on the event loop, when `setups_s` has changed."""
        self._listeners.append(listener)

    @property
    def takes_any_name(self) -> bool:
        """No: there is what the store has."""
        return False

    def setups_s(self) -> Mapping[str, float]:
        """Seconds until a sandbox of each image could be made, by the archives that are not unpacked.

        Images that were put into the store later can be used, but are not among them.
        """
        return self._setups_s

    def _setup_s(self, name: str) -> float:
        try:
            layers = self._store.find(name).layers
        except ImageError:
            return 0.0
        missing = 0
        for layer in layers:
            digest = self._digests.get(_identity(layer)) if layer.is_file() else ""
            if digest is None or (digest and _key(digest) not in self._cache):
                missing += layer.stat().st_size
        return max(_FEWEST_SETUP_S, missing / self._bytes_per_s) if missing else 0.0

    def _on_layer(self, key: str) -> None:
        """Looks at the images anew when an archive was unpacked or given up."""
        if not key.startswith(_PREFIX):
            return
        setups_s = {name: self._setup_s(name) for name in self._setups_s}
        if setups_s != self._setups_s:
            self._setups_s = setups_s
            for listener in self._listeners:
                listener()

    async def prepare(self, name: str, stop: anyio.Event) -> PreparedImage:
        """Returns an image once it is ready; the caller releases it.

        Raises:
            StoppedError: `stop` was set while another caller prepared it.
            ImageError: It is not there or cannot be used.
            OSError: The disk refuses.
        """
        image = await anyio.to_thread.run_sync(self._store.find, name)
        prepared = PreparedImage(name)
        digests: list[str] = []
        try:
            for layer in image.layers:
                if layer.is_dir():
                    prepared.layers += (layer,)
                    digests.append(await self._digest(layer, _digest_of_tree))
                else:
                    lease, digest = await self._unpacked(layer, stop)
                    prepared.releases.callback(lease.release)
                    prepared.layers += (lease.path,)
                    digests.append(digest)
        except BaseException:
            prepared.release()
            raise
        prepared.digest = hashlib.sha256("\n".join(digests).encode()).hexdigest()
        return prepared

    async def _unpacked(self, archive: Path, stop: anyio.Event) -> tuple[LayerHold, str]:
        identity = _identity(archive)
        digest = await self._digest(archive, _digest_of_file)

        async def build(target: Path) -> BuiltLayer:
            size, took = await self._cache.unpack(archive, target)
            self._bytes_per_s = max(1.0, identity.size / max(took, 1e-3))
            _log.info("image_unpacked", archive=archive.name, bytes=size, seconds=round(took, 3))
            return BuiltLayer(size, json.dumps(identity).encode())

        lease = self._cache.lease(_key(digest))
        if lease is None:
            lease = await self._cache.obtain(_key(digest), build, stop, shared=(ImageError,))
        return lease, digest

    async def _digest(self, layer: Path, compute: Callable[[Path], str]) -> str:
        """Returns the digest of a layer; computed once, as long as it looks the same from outside."""
        identity = _identity(layer)
        if identity not in self._digests:
            async with self._reading:
                # A storm of resets reads it once.
                if identity not in self._digests:
                    self._digests[identity] = await anyio.to_thread.run_sync(compute, layer)
        return self._digests[identity]


def _key(digest: str) -> str:
    return _PREFIX + digest


def _identity(path: Path) -> _Identity:
    status = path.stat()
    return _Identity(str(path), status.st_ino, status.st_size, status.st_mtime_ns)


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_changes(root: Path) -> str:
    """Blocks: as of a store's directory, with the time of the last change of all there is, which nobody can set."""
    return _digest_of_tree(root, lambda status: status.st_ctime_ns)


def _digest_of_tree(root: Path, time: Callable[[os.stat_result], int] = lambda status: status.st_mtime_ns) -> str:
    """Blocks: a digest of the names, kinds, sizes and times of everything in a directory; contents are not read."""
    digest = hashlib.sha256(os.fsencode(root))
    for place, directories, files in os.walk(root):
        directories.sort()
        for name in [*directories, *sorted(files)]:
            status = os.lstat(os.path.join(place, name))
            line = f"{name}\0{status.st_mode}\0{status.st_size}\0{time(status)}\0{status.st_ino}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
