"""`callsheet facade ...`: servers that speak the protocols of other sandboxes."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from callsheet.cli.errors import CommandError, needs
from callsheet.cli.options import Address, LogFormatOption, LogLevelOption
from callsheet.deploy.child import ParentLink
from callsheet.deploy.signals import cancel_on_signal
from callsheet.options.common import DEFAULT_ADDRESS, LogLevel

if TYPE_CHECKING:
    from callsheet.integrations.swerex.settings import FacadeSettings

facade_app = typer.Typer(
    help="Serve sandboxes to code that was written for another API.", no_args_is_help=True, rich_markup_mode=None
)
_LISTEN = "127.0.0.1:8000"


@facade_app.callback()
def _facade() -> None:
    """Serve sandboxes to code that was written for another API."""


@facade_app.command("swerex")
def swerex(
    *,
    scheduler: Address = DEFAULT_ADDRESS,
    listen: Annotated[
        str,
        typer.Option(
            envvar="CALLSHEET_FACADE_LISTEN", metavar="HOST:PORT", help="Where to listen; port 0 takes a free one."
        ),
    ] = _LISTEN,
    auth_token: Annotated[
        str | None,
        typer.Option(
            envvar="CALLSHEET_FACADE_TOKEN", show_default=False, help="What clients must give as their auth_token."
        ),
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Let everybody in who can reach the address.")] = False,
    job_id: Annotated[
        str | None,
        typer.Option(show_default="swe-rex- and a random suffix", help="The job of all sandboxes of this facade."),
    ] = None,
    image: Annotated[str, typer.Option(help="Root file system, unless the address of a runtime names another.")] = "",
    set_up: Annotated[str, typer.Option(help="Shell command to set each sandbox up with.")] = "",
    cpus: Annotated[int, typer.Option(min=1, help="Cores of each command.")] = 1,
    memory_mib: Annotated[
        int | None,
        typer.Option("--memory-mib", min=1, show_default="the scheduler's", help="Memory of each sandbox in MiB."),
    ] = None,
    disk_mib: Annotated[
        int | None, typer.Option("--disk-mib", min=1, show_default="the manager's", help="Disk of each sandbox in MiB.")
    ] = None,
    idle_timeout: Annotated[
        float | None,
        typer.Option(
            min=1, metavar="SECONDS", show_default="the scheduler's", help="Give up sandboxes without requests."
        ),
    ] = None,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Serve sandboxes by SWE-ReX's REST protocol.

    RemoteRuntime(host="http://HOST:PORT/NAME", auth_token=...) has a sandbox of its own for each NAME.
    """
    if (auth_token is None) != no_auth:
        raise CommandError("auth-token: give a token (CALLSHEET_FACADE_TOKEN), or --no-auth, and not both", usage=True)
    link = ParentLink.adopt()
    with needs("facade"):
        import callsheet.integrations.swerex.server  # noqa: F401
        from callsheet.deploy.logs import configure_logs
        from callsheet.integrations.swerex.settings import FacadeSettings, SandboxRequest
    configure_logs(log_format, log_level, role="facade")
    try:
        settings = FacadeSettings(
            scheduler=scheduler,
            listen=listen,
            auth_token=auth_token,
            job_id=job_id or f"swe-rex-{secrets.token_hex(4)}",
            sandbox=SandboxRequest(image, set_up, cpus, memory_mib, disk_mib, idle_timeout),
        )
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error
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
