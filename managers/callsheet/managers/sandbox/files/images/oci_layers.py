"""Makes layers of images in the format of the OCI from the blobs of a registry or of a layout on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.sandbox.files.images.errors import ImageError
from callsheet.managers.sandbox.files.images.layer_cache import BuiltLayer, LayerCache, LayerHold
from callsheet.managers.sandbox.files.images.lower_layers import LowerLayers
from callsheet.managers.sandbox.files.images.oci import (
    Blob,
    ImageConfig,
    ImageManifest,
    Platform,
    check_digest,
    choose_manifest,
    read_config,
    read_manifest,
)
from callsheet.managers.sandbox.files.images.shared_work import SharedWork
from callsheet.managers.sandbox.files.images.source import PreparedImage
from callsheet.managers.sandbox.files.images.unpacking import ExpectedLayer

_log = structlog.get_logger(__name__)

_TRIES = 5

_UNPACK_PREFIX = "oci-"


@dataclass(frozen=True, slots=True)
class OciImage:
    """An image of which everything but the layers' content is known.

    Attributes:
        digest: "sha256:..." of its manifest.
        manifest: Its layers.
        config: How its commands begin.
    """

    digest: str
    manifest: ImageManifest
    config: ImageConfig


class BlobSource(Protocol):
    """Has the blobs of one image."""

    def blobs(self, not_needed: Collection[Blob]) -> AbstractAsyncContextManager[Path]:
        """Gives a directory with the layers' blobs, each named by the hexadecimal digits of its digest.

        Args:
            not_needed: These may be missing there: what they hold has been unpacked before.

        Raises:
            ImageError: They cannot be had.
            OSError: The disk refuses.
        """


class OciLayers:
    """Unpacks layers once, however many images and callers want them, and checks each against its digests."""

    def __init__(self, cache: LayerCache) -> None:
        """Args: cache: Keeps them."""
        self._cache = cache
        self._making = SharedWork((ImageError,))

    async def prepare(self, name: str, image: OciImage, source: BlobSource, stop: anyio.Event) -> PreparedImage:
        """Returns an image once all of its layers are there; the caller releases it.

        Args:
            name: As it was asked for.
            image: The image.
            source: Where its blobs are; asked only if a layer is missing.
            stop: Ends the wait for another caller.

        Raises:
            StoppedError: `stop` was set while another caller prepared it.
            ImageError: A blob is not what its digests say, cannot be unpacked, or cannot be had.
            OSError: The disk refuses.
        """
        keys = layer_keys(image.manifest)
        for _ in range(_TRIES):
            holds = self._lease(keys)
            if holds is not None:
                return await self._prepared(name, image, holds)
            await self._making.do(image.digest, partial(self._make, image, keys, source, stop), stop)
        raise ImageError(f"image {name[:300]!r}: its layers do not stay in the cache: see the setting layer_cache_mib")

    def _lease(self, keys: Sequence[str]) -> list[LayerHold] | None:
        if not all(key in self._cache for key in keys):
            return None
        return [hold for hold in map(self._cache.lease, keys) if hold is not None]

    async def _prepared(self, name: str, image: OciImage, holds: Sequence[LayerHold]) -> PreparedImage:
        layers = tuple(hold.path for hold in holds)
        prepared = PreparedImage(name, image.digest, layers, image.config)
        for hold in holds:
            prepared.releases.callback(hold.release)
        directory = image.config.working_directory
        try:
            if bool(directory) and await anyio.to_thread.run_sync(_lacks, layers, directory):
                _log.info("image_without_its_working_directory", image=name, directory=directory)
                prepared.config = replace(image.config, working_directory="")
        except BaseException:
            prepared.release()
            raise
        return prepared

    async def _make(self, image: OciImage, keys: Sequence[str], source: BlobSource, stop: anyio.Event) -> None:
        parts = list(zip(image.manifest.layers, image.config.diff_ids, keys, strict=True))
        with ExitStack() as holds:
            missing = set()
            for blob, _, key in parts:
                if (hold := self._cache.lease(key)) is not None:
                    holds.callback(hold.release)
                else:
                    missing.add(blob.digest)
            self._check_room(image, missing)
            async with source.blobs([blob for blob, _, _ in parts if blob.digest not in missing]) as directory:
                lower: list[Path] = []
                for blob, diff_id, key in parts:
                    build = partial(
                        self._unpack, directory / blob.file_name, ExpectedLayer(blob, diff_id), tuple(lower)
                    )
                    # Another image may make the same layer of blobs of its own: its failure is not this one's.
                    hold = await self._cache.obtain(key, build, stop)
                    holds.callback(hold.release)
                    lower.append(hold.path)

    async def _unpack(self, file: Path, layer: ExpectedLayer, lower: Sequence[Path], target: Path) -> BuiltLayer:
        size, _ = await self._cache.unpack(file, target, lower, layer)
        return BuiltLayer(size, layer.blob.digest.encode())

    def _check_room(self, image: OciImage, missing: Collection[str]) -> None:
        needed = sum(blob.size for blob in image.manifest.layers if blob.digest in missing)
        if needed > self._cache.limit_bytes:
            raise ImageError(
                f"image {image.digest}: its layers have {needed >> 20} MiB and the cache may hold "
                f"{self._cache.limit_bytes >> 20}: see the setting layer_cache_mib"
            )


@dataclass(frozen=True, slots=True)
class LayoutBlobs:
    """Implements `BlobSource` for a directory in the layout of the OCI, as buildah and skopeo write it."""

    layout: Path

    @asynccontextmanager
    async def blobs(self, not_needed: Collection[Blob]) -> AsyncIterator[Path]:
        """Gives the blobs of the layout; `not_needed` changes nothing."""
        yield self.layout / "blobs" / "sha256"


def read_layout(layout: Path, machine: Platform) -> OciImage:
    """Returns the image of a layout that has one. Blocks.

    Raises:
        ImageNotFoundError: It is for another machine.
        ImageError: It is no such layout.
        OSError: It cannot be read.
    """

    def read(blob: Blob) -> bytes:
        content = (layout / "blobs" / "sha256" / blob.file_name).read_bytes()
        check_digest(content, blob.digest, f"layout {layout.name}")
        return content

    manifests = json.loads((layout / "index.json").read_text()).get("manifests")
    if not isinstance(manifests, list) or len(manifests) != 1:
        raise ImageError(f"layout {layout.name!r}: its index must name one image")
    digest = str(manifests[0].get("digest", ""))
    content = read(Blob(digest, 0))
    chosen = choose_manifest(content, machine, layout.name)
    manifest = read_manifest(read(chosen) if chosen is not None else content, layout.name)
    config = read_config(read(manifest.config), len(manifest.layers), machine, layout.name)
    return OciImage(chosen.digest if chosen is not None else digest, manifest, config)


def layer_keys(manifest: ImageManifest) -> list[str]:
    """Returns the names of layers in the cache: what one holds depends on those below it, too."""
    digest, keys = hashlib.sha256(), []
    for layer in manifest.layers:
        digest.update(layer.digest.encode())
        keys.append(f"{_UNPACK_PREFIX}{digest.hexdigest()}")
    return keys


def _lacks(layers: Sequence[Path], directory: str) -> bool:
    """Blocks: whether nothing of this name is seen in an image; what lies behind a link is believed to be there."""
    seen = LowerLayers([str(layer) for layer in layers])
    path = ""
    for name in filter(None, directory.split("/")):
        path = f"{path}/{name}".lstrip("/")
        found = seen.find(path)
        if found is None:
            return True
        if Path(found).is_symlink():
            return False
    return False
