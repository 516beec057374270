"""Runs the facade."""

from __future__ import annotations

import anyio
import anyio.abc
from callsheet.client import Job
from callsheet.integrations.sandboxes.serving import FacadeParts, serve_facade
from callsheet.integrations.swerex.app import make_app
from callsheet.integrations.swerex.runtimes import Runtimes
from callsheet.integrations.swerex.settings import FacadeSettings


async def serve(
    settings: FacadeSettings,
    stop: anyio.Event,
    *,
    task_status: anyio.abc.TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serves SWE-ReX's protocol; see `serve_facade` for arguments and errors."""

    def make(job: Job, tasks: anyio.abc.TaskGroup) -> FacadeParts:
        runtimes = Runtimes(job, settings, tasks)
        return FacadeParts(make_app(runtimes, settings), runtimes.close_all)

    await serve_facade(settings, make, stop, task_status=task_status)
