"""The runtimes of a facade, by the names in their addresses."""

from __future__ import annotations

import secrets
from dataclasses import replace

import anyio
import anyio.abc
import structlog
from callsheet.client import Job
from callsheet.integrations.sandboxes.remote import RemoteSandbox
from callsheet.integrations.swerex.errors import SwerexWords, TransferredError, swerex_error, value_error
from callsheet.integrations.swerex.runtime import Runtime
from callsheet.integrations.swerex.settings import NAME, FacadeSettings

DEFAULT_NAME = "default"
"""The runtime of addresses without a name."""

_log = structlog.get_logger(__name__)


class Runtimes:
    """Begins a runtime with the first request that names it, and ends it when it is closed."""

    def __init__(self, job: Job, settings: FacadeSettings, tasks: anyio.abc.TaskGroup) -> None:
        """Args:
        job: Open; every runtime is a trajectory of it.
        settings: Of the facade.
        tasks: Where sandboxes are made.
        """
        self._job = job
        self._settings = settings
        self._tasks = tasks
        self._runtimes: dict[str, Runtime] = {}

    def get(self, name: str, image: str) -> Runtime:
        """Returns a runtime, which begins if it is not there.

        Args:
            name: 1 to 64 letters, digits, ".", "_" and "-".
            image: Root file system as the address names it; empty for the facade's own.

        Raises:
            TransferredError: The name is none, another image was asked for before, or there are too many runtimes.
        """
        found = self._runtimes.get(name)
        if found is None:
            found = self._runtimes[name] = self._begin(name, image)
        if image and found.sandbox.image != image:
            raise value_error("image", image, f"runtime {name!r} has {found.sandbox.image!r}: close it first")
        return found

    async def close(self, name: str) -> None:
        """Ends a runtime; nothing to do if there is none. Its name may be used again for a fresh one.

        Raises:
            TransferredError: The scheduler could not be told.
        """
        runtime = self._runtimes.pop(name, None)
        if runtime is not None:
            await runtime.sandbox.end()

    async def close_all(self) -> None:
        """Ends all runtimes."""
        async with anyio.create_task_group() as tasks:
            for name in list(self._runtimes):
                tasks.start_soon(self._close_quietly, name)

    def _begin(self, name: str, image: str) -> Runtime:
        if not NAME.fullmatch(name):
            raise value_error("runtime", name, "must be 1 to 64 letters, digits, '.', '_' or '-'")
        most = self._settings.max_sandboxes
        if len(self._runtimes) >= most:
            raise swerex_error("SwerexException", f"{most} runtimes are open, and no more may be", kind="infra")
        request = self._settings.sandbox
        # A trajectory's id is used once; a name again and again.
        trajectory = self._job.trajectory(
            f"{name}.{secrets.token_hex(4)}", idle_timeout_s=self._settings.idle_timeout_s
        )
        sandbox = RemoteSandbox(trajectory, replace(request, image=image or request.image), SwerexWords())
        self._tasks.start_soon(sandbox.begin)
        return Runtime(sandbox)

    async def _close_quietly(self, name: str) -> None:
        try:
            await self.close(name)
        except TransferredError as fault:
            _log.warning("runtime_left_open", runtime=name, reason=str(fault))
