"""`callsheet facade ...`: servers that speak the protocols of other sandboxes."""

from __future__ import annotations

from typing import Annotated

import anyio
import typer
from callsheet.cli.errors import CommandError, needs
from callsheet.cli.options import LogFormatOption, LogLevelOption, options_of
from callsheet.deploy.child import ParentLink
from callsheet.deploy.signals import cancel_on_signal
from callsheet.integrations.swerex.settings import FacadeSettings
from callsheet.options.common import LogLevel

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
    if (settings.auth_token is None) != no_auth:
        raise CommandError("auth-token: give a token (CALLSHEET_FACADE_TOKEN), or --no-auth, and not both", usage=True)
    link = ParentLink.adopt()
    with needs("facade"):
        import callsheet.integrations.swerex.server  # noqa: F401
        from callsheet.deploy.logs import configure_logs
    configure_logs(log_format, log_level, role="facade")
    anyio.run(_serve, settings, link)


async def _serve(settings: FacadeSettings, link: ParentLink) -> None:
    from callsheet.integrations.swerex.server import serve

    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as waiting:
            tasks.start_soon(cancel_on_signal, waiting)
            address = await tasks.start(serve, settings, stop)
            link.report_ready(address=address)
            await anyio.sleep_forever()
        stop.set()
