"""Images from registries: each is pulled once a node, and known by its digest from then on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.sandbox.files.images.downloads import Downloads
from callsheet.managers.sandbox.files.images.errors import ImageError, ImageNotFoundError
from callsheet.managers.sandbox.files.images.layer_cache import BuiltLayer, LayerCache
from callsheet.managers.sandbox.files.images.layer_tree import ENTRY_BYTES
from callsheet.managers.sandbox.files.images.oci import (
    Blob,
    Platform,
    check_digest,
    choose_manifest,
    digest_of,
    read_config,
    read_manifest,
)
from callsheet.managers.sandbox.files.images.oci_layers import OciImage, OciLayers
from callsheet.managers.sandbox.files.images.references import ImageReference, may_pull, read_reference
from callsheet.managers.sandbox.files.images.registry_line import RegistryLine
from callsheet.managers.sandbox.files.images.shared_work import SharedWork, Turns
from callsheet.managers.sandbox.files.images.skopeo import Skopeo
from callsheet.managers.sandbox.files.images.source import PreparedImage
from callsheet.managers.sandbox.registry_settings import RegistrySettings

_log = structlog.get_logger(__name__)

_MOST_TAGS = 4096
_ASKED_AT_ONCE, _MOST_ASKED_AT_ONCE = 2, 64
_UNKNOWN_S = 30.0
_PREFIX = "manifest-"


@dataclass(frozen=True, slots=True)
class _Tag:
    """Result of looking a tag up: a digest, or why there was none. It is believed until `until`."""

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
