"""Runs the facade."""

from __future__ import annotations

import anyio
import anyio.abc
from callsheet.client import Job
from callsheet.integrations.e2b.app import make_app
from callsheet.integrations.e2b.sandboxes import E2bSandboxes
from callsheet.integrations.e2b.settings import E2bSettings
from callsheet.integrations.sandboxes.serving import FacadeParts, serve_facade


async def serve(
    settings: E2bSettings,
    stop: anyio.Event,
    *,
    task_status: anyio.abc.TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serves E2B's protocols; see `serve_facade` for arguments and errors."""

    def make(job: Job, tasks: anyio.abc.TaskGroup) -> FacadeParts:
        sandboxes = E2bSandboxes(job, settings, tasks)
        return FacadeParts(make_app(sandboxes, settings), sandboxes.close_all)

    await serve_facade(settings, make, stop, task_status=task_status)
