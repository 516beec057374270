"""The images of a Docker engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio
import anyio.to_thread
from callsheet.managers.sandbox.docker_engine.engine import DockerEngine
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.images.errors import ImageError
from callsheet.managers.sandbox.images.source import PreparedImage


class EngineImages:
    """Implements `images.source.ImageSource`: every image that is on the engine is ready, and nothing is downloaded."""

    def __init__(self, engine: DockerEngine, threads: anyio.CapacityLimiter) -> None:
        """Blocks: asks for the images that are there.

        Args:
            engine: It has them.
            threads: Bounds the calls at once.
        """
        self._engine = engine
        self._threads = threads
        self._names = engine.image_names()

    @property
    def takes_any_name(self) -> bool:
        """No: the engine's images that came later are asked for by the service of all sandboxes."""
        return False

    def setups_s(self) -> Mapping[str, float]:
        """0 for each of the images that were there at the start."""
        return dict.fromkeys(self._names, 0.0)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Nothing is prepared, so nothing changes."""

    async def prepare(self, name: str, stop: anyio.Event) -> PreparedImage:
        """Returns an image by its id, as its name may be given to another one at any time.

        Raises:
            ImageError: It is not on the engine.
        """
        try:
            digest = await anyio.to_thread.run_sync(self._engine.image_id, name, limiter=self._threads)
        except SandboxCreateError as error:
            raise ImageError(str(error)) from error
        return PreparedImage(digest, digest)
