"""Runs the dashboard."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

import anyio
import anyio.abc
import structlog
from callsheet.client.errors import RefusalCode, RefusedError
from callsheet.client.session.target import from_environment
from callsheet.client.settings import ClientOptions
from callsheet.dashboard.app import Sources, make_app
from callsheet.dashboard.pages import HEADERS
from callsheet.dashboard.settings import DashboardSettings
from callsheet.dashboard.source import SchedulerConnection, Source
from callsheet.http_server.listening import address_of, listen, make_server
from callsheet.options.common import comma_separated

_log = structlog.get_logger(__name__)
_NO_TOKEN: Final = {"CALLSHEET_TOKEN", "CALLSHEET_TOKEN_FILE"}


async def serve(
    settings: DashboardSettings,
    stop: anyio.Event,
    *,
    run: Source | None = None,
    task_status: anyio.abc.TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until `stop` is set.

    Args:
        settings: How.
        stop: Ends it.
        run: A run that is over, in place of a scheduler.
        task_status: Gets the URL, "http://host:port", once it listens.

    Raises:
        OSError: It cannot listen there.
        ConnectionLostError: Other machines reach the address, and the scheduler does not answer.
        ValueError: A file of TLS cannot be used, or the address is open to others.
    """
    async with AsyncExitStack() as exits:
        tasks = await exits.enter_async_context(anyio.create_task_group())
        sources: Sources
        if run is not None:
            source = run
            sources = lambda _: source  # noqa: E731
            asks_for_tokens = False
        else:
            connection = SchedulerConnection(tasks, settings.scheduler, _options())
            exits.push_async_callback(connection.close)
            sources = connection.source
            asks_for_tokens = settings.is_for_this_machine or await _asks_for_tokens(connection)
        if (warning := settings.exposure(asks_for_tokens=asks_for_tokens)) is not None:
            _log.warning("insecure", listen=settings.listen, reason=warning)
        listener = exits.enter_context(listen(settings.listen))
        has_certificate = settings.tls_cert is not None
        server = make_server(
            make_app(sources, has_certificate=has_certificate),
            shutdown_s=settings.shutdown_s,
            tls_cert=settings.tls_cert,
            tls_key=settings.tls_key,
            listen=settings.listen,
            host_names=comma_separated(settings.host_names),
            own_pages=True,
            headers=HEADERS,
        )
        tasks.start_soon(server.stop_with, stop)
        url = f"{'https' if has_certificate else 'http'}://{address_of(listener)}"
        _log.info("dashboard_listens", url=url)
        task_status.started(url)
        await server.serve(sockets=[listener])
        tasks.cancel_scope.cancel()


def _options() -> ClientOptions:
    """How the environment says to connect; without its token, as each viewer has one."""
    environ = {name: value for name, value in os.environ.items() if name not in _NO_TOKEN}
    return replace(from_environment(environ)[1], token=None, token_file=None)


async def _asks_for_tokens(connection: SchedulerConnection) -> bool:
    try:
        await connection.source(None).get_server_info()
    except RefusedError as error:
        if error.code is not RefusalCode.UNAUTHENTICATED:
            raise
        return True
    return False
