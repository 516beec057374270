"""The images of a node: those of its own store first, then those of registries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import anyio
import anyio.to_thread
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.files.images.downloads import Downloads
from callsheet.managers.sandbox.files.images.errors import ImageNotFoundError
from callsheet.managers.sandbox.files.images.layer_cache import LayerCache
from callsheet.managers.sandbox.files.images.preparation import ImagePreparation
from callsheet.managers.sandbox.files.images.registry_images import RegistryImages
from callsheet.managers.sandbox.files.images.skopeo import HOW_TO_INSTALL_SKOPEO, Skopeo, find_skopeo
from callsheet.managers.sandbox.files.images.source import ImageSource, PreparedImage
from callsheet.managers.sandbox.files.images.store import ImageStore, NotInStoreError
from callsheet.managers.sandbox.settings import SandboxSettings

_NO_STORE = "there is no image store besides: see the setting images"


class StoreThenRegistries:
    """Implements `source.ImageSource`: a name that the store has is never looked for elsewhere."""

    def __init__(self, store: ImageStore | None, stored: ImagePreparation | None, registries: RegistryImages) -> None:
        """Args: store, stored: The store and what prepares its images; None for no store."""
        self._store = store
        self._stored = stored
        self._registries = registries

    @property
    def takes_any_name(self) -> bool:
        """Yes, as registries do."""
        return True

    def setups_s(self) -> Mapping[str, float]:
        """Those of the store."""
        return self._stored.setups_s() if self._stored is not None else {}

    def on_change(self, listener: Callable[[], None]) -> None:
        """Takes a function to call, on the event loop, when `setups_s` has changed."""
        if self._stored is not None:
            self._stored.on_change(listener)

    async def prepare(self, name: str, stop: anyio.Event) -> PreparedImage:
        """Returns an image once it is ready; the caller releases it; raises what both sources raise."""
        if self._stored is not None:
            with suppress(NotInStoreError):
                return await self._stored.prepare(name, stop)
        try:
            return await self._registries.prepare(name, stop)
        except ImageNotFoundError as error:
            store = self._store
            there = await anyio.to_thread.run_sync(store.described) if store is not None else _NO_STORE
            raise ImageNotFoundError(f"{error}; the image store of this manager: {there}") from error


def build_images(settings: SandboxSettings, cache: LayerCache) -> ImageSource | None:
    """Returns the images of a sandbox manager; None if it has no store and pulls nothing. Blocks.

    Raises:
        SandboxCreateError: Images are to be pulled, and skopeo is missing.
    """
    directory, registry = settings.provisioning.images, settings.provisioning.registry
    store = ImageStore(directory) if directory is not None else None
    stored = ImagePreparation(store, cache) if store is not None else None
    if not registry.registries:
        return stored
    program = find_skopeo()
    if program is None:
        raise SandboxCreateError(
            f"registries: {', '.join(registry.registries)}: no skopeo here: {HOW_TO_INSTALL_SKOPEO}"
        )
    skopeo = Skopeo(program, registry.registry_authfile, registry.insecure_registries, registry.pull_timeout_s)
    # Beside the layers, on whose disk they end up.
    downloads = Downloads(settings.data_directory / "pulls" / settings.manager_id)
    return StoreThenRegistries(store, stored, RegistryImages(registry, skopeo, cache, downloads))
