"""Images from registries: each is pulled once a node, and known by its digest from then on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Protocol

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.sandbox.files.images.layer_cache import (
    BuiltLayer,
    Downloads,
    LayerCache,
    LayerHold,
)
from callsheet.managers.sandbox.files.images.layer_tree import ENTRY_BYTES
from callsheet.managers.sandbox.files.images.lower_layers import LowerLayers
from callsheet.managers.sandbox.files.images.oci import (
    Blob,
    ImageConfig,
    ImageError,
    ImageManifest,
    ImageNotFoundError,
    ImageReference,
    Platform,
    check_digest,
    choose_manifest,
    digest_of,
    may_pull,
    read_config,
    read_manifest,
    read_reference,
)
from callsheet.managers.sandbox.files.images.registry_line import RegistryLine
from callsheet.managers.sandbox.files.images.shared_work import SharedWork, Turns
from callsheet.managers.sandbox.files.images.skopeo import Skopeo
from callsheet.managers.sandbox.files.images.source import PreparedImage
from callsheet.managers.sandbox.files.images.unpacking import ExpectedLayer
from callsheet.managers.sandbox.provisioning_settings import RegistrySettings

# Makes layers of images in the format of the OCI, wherever their blobs are: in a registry, or in a layout on disk.

_TRIES = 5
_UNPACK_PREFIX = "oci-"

_log = structlog.get_logger(__name__)


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


_MOST_TAGS = 4096
_ASKED_AT_ONCE, _MOST_ASKED_AT_ONCE = 2, 64
_UNKNOWN_S = 30.0
_PREFIX = "manifest-"


@dataclass(frozen=True, slots=True)
class _Tag:
    """What a tag meant when it was looked up: a digest, or why there was none. It is believed until `until`."""

    at: float
    until: float
    digest: str = ""
    unknown: str = ""


class RegistryImages:
    """Implements `source.ImageSource` for registries."""

    def __init__(self, settings: RegistrySettings, skopeo: Skopeo, cache: LayerCache, downloads: Downloads) -> None:
        """Args:
        settings: Which registries, and how they are asked.
        skopeo: Asks them.
        cache: Keeps manifests and layers.
        downloads: Holds blobs until they are unpacked.
        """
        self._settings = settings
        self._skopeo = skopeo
        self._cache = cache
        self._downloads = downloads
        self._layers = OciLayers(cache)
        self._line = RegistryLine(settings)
        self._pulls = Turns(settings.concurrent_pulls, settings.concurrent_pulls + 1)
        self._asking = Turns(_ASKED_AT_ONCE, _MOST_ASKED_AT_ONCE)
        self._looking_up = SharedWork((ImageError,))
        self._tags: dict[str, _Tag] = {}
        self._machine = Platform.here()

    @property
    def takes_any_name(self) -> bool:
        """Yes."""
        return True

    def setups_s(self) -> Mapping[str, float]:
        """None: what registries have is not known before it is asked for."""
        return {}

    def on_change(self, listener: Callable[[], None]) -> None:
        """Nothing is told of images, so nothing changes."""

    async def prepare(self, name: str, stop: anyio.Event) -> PreparedImage:
        """Returns an image once it is pulled and unpacked; the caller releases it.

        Raises:
            StoppedError: `stop` was set while another caller prepared it.
            ImageNotFoundError: The registry has no such image for this machine, or may not be asked.
            RegistryLimitedError: The registry wants to be left alone.
            ImageError: It cannot be had or cannot be used.
            OSError: The disk refuses.
        """
        reference = read_reference(name, self._settings.short_names_at)
        if not may_pull(reference, self._settings.registries):
            raise ImageNotFoundError(
                f"image {name[:300]!r}: this manager may pull from {', '.join(self._settings.registries)}, "
                f"not from {reference.registry}: see the setting registries"
            )
        pinned = reference if reference.digest else reference.pinned(await self._resolve(reference, stop))
        image = await self._look_up(pinned, stop)
        prepared = await self._layers.prepare(name, image, _RegistryBlobs(self, pinned, image), stop)
        prepared.registry_digest = pinned.digest
        return prepared

    async def _resolve(self, reference: ImageReference, stop: anyio.Event) -> str:
        """Returns the digest that a tag means."""
        name, began = str(reference), monotonic()
        while True:
            tag = self._tags.get(name)
            if tag is not None and (tag.at >= began or monotonic() < tag.until):
                if tag.unknown:
                    raise ImageNotFoundError(tag.unknown)
                return tag.digest
            await self._looking_up.do(name, partial(self._ask_for_tag, reference, tag, stop), stop)

    async def _ask(self, reference: ImageReference, question: Callable[[], Awaitable[bytes]]) -> bytes:
        # The line of a registry is short, and one job may want a thousand images.
        async with self._asking.turn():
            return await self._line.ask(reference, question)

    async def _ask_for_tag(self, reference: ImageReference, former: _Tag | None, stop: anyio.Event) -> None:
        try:
            content = await self._ask(reference, partial(self._skopeo.manifest, reference))
        except ImageNotFoundError as error:
            self._note(reference, _UNKNOWN_S, unknown=str(error))
            raise
        except ImageError as error:
            if former is None or not former.digest:
                raise
            # A registry that is away for a while takes no image from those who have it.
            _log.warning("image_tag_kept", image=str(reference), digest=former.digest, reason=str(error))
            self._note(reference, _UNKNOWN_S, former.digest)
            return
        digest = digest_of(content)
        await self._keep_manifest(reference.pinned(digest), stop, content)
        _log.info("image_resolved", image=str(reference), digest=digest)
        self._note(reference, self._settings.image_tag_s, digest)

    def _note(self, reference: ImageReference, seconds: float, digest: str = "", unknown: str = "") -> None:
        now = monotonic()
        # To the end, as the first ones go first.
        self._tags.pop(str(reference), None)
        self._tags[str(reference)] = _Tag(now, now + seconds, digest, unknown)
        while len(self._tags) > _MOST_TAGS:
            del self._tags[next(iter(self._tags))]

    async def _look_up(self, pinned: ImageReference, stop: anyio.Event) -> OciImage:
        """Returns what an image consists of; asked of the registry once, as a digest means the same for ever."""
        while (hold := self._cache.lease(_key(pinned))) is None:
            await self._looking_up.do(str(pinned), partial(self._keep_manifest, pinned, stop), stop)
        try:
            note = json.loads(await anyio.to_thread.run_sync(hold.note))
        finally:
            hold.release()
        manifest = read_manifest(note["manifest"].encode(), str(pinned))
        config = read_config(note["config"].encode(), len(manifest.layers), self._machine, str(pinned))
        return OciImage(note["digest"], manifest, config)

    async def _keep_manifest(self, pinned: ImageReference, stop: anyio.Event, content: bytes | None = None) -> None:
        """Keeps manifest and configuration in the cache; `content` is what the digest means, where that is known."""

        async def build(_: Path) -> BuiltLayer:
            note = await self._ask_for_manifest(pinned, content)
            return BuiltLayer(ENTRY_BYTES + len(note), note)

        (await self._cache.obtain(_key(pinned), build, stop)).release()

    async def _ask_for_manifest(self, pinned: ImageReference, content: bytes | None) -> bytes:
        name = str(pinned)
        if content is None:
            content = await self._ask(pinned, partial(self._skopeo.manifest, pinned))
        check_digest(content, pinned.digest, f"manifest of {name}")
        chosen = choose_manifest(content, self._machine, name)
        digest = pinned.digest
        if chosen is not None:
            digest = chosen.digest
            content = await self._ask(pinned, partial(self._skopeo.manifest, pinned.pinned(digest)))
            check_digest(content, digest, f"manifest of {name}")
        manifest = read_manifest(content, name)
        config = await self._ask(pinned, partial(self._skopeo.config, pinned.pinned(digest)))
        check_digest(config, manifest.config.digest, f"config of {name}")
        read_config(config, len(manifest.layers), self._machine, name)
        note = {"digest": digest, "manifest": content.decode(), "config": config.decode()}
        return json.dumps(note).encode()

    @asynccontextmanager
    async def pulled(
        self, pinned: ImageReference, image: OciImage, not_needed: Collection[Blob]
    ) -> AsyncIterator[Path]:
        """Gives the blobs of an image, see `BlobSource.blobs`."""
        name = image.digest.removeprefix("sha256:")
        async with self._pulls.turn():
            layout = await anyio.to_thread.run_sync(self._downloads.begin, name, not_needed)
            copied, end = False, self._downloads.interrupt
            try:
                await self._copy(pinned, image, layout, not_needed)
                copied = True
                yield layout / "blobs" / "sha256"
                end = self._downloads.end
            except ImageError:
                # A blob that is not what it should be must be asked for anew.
                end = self._downloads.end if copied else end
                raise
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(end, name)

    async def _copy(self, pinned: ImageReference, image: OciImage, layout: Path, not_needed: Collection[Blob]) -> None:
        began = monotonic()
        try:
            await self._line.ask(pinned, partial(self._skopeo.copy, pinned.pinned(image.digest), layout))
        finally:
            # Few calls, and what stands in for a blob must never be taken for it.
            self._downloads.end_stand_ins(layout.name, not_needed)
        _log.info("image_pulled", image=str(pinned), digest=image.digest, seconds=round(monotonic() - began, 3))


def _key(pinned: ImageReference) -> str:
    return f"{_PREFIX}{pinned.digest.removeprefix('sha256:')}"


@dataclass(frozen=True, slots=True)
class _RegistryBlobs:
    """Implements `BlobSource` for one image of a registry."""

    images: RegistryImages
    pinned: ImageReference
    image: OciImage

    @asynccontextmanager
    async def blobs(self, not_needed: Collection[Blob]) -> AsyncIterator[Path]:
        """Pulls them."""
        async with self.images.pulled(self.pinned, self.image, not_needed) as directory:
            yield directory
