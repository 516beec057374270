"""Makes sandboxes with an agent: the common part of the backends for processes and for containers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import SandboxSpec
from callsheet.managers.sandbox.errors import SandboxCreateError, SandboxLostError
from callsheet.managers.sandbox.files.images.source import ImageSource
from callsheet.managers.sandbox.network.doors import NetworkDoors
from callsheet.managers.sandbox.open_file_room import OpenFileRoom
from callsheet.managers.sandbox.settings import SandboxSettings

_WORKER_THREADS = 8

_COPYING_THREADS = 4

_Result = TypeVar("_Result")

_Args = TypeVarTuple("_Args")


class AgentBackend(ABC):
    """Makes sandboxes of one kind. A subclass says how their agents are started."""

    def __init__(self, settings: SandboxSettings) -> None:
        """Args: settings: Of the manager."""
        self._settings = settings
        self._creating = anyio.CapacityLimiter(min(settings.concurrent_creates, OpenFileRoom().most_creations))
        self._threads = anyio.CapacityLimiter(_WORKER_THREADS)
        self._copying = anyio.CapacityLimiter(_COPYING_THREADS)
        self._doors = NetworkDoors()

    @abstractmethod
    def capabilities(self) -> Mapping[str, str]:
        """Describes in words the things that it isolates and limits, and those that it does not."""

    @property
    @abstractmethod
    def overlays(self) -> bool:
        """True if it can make sandboxes with images and snapshots (`RootFilesystem`) from directories."""

    @property
    @abstractmethod
    def begins_with_copies(self) -> bool:
        """True if it can make sandboxes with a `RootFilesystem.copy`; else their files are unpacked inside."""

    @property
    def images(self) -> ImageSource | None:
        """Images that it finds by their names, such as an engine's; None if it has none of its own."""
        return None

    async def create(self, spec: SandboxSpec, on_lost: Callable[[str], None]) -> AgentSandbox:
        """Makes a sandbox. `on_lost` is called once if it ends by anything but `destroy`.

        Raises:
            SandboxCreateError: It could not be made.
        """
        async with self._creating:
            try:
                return await self._create(spec, on_lost)
            except (OSError, SandboxLostError) as error:
                raise SandboxCreateError(str(error)) from error

    @abstractmethod
    async def _create(self, spec: SandboxSpec, on_lost: Callable[[str], None]) -> AgentSandbox:
        """Starts an agent and makes a sandbox of it; raises SandboxCreateError, SandboxLostError or OSError."""

    async def serve(self) -> None:
        """Does what its sandboxes need beside their actions, until it is cancelled; without it, they reach nothing."""
        await self._doors.serve()

    @abstractmethod
    async def close(self) -> None:
        """Releases what is shared by its sandboxes, which are destroyed before."""

    async def _blocking(self, function: Callable[[Unpack[_Args]], _Result], *args: *_Args) -> _Result:
        return await anyio.to_thread.run_sync(function, *args, limiter=self._threads)
