"""Runs a facade: a client of the scheduler with one job, and a web server before it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import anyio
import anyio.abc
import structlog
from callsheet.client import Client, Job
from callsheet.client.session.target import from_environment
from callsheet.http_server.listening import address_of, listen, make_server
from callsheet.integrations.sandboxes.settings import ServedFacade
from callsheet.options.common import comma_separated
from starlette.types import ASGIApp

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class FacadeParts:
    """What one protocol serves.

    Attributes:
        app: The web application.
        close_all: Gives up all sandboxes.
    """

    app: ASGIApp
    close_all: Callable[[], Awaitable[None]]


async def serve_facade(
    settings: ServedFacade,
    make: Callable[[Job, anyio.abc.TaskGroup], FacadeParts],
    stop: anyio.Event,
    *,
    task_status: anyio.abc.TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until `stop` is set; then running requests may end, and all sandboxes are given up.

    Args:
        settings: How.
        make: Returns what to serve, given the open job and where tasks of sandboxes run.
        stop: Ends it.
        task_status: Gets the address, "host:port", once it listens.

    Raises:
        OSError: It cannot listen there.
        CallsheetError: The scheduler cannot be reached, or refuses the job.
        ValueError: A file of TLS cannot be used.
    """
    if (warning := settings.exposure()) is not None:
        _log.warning("insecure", listen=settings.listen, reason=warning)
    options = replace(
        from_environment(os.environ)[1],
        connect_timeout_s=settings.give_up_after_s,
        give_up_after_s=settings.give_up_after_s,
    )
    with listen(settings.listen) as listener:
        async with (
            Client(settings.scheduler, options) as client,
            await client.open_job(settings.job_id) as job,
            anyio.create_task_group() as tasks,
        ):
            parts = make(job, tasks)
            server = make_server(
                parts.app,
                shutdown_s=settings.shutdown_s,
                tls_cert=settings.tls_cert,
                tls_key=settings.tls_key,
                listen=settings.listen,
                host_names=comma_separated(settings.host_names),
            )
            tasks.start_soon(server.stop_with, stop)
            address = address_of(listener)
            _log.info("facade_listens", address=address, job_id=settings.job_id)
            task_status.started(address)
            await server.serve(sockets=[listener])
            await parts.close_all()
            tasks.cancel_scope.cancel()
