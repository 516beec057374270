"""Builds images from Dockerfiles, each once a node."""

from __future__ import annotations

import hashlib
import json
import os
from functools import partial
from pathlib import Path
from time import monotonic

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.executor import PayloadAccess
from callsheet.managers.sandbox.build_settings import BuildSettings, BuildsFor
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.files.directories import remove_directory
from callsheet.managers.sandbox.files.images.buildah import HOW_TO_INSTALL_BUILDAH, Buildah, Dockerfile, find_buildah
from callsheet.managers.sandbox.files.images.errors import ImageBuildError, ImageError
from callsheet.managers.sandbox.files.images.layer_cache import LayerCache
from callsheet.managers.sandbox.files.images.oci import Platform
from callsheet.managers.sandbox.files.images.oci_layers import LayoutBlobs, OciImage, OciLayers, layer_keys, read_layout
from callsheet.managers.sandbox.files.images.shared_work import SharedWork, Turns
from callsheet.managers.sandbox.files.images.source import PreparedImage
from callsheet.managers.sandbox.files.paths import checked_path
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.options.private_files import make_private_directory
from callsheet.v1 import action_pb2

_TRIES = 5
_MOST_KNOWN = 4096

_log = structlog.get_logger(__name__)


def build_key(context: bytes, dockerfile: str, arguments: dict[str, str]) -> str:
    """Returns the name of a build: alike for the same content, Dockerfile and arguments. Pure."""
    content = hashlib.sha256(context).hexdigest()
    return hashlib.sha256(json.dumps([content, dockerfile, sorted(arguments.items())]).encode()).hexdigest()


async def read_build(build: action_pb2.ImageBuild, payloads: PayloadAccess, settings: BuildSettings) -> Dockerfile:
    """Returns what is to be built.

    Raises:
        ImageBuildError: Nothing is built for callers with tokens.
        InputRefusedError: Its path is none that an archive can have.
        PayloadError: The archive cannot be read.
    """
    if settings.callers_have_tokens and settings.builds_for is BuildsFor.OPERATOR:
        raise ImageBuildError(
            "build: this manager builds for its operator alone, and not for callers with tokens: its operator may let "
            "jobs build, see the setting builds_for (--builds-for jobs)"
        )
    path = checked_path(build.dockerfile or "Dockerfile").lstrip("/")
    context, arguments = await payloads.read(build.context), dict(build.arguments)
    seconds = build.timeout.ToTimedelta().total_seconds() if build.HasField("timeout") else settings.build_timeout_s
    key = build_key(context, path, arguments)
    return Dockerfile(key, context, path, arguments, min(seconds, settings.build_timeout_s))


class ImageBuilds:
    """Builds images, so many at a time, and remembers by which layers they are known."""

    def __init__(self, settings: BuildSettings, buildah: Buildah, cache: LayerCache, directory: Path) -> None:
        """Args:
        settings: Bounds.
        buildah: Builds them.
        cache: Keeps their layers.
        directory: With `known` and `work`, where buildah works; it belongs to this alone.
        """
        self._settings = settings
        self._buildah = buildah
        self._cache = cache
        self._known = directory / "known"
        self._work = directory / "work"
        self._layers = OciLayers(cache)
        self._building = SharedWork((ImageError,))
        self._places = Turns(settings.concurrent_builds, settings.concurrent_builds + 1)

    async def prepare(self, dockerfile: Dockerfile, stop: anyio.Event) -> PreparedImage:
        """Returns an image once it is built and unpacked; the caller releases it.

        Raises:
            StoppedError: `stop` was set while another caller built it.
            ImageBuildError: It does not build.
            ImageError: An image that it begins with cannot be had, or its layers cannot be unpacked.
            OSError: The disk refuses.
        """
        name = f"built:{dockerfile.key[:12]}"
        for _ in range(_TRIES):
            image = await anyio.to_thread.run_sync(self._read, dockerfile.key)
            if image is not None and all(key in self._cache for key in layer_keys(image.manifest)):
                return await self._layers.prepare(name, image, LayoutBlobs(self._work), stop)
            try:
                await self._building.do(dockerfile.key, partial(self._build, name, dockerfile, stop), stop)
            except TimeoutError as error:
                raise ImageBuildError(f"the build of an image took more than {dockerfile.timeout_s:g} s") from error
        raise ImageError(f"image {name}: its layers do not stay in the cache: see the setting layer_cache_mib")

    async def _build(self, name: str, dockerfile: Dockerfile, stop: anyio.Event) -> None:
        async with self._places.turn():
            began = monotonic()
            try:
                layout = await self._buildah.build(dockerfile, stop)
                image = await anyio.to_thread.run_sync(read_layout, layout, Platform.here())
                prepared = await self._layers.prepare(name, image, LayoutBlobs(layout), stop)
                try:
                    await anyio.to_thread.run_sync(self._write, dockerfile.key, layout, image)
                finally:
                    prepared.release()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._buildah.forget_build(dockerfile)
                    await self._stay_small()
        _log.info("image_built", key=dockerfile.key, digest=image.digest, seconds=round(monotonic() - began, 3))

    async def _stay_small(self) -> None:
        if self._places.taken > 1:
            # The last one that builds does it.
            return
        size = await anyio.to_thread.run_sync(_size_of, self._work / "bases")
        if size > self._settings.build_storage_mib << 20:
            _log.info("build_storage_emptied", bytes=size)
            await self._buildah.forget_bases()

    def _read(self, key: str) -> OciImage | None:
        """Blocks: returns the image that was built of a Dockerfile."""
        place = self._known / key
        if not place.is_dir():
            return None
        os.utime(place)
        return read_layout(place, Platform.here())

    def _write(self, key: str, layout: Path, image: OciImage) -> None:
        """Blocks: remembers an image by its manifest and configuration, in a layout without its layers."""
        remove_directory(self._known / key)
        # Where the next start removes it if this process is killed.
        partial_place = self._work / f"known-{key}"
        remove_directory(partial_place)
        blobs = partial_place / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        for name in (image.digest.removeprefix("sha256:"), image.manifest.config.file_name):
            (blobs / name).write_bytes((layout / "blobs" / "sha256" / name).read_bytes())
        (partial_place / "index.json").write_bytes((layout / "index.json").read_bytes())
        partial_place.rename(self._known / key)
        oldest = sorted(self._known.iterdir(), key=lambda path: path.stat().st_mtime)
        for gone in oldest[:-_MOST_KNOWN]:
            remove_directory(gone)


def open_builds(settings: SandboxSettings, cache: LayerCache, bwrap: Path | None) -> ImageBuilds | None:
    """Returns what builds images; None where that is not asked for. Blocks: removes what an earlier process left.

    Args:
        settings: Of the manager.
        cache: Keeps their layers.
        bwrap: The program that shows buildah little of the machine.

    Raises:
        SandboxCreateError: There is no buildah, or no bwrap.
    """
    builds = settings.provisioning.builds
    if not builds.build_images:
        return None
    program = find_buildah()
    if program is None:
        raise SandboxCreateError(f"build_images: there is no buildah here: {HOW_TO_INSTALL_BUILDAH}")
    if bwrap is None:
        raise SandboxCreateError("build_images: there is no bwrap here: install the system package bubblewrap")
    directory = settings.data_directory / "builds" / settings.manager_id
    make_private_directory(directory)
    make_private_directory(directory / "known")
    remove_directory(directory / "work")
    # Below a private one; what reads a Dockerfile is no user of builds.
    (directory / "work").mkdir(mode=0o711)
    network = settings.network if builds.builds_for is BuildsFor.JOBS else None
    buildah = Buildah(program, bwrap, directory / "work", settings.provisioning.registry, network)
    return ImageBuilds(builds, buildah, cache, directory)


def _size_of(directory: Path) -> int:
    """Blocks: bytes of all files below a directory."""
    total = 0
    for place, _, files in os.walk(directory):
        for name in files:
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total
