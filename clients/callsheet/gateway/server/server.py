"""Runs the gateway."""

from __future__ import annotations

import os
import time
from contextlib import closing
from dataclasses import replace
from typing import Final

import anyio
import anyio.abc
import anyio.to_thread
import structlog
from callsheet.client import Client
from callsheet.client.admin import AdminClient
from callsheet.client.session.target import from_environment
from callsheet.gateway.renderers.loading import load_renderer
from callsheet.gateway.server.app import GatewayApi, make_app
from callsheet.gateway.server.call_store import CallStore
from callsheet.gateway.server.callers import Callers
from callsheet.gateway.server.calls import Calls
from callsheet.gateway.server.engine_parser import EngineParser
from callsheet.gateway.server.job_lives import JobLives
from callsheet.gateway.server.live_trajectories import LiveTrajectories
from callsheet.gateway.server.models import ServedModels
from callsheet.gateway.server.retention import Retention
from callsheet.gateway.server.settings import GatewaySettings
from callsheet.gateway.server.trainers import Trainers
from callsheet.http_server.listening import EmbeddedServer, address_of, listen, make_server
from callsheet.options.common import comma_separated

_ANSWER_S: Final = 10.0
_log = structlog.get_logger(__name__)


async def serve(
    settings: GatewaySettings,
    stop: anyio.Event,
    *,
    task_status: anyio.abc.TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until `stop` is set; then running requests may end. Their actions go on, for retries at the next start.

    Args:
        settings: How.
        stop: Ends it.
        task_status: Gets the base URL, "http://host:port", once it listens.

    Raises:
        OSError: It cannot listen there, or cannot use the data directory.
        NoReplyError: The scheduler does not answer.
        ValueError: A file of TLS, the tokenizer or the database cannot be used, or the address is open to others.
        sqlalchemy.exc.SQLAlchemyError: The database cannot be used any more.
    """
    renderer = await anyio.to_thread.run_sync(load_renderer, settings.tokenizer)
    options = replace(
        from_environment(os.environ)[1],
        connect_timeout_s=settings.give_up_after_s,
        give_up_after_s=settings.give_up_after_s,
        call_timeout_s=_ANSWER_S,
    )
    store = await anyio.to_thread.run_sync(CallStore.open, settings.data_dir, settings.database_url)
    with closing(store), listen(settings.listen) as listener:
        secret, client = await anyio.to_thread.run_sync(store.secret), Client(settings.scheduler, options)
        callers = Callers(settings.scheduler, options, secret, JobLives(client, store))
        await _tell_exposure(settings, callers)
        live = LiveTrajectories(store, renderer, settings.max_live_trajectories, settings.max_live_bytes)
        async with (
            client,
            AdminClient(settings.scheduler, options) as admin,
            anyio.create_task_group() as tasks,
        ):
            models = ServedModels(admin, settings.service)
            retention = Retention(
                client, store, live, retention_s=settings.retention_s, most_bytes=settings.max_database_bytes
            )
            full, parser = lambda: retention.is_full, _parser(settings)
            calls = Calls(client, store, live, models, settings=settings, tasks=tasks, is_full=full, parser=parser)
            gateway = GatewayApi(callers, calls, models, Trainers(client, live, secret), time.time())
            server = _server(settings, gateway)
            tasks.start_soon(server.stop_with, stop)
            tasks.start_soon(retention.run, settings.sweep_s)
            scheme = "http" if settings.tls_cert is None else "https"
            url = f"{scheme}://{address_of(listener)}"
            _log.info("gateway_listens", url=url, service=settings.service)
            task_status.started(url)
            await server.serve(sockets=[listener])
            tasks.cancel_scope.cancel()


def _server(settings: GatewaySettings, gateway: GatewayApi) -> EmbeddedServer:
    return make_server(
        make_app(gateway, settings.max_request_bytes, settings.max_waiting_bytes),
        shutdown_s=settings.shutdown_s,
        tls_cert=settings.tls_cert,
        tls_key=settings.tls_key,
        listen=settings.listen,
        host_names=comma_separated(settings.host_names),
    )


def _parser(settings: GatewaySettings) -> EngineParser | None:
    if settings.parser_url is None:
        return None
    return EngineParser(
        settings.parser_url,
        tool_parser=settings.tool_parser,
        reasoning_parser=settings.reasoning_parser,
        api_key=settings.parser_api_key,
    )


async def _tell_exposure(settings: GatewaySettings, callers: Callers) -> None:
    """Logs what is open to whoever reaches the address; raises ValueError where nobody said that this is wanted."""
    warning = settings.exposure(asks_for_tokens=await callers.asks_for_tokens())
    if warning is not None:
        _log.warning("insecure", listen=settings.listen, reason=warning)
