"""`callsheet facade ...`: servers that speak the protocols of other sandboxes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Annotated, Any

import anyio
import typer
from callsheet.cli.errors import CommandError, needs
from callsheet.cli.options import LogFormatOption, LogLevelOption, options_of
from callsheet.deploy.child import ParentLink
from callsheet.deploy.signals import cancel_on_signal
from callsheet.integrations.e2b.settings import E2bSettings
from callsheet.integrations.sandboxes.settings import ServedFacade
from callsheet.integrations.swerex.settings import FacadeSettings
from callsheet.options.common import LogFormat, LogLevel

facade_app = typer.Typer(
    help="Serve sandboxes to code that was written for another API.", no_args_is_help=True, rich_markup_mode=None
)


@facade_app.callback()
def _facade() -> None:
    """Serve sandboxes to code that was written for another API."""


@facade_app.command("swerex")
@options_of(settings=FacadeSettings)
def swerex(
    *,
    settings: FacadeSettings,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Let everybody in who can reach the address.")] = False,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Serve sandboxes by SWE-ReX's REST protocol.

    RemoteRuntime(host="http://HOST:PORT/NAME", auth_token=...) has a sandbox of its own for each NAME.
    """
    _run(settings, "callsheet.integrations.swerex.server", no_auth, log_format, log_level)


@facade_app.command("e2b")
@options_of(settings=E2bSettings)
def e2b(
    *,
    settings: E2bSettings,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Let everybody in who can reach the address.")] = False,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Serve sandboxes by E2B's protocols.

    E2B's clients take its address as E2B_API_URL and E2B_SANDBOX_URL.
    """
    _run(settings, "callsheet.integrations.e2b.server", no_auth, log_format, log_level)


def _run(settings: ServedFacade, server: str, no_auth: bool, log_format: LogFormat | None, log_level: LogLevel) -> None:
    """Runs the `serve` of a module."""
    if (settings.auth_token is None) != no_auth:
        raise CommandError("auth-token: give a token (CALLSHEET_FACADE_TOKEN), or --no-auth, and not both", usage=True)
    link = ParentLink.adopt()
    with needs("facade"):
        serve = import_module(server).serve
        from callsheet.deploy.logs import configure_logs
    configure_logs(log_format, log_level, role="facade")
    anyio.run(_serve, serve, settings, link)


async def _serve(serve: Callable[..., Coroutine[Any, Any, Any]], settings: ServedFacade, link: ParentLink) -> None:
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as waiting:
            tasks.start_soon(cancel_on_signal, waiting)
            address = await tasks.start(serve, settings, stop)
            link.report_ready(address=address)
            await anyio.sleep_forever()
        stop.set()
