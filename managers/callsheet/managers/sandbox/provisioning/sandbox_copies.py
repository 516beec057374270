"""Sandboxes for rewards that begin with the files of a trajectory's, as they are at that moment."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import SandboxSpec
from callsheet.managers.sandbox.errors import CopyRefusedError
from callsheet.managers.sandbox.files.directories import remove_directory
from callsheet.managers.sandbox.files.root_filesystem import RootFilesystem
from callsheet.managers.sandbox.provisioning.archives import MOST_ARCHIVE_BYTES, ArchiveError
from callsheet.managers.sandbox.provisioning.provisioner import Provisioner
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.managers.sandbox.sharing.sandbox_use import SandboxUse

# All that file systems of a size can hold, with what is counted for each file: a sandbox has up to two of them.
_SIZES = 3


class SandboxCopies:
    """Makes sandboxes from the files of others."""

    def __init__(self, provisioner: Provisioner, directory: Path, settings: SandboxSettings) -> None:
        """Args: directory: The manager's own; what is there is removed at its next start."""
        self._provisioner = provisioner
        self._directory = directory / "copies"
        self._settings = settings

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Path]:
        """Gives a directory for one copy; what is there is removed, after the sandbox that began with it."""
        place = self._directory / uuid.uuid4().hex
        # What sandboxes wrote is in them.
        self._directory.mkdir(mode=0o700, exist_ok=True)
        place.mkdir(mode=0o700)
        try:
            yield place
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(remove_directory, place)

    async def take(self, original: AgentSandbox, place: Path, use: SandboxUse) -> None:
        """Copies the files of a sandbox, which stands still meanwhile; raises what `Sandbox.copy_files` raises."""
        await original.pause()
        await original.copy_files(place, self._limit_bytes(original.spec), use.stop)

    async def make(self, original: AgentSandbox, temporary: Path | None, place: Path, use: SandboxUse) -> AgentSandbox:
        """Makes a sandbox that begins with a copy. It reaches nothing, as it is given what the policy must not see.

        Args:
            original: What was copied.
            temporary: The snapshot of its set-up, for what that left in the temporary directory; None for none.
            place: Where the copy is.
            use: The attempt that it is for.

        Raises:
            CopyRefusedError: Its files cannot be unpacked.
            Exception: What `Provisioner.provide_copy` raises.
        """
        root = RootFilesystem(
            image=original.spec.root.image,
            layers=original.spec.root.layers,
            user=original.spec.root.user,
            snapshot=original.spec.root.snapshot,
            temporary=temporary,
        )
        spec = replace(self.sized(use, original.spec), root=root)
        try:
            return await self._provisioner.provide_copy(spec, place, use)
        except ArchiveError as error:
            raise CopyRefusedError("not_copied", f"the files of the sandbox could not be copied: {error}") from error

    def sized(self, use: SandboxUse, original: SandboxSpec) -> SandboxSpec:
        """Returns the specification of a copy: it has the original's sizes, except memory that its action asked for."""
        spec = replace(use.new_sandbox(), max_processes=original.max_processes)
        if use.attempt.grant.resources.get("memory"):
            return spec
        return replace(spec, memory_mib=original.memory_mib, disk_mib=original.disk_mib)

    def _limit_bytes(self, original: SandboxSpec) -> int:
        if self._settings.isolation is Isolation.NONE:
            # Its directories have no size.
            return self._settings.provisioning.largest_set_up_mib << 20
        limit = _SIZES * original.disk_mib << 20
        return min(limit, MOST_ARCHIVE_BYTES) if self._settings.isolation is Isolation.DOCKER else limit
