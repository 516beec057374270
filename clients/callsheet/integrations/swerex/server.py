"""Runs the facade."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import anyio
import anyio.abc
import structlog
import uvicorn
from callsheet.client import Client
from callsheet.client.target import from_environment
from callsheet.integrations.swerex.app import make_app
from callsheet.integrations.swerex.runtimes import Runtimes
from callsheet.integrations.swerex.settings import FacadeSettings, split_address
from callsheet.integrations.swerex.tls import following_context

_log = structlog.get_logger(__name__)
_MOST_CONNECTIONS = 16_384


class _Server(uvicorn.Server):
    """A server that leaves signals to the program around it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


async def serve(
    settings: FacadeSettings,
    stop: anyio.Event,
    *,
    task_status: anyio.abc.TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until `stop` is set; then running requests may end, and all sandboxes are given up.

    Args:
        settings: How.
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
    with _listen(settings.listen) as listener:
        async with (
            Client(settings.scheduler, options) as client,
            await client.open_job(settings.job_id) as job,
            anyio.create_task_group() as tasks,
        ):
            runtimes = Runtimes(job, settings, tasks)
            server = _Server(_configuration(settings, runtimes))
            tasks.start_soon(_stop_server, server, stop)
            address = _address_of(listener)
            _log.info("facade_listens", address=address, job_id=settings.job_id)
            task_status.started(address)
            await server.serve(sockets=[listener])
            await runtimes.close_all()
            tasks.cancel_scope.cancel()


def _configuration(settings: FacadeSettings, runtimes: Runtimes) -> uvicorn.Config:
    configuration = uvicorn.Config(
        make_app(runtimes, settings),
        lifespan="off",
        log_config=None,
        # Below it are lines for each request that is none, from whomever it comes.
        log_level="error",
        access_log=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=max(1, round(settings.shutdown_s)),
    )
    configuration.load()
    if settings.tls_cert is not None and settings.tls_key is not None:
        configuration.ssl = following_context(settings.tls_cert, settings.tls_key)
    return configuration


async def _stop_server(server: uvicorn.Server, stop: anyio.Event) -> None:
    await stop.wait()
    server.should_exit = True


def _listen(address: str) -> socket.socket:
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(f"listen: cannot bind {address}: {error.strerror}") from error


def _address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
