"""Sources of images: a store of directories and archives, registries, or an engine that has its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import anyio
from callsheet.managers.sandbox.files.images.oci import ImageConfig


@dataclass(slots=True)
class PreparedImage:
    """An image that is ready.

    Attributes:
        name: By which the backend knows it; empty for the machine's own system, which is always ready.
        digest: Of what is in it: alike for alike images.
        layers: Directories, the lowest first; none where the backend finds it by its name.
        config: How its commands begin, where it says so.
        registry_digest: "sha256:..." by which a registry names it; empty where it came from elsewhere.
        releases: Lets go of the layers.
    """

    name: str = ""
    digest: str = ""
    layers: tuple[Path, ...] = ()
    config: ImageConfig = field(default_factory=ImageConfig)
    registry_digest: str = ""
    releases: ExitStack = field(default_factory=ExitStack)

    def release(self) -> None:
        """Releases the layers, which are not needed any more. Safe to call again."""
        self.releases.close()


class ImageSource(Protocol):
    """Prepares images on demand."""

    @property
    def takes_any_name(self) -> bool:
        """Returns whether there may be images that no one has named yet, as in a registry."""

    def setups_s(self) -> Mapping[str, float]:
        """Seconds until a sandbox of each image could be made; 0 for those that are ready.

        Images that were added later can be used, but are not among them.
        """

    def on_change(self, listener: Callable[[], None]) -> None:
        """Takes a function to call, on the event loop, when `setups_s` has changed."""

    async def prepare(self, name: str, stop: anyio.Event) -> PreparedImage:
        """Returns an image once it is ready; the caller releases it.

        Raises:
            StoppedError: `stop` was set while another caller prepared it.
            ImageError: It is not there or cannot be used.
            OSError: The disk refuses.
        """
