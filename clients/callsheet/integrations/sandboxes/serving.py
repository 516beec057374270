"""Runs a facade: a client of the scheduler with one job, and a web server before it."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

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


async def serve_facade(
    settings: ServedFacade,
    make: Callable[[Job, anyio.abc.TaskGroup, str], ASGIApp],
    stop: anyio.Event,
    *,
    task_status: anyio.abc.TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until `stop` is set; then running requests may end, and all sandboxes are given up.

    Sandboxes that a killed facade of this address left in the job are given up at the start.

    Args:
        settings: How.
        make: Returns what to serve, given the open job, where tasks of sandboxes run, and a mark that the ids of all
            its trajectories must have.
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
        address = address_of(listener)
        async with (
            Client(settings.scheduler, options) as client,
            _open_job(client, settings) as job,
            anyio.create_task_group() as tasks,
        ):
            # Nobody else listens here.
            mark = hashlib.sha256(f"{socket.gethostname()} {address}".encode()).hexdigest()[:12]
            for left in await job.trajectories():
                if mark in left.trajectory_id:
                    await job.trajectory(left.trajectory_id).close()
            server = make_server(
                make(job, tasks, mark),
                shutdown_s=settings.shutdown_s,
                tls_cert=settings.tls_cert,
                tls_key=settings.tls_key,
                listen=settings.listen,
                host_names=comma_separated(settings.host_names),
            )
            tasks.start_soon(server.stop_with, stop)
            _log.info("facade_listens", address=address, job_id=settings.job_id)
            task_status.started(address)
            await server.serve(sockets=[listener])
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def _open_job(client: Client, settings: ServedFacade) -> AsyncIterator[Job]:
    """Opens the job, and closes it with all its sandboxes; a silent scheduler does so after the job's grace."""
    job = await client.open_job(settings.job_id)
    try:
        yield job
    finally:
        with anyio.move_on_after(settings.shutdown_s, shield=True):
            await job.close()
