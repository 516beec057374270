"""Layers that were made once and are used again: unpacked archives, and what set-ups left. One directory on each node.

    DIRECTORY/KEY/layer/       the layer
    DIRECTORY/KEY/note         what was noted when it was made
    DIRECTORY/KEY/size         bytes it takes; its time of change is when it was last used

A layer comes into being under a temporary name and is renamed once it is complete.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.sandbox.files.directories import remove_directory
from callsheet.managers.sandbox.files.images.shared_work import SharedWork, Turns
from callsheet.managers.sandbox.files.images.unpacking import ExpectedLayer, unpack_layer
from callsheet.options.private_files import make_private_directory

_PARTIAL = ".partial-"
_UNPACKED_AT_ONCE = 4


@dataclass(slots=True)
class CachedLayer:
    """One layer in a cache.

    Attributes:
        size_bytes: What it takes.
        last_used: Larger is later.
        users: What is made of it now.
    """

    size_bytes: int
    last_used: float
    users: int = 0


def layers_to_evict(layers: Mapping[str, CachedLayer], limit_bytes: int) -> list[str]:
    """Returns the layers to remove so that the rest fits: the least recently used, and none that is in use."""
    excess = sum(layer.size_bytes for layer in layers.values()) - limit_bytes
    evicted = []
    for key, layer in sorted(layers.items(), key=lambda item: (item[1].last_used, item[0])):
        if excess <= 0:
            break
        if not layer.users:
            evicted.append(key)
            excess -= layer.size_bytes
    return evicted


_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BuiltLayer:
    """Result of a builder: the bytes that it takes, and a note to keep with it."""

    size_bytes: int
    note: bytes = b""


class LayerHold:
    """Keeps a layer from being removed until it is released."""

    def __init__(self, path: Path, release: Callable[[], None]) -> None:
        self.path = path
        self._release: Callable[[], None] | None = release

    def note(self) -> bytes:
        """Returns the note of the time when the layer was made. Blocks."""
        return (self.path.parent / "note").read_bytes()

    def keep(self) -> Callable[[], None]:
        """Hands it over: returns what gives it back, and `release` does nothing any more."""
        release, self._release = self._release, None
        return release or (lambda: None)

    def release(self) -> None:
        """Gives it back. Safe to call again."""
        release, self._release = self._release, None
        if release is not None:
            release()


class LayerCache:
    """Makes each layer once, however many ask for it at the same time."""

    def __init__(self, directory: Path, limit_bytes: int, bwrap: Path | None = None) -> None:
        """Blocks: takes over what an earlier process of this manager kept.

        Args:
            directory: Belongs to this process alone; made if it is not there.
            limit_bytes: Beyond this, layers that nothing uses are removed, the least recently used first.
            bwrap: Confines what unpacks archives; None where no image is mounted.
        """
        self._directory = directory
        self._limit = limit_bytes
        self._bwrap = bwrap
        # Archives share the disk, so a job has them unpacked one after another.
        self._unpacking = Turns(1, _UNPACKED_AT_ONCE)
        self._entries: dict[str, CachedLayer] = {}
        self._making = SharedWork(())
        self._listeners: list[Callable[[str], None]] = []
        # Layers belong to this user alone: what sandboxes wrote is in them.
        make_private_directory(directory)
        for path in directory.iterdir():
            self._take_over(path)
        for gone in self._evict():
            remove_directory(gone)

    @property
    def limit_bytes(self) -> int:
        """Bytes that all layers together may take."""
        return self._limit

    async def unpack(
        self, archive: Path, target: Path, lower: Sequence[Path] = (), expected: ExpectedLayer | None = None
    ) -> tuple[int, float]:
        """Unpacks an archive when it is its job's turn, see `unpack_layer`; returns bytes, and seconds of work."""
        async with self._unpacking.turn():
            began = time.monotonic()
            size = await unpack_layer(archive, target, self._limit, lower, expected, bwrap=self._bwrap)
            return size, time.monotonic() - began

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Takes a function to call with the key of each layer that comes or goes."""
        self._listeners.append(listener)

    def notes(self) -> dict[str, bytes]:
        """The notes of all layers, by their keys. Blocks."""
        return {key: (self._directory / key / "note").read_bytes() for key in self._entries}

    def holds(self, layer: Path) -> bool:
        """Returns whether a directory is, or was, a layer of this cache."""
        return layer.is_relative_to(self._directory)

    def lease(self, key: str) -> LayerHold | None:
        """Returns a layer that is there; None if it is not."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.users += 1
        entry.last_used = time.time()
        os.utime(self._directory / key / "size", (entry.last_used, entry.last_used))

        def release() -> None:
            entry.users -= 1

        return LayerHold(self._directory / key / "layer", release)

    async def obtain(
        self,
        key: str,
        build: Callable[[Path], Awaitable[BuiltLayer]],
        stop: anyio.Event,
        shared: tuple[type[Exception], ...] = (),
    ) -> LayerHold:
        """Returns a layer; makes it if it is not there, or waits while another caller makes it.

        Args:
            key: A name for a directory; everything that the layer depends on must be in it.
            build: Fills an empty directory.
            stop: Ends the wait for another caller; whether it ends `build` is up to that.
            shared: Exceptions of `build` that also those get who wait. After any other, the next of them builds.

        Raises:
            StoppedError: `stop` was set while it waited.
            Exception: What `build` raised.
        """
        made: list[LayerHold] = []

        async def make() -> None:
            made.append(await self._build(key, build))

        while (hold := self.lease(key)) is None:
            await self._making.do(key, make, stop, shared)
            if made:
                return made[0]
        return hold

    async def _build(self, key: str, build: Callable[[Path], Awaitable[BuiltLayer]]) -> LayerHold:
        partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=self._directory))
        try:
            layer = partial / "layer"
            layer.mkdir(mode=0o755)
            built = await build(layer)
            await anyio.to_thread.run_sync(_publish, partial, self._directory / key, built)
            self._entries[key] = CachedLayer(built.size_bytes, time.time())
            _log.info("layer_kept", key=key, bytes=built.size_bytes)
            self._tell(key)
            lease = self.lease(key)
            if lease is None:
                raise AssertionError("a layer that was just kept is there")
            for gone in self._evict():
                await anyio.to_thread.run_sync(remove_directory, gone)
            return lease
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove_directory, partial)

    def _tell(self, key: str) -> None:
        for listener in self._listeners:
            listener(key)

    def _take_over(self, path: Path) -> None:
        size = path / "size"
        if path.name.startswith(_PARTIAL) or not size.is_file():
            remove_directory(path)
        else:
            self._entries[path.name] = CachedLayer(int(size.read_text()), size.stat().st_mtime)

    def _evict(self) -> list[Path]:
        """Takes what is too much out of the cache; returns what is to be removed from the disk."""
        removed = []
        for key in layers_to_evict(self._entries, self._limit):
            del self._entries[key]
            gone = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=self._directory))
            # By one rename: no half of it is ever taken for a layer, and its name is free at once.
            os.rename(self._directory / key, gone / "layer")
            removed.append(gone)
            _log.info("layer_removed", key=key)
            self._tell(key)
        return removed


def _publish(partial: Path, target: Path, built: BuiltLayer) -> None:
    (partial / "note").write_bytes(built.note)
    (partial / "size").write_text(str(built.size_bytes))
    os.rename(partial, target)
