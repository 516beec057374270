"""Commands that serve: the scheduler alone, pages, models by agents' APIs, and sandboxes by those of others."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import anyio
import typer
from callsheet.cli.options import LogFormatOption, LogLevelOption, options_of
from callsheet.cli.output import CommandError, first_error, needs
from callsheet.credentials.secret_files import secret_file
from callsheet.dashboard.settings import DashboardSettings
from callsheet.deploy.child import ParentLink
from callsheet.deploy.dead_run_settings import DeadRunSettings
from callsheet.deploy.scheduler_process import SchedulerOptions, run_scheduler_process
from callsheet.deploy.signals import serve_until_signal
from callsheet.gateway.server.settings import GatewaySettings
from callsheet.integrations.e2b.settings import E2bSettings
from callsheet.integrations.sandboxes.settings import ServedFacade
from callsheet.integrations.swerex.settings import FacadeSettings
from callsheet.options.common import LogFormat, LogLevel

if TYPE_CHECKING:
    from callsheet.dashboard.source import Source

Serve: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
facade_app = typer.Typer(
    help="Serve sandboxes to code that was written for another API.", no_args_is_help=True, rich_markup_mode=None
)


@options_of(options=SchedulerOptions)
def scheduler(*, options: SchedulerOptions) -> None:
    """Run the scheduler alone, until SIGINT or SIGTERM."""
    with needs("scheduler"):
        run_scheduler_process(options)


@options_of(settings=GatewaySettings)
def gateway(
    *,
    settings: GatewaySettings,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Serve models by the APIs of OpenAI and Anthropic.

    An agent takes http://HOST:PORT/v1 as its base URL and a trajectory's key as its API key. Its calls become generate
    actions of that trajectory, whose tokens a trainer takes as samples.
    """
    link = ParentLink.adopt()
    with needs("gateway"):
        from callsheet.deploy.logs import configure_logs
        from callsheet.gateway.server.server import serve
    configure_logs(log_format, log_level, role="gateway")
    try:
        anyio.run(serve_until_signal, serve, settings, lambda url: link.report_ready(url=url))
    except* (OSError, ValueError) as group:
        raise CommandError(str(first_error(group))) from None


@contextmanager
def _opened(over: DeadRunSettings) -> Iterator[Source | None]:
    """The run that is over, if one is named."""
    if over.data_dir is None:
        yield None
        return
    with needs("scheduler"):
        from callsheet.deploy.dead_run import opened
    url = secret_file(over.database_url_file).read_text().strip() if over.database_url_file is not None else None
    with opened(over.data_dir, url, prices=over.prices) as run:
        yield run


@options_of(settings=DashboardSettings, over=DeadRunSettings)
def dashboard(
    *,
    settings: DashboardSettings,
    over: DeadRunSettings,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Serve pages that show waiting actions and the reasons.

    A scheduler with tokens shows each viewer the part that the viewer's token may see, and accepts acts by the token's
    scope. A scheduler without tokens accepts acts only from browsers on the dashboard's own machine. With --data-dir
    the dashboard shows the last state of a run from its journal, without a scheduler, and writes nothing. A journal has
    no prices: give them by --price, or in the file of settings of the dashboard, the scheduler or up.
    """
    link = ParentLink.adopt()
    with needs("dashboard"):
        from callsheet.dashboard.server import serve
        from callsheet.deploy.logs import configure_logs
    configure_logs(log_format, log_level, role="dashboard")
    try:
        with _opened(over) as run:
            serving = partial(serve, run=run)
            anyio.run(serve_until_signal, serving, settings, lambda url: link.report_ready(url=url))
    except* (OSError, ValueError) as group:
        raise CommandError(str(first_error(group))) from None


@facade_app.callback()
def _facade() -> None:
    """Serve sandboxes to code that was written for another API."""


@facade_app.command("swerex")
@options_of(settings=FacadeSettings)
def swerex(
    *,
    settings: FacadeSettings,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Accept every client that can reach the address.")] = False,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Serve sandboxes by SWE-ReX's REST protocol.

    RemoteRuntime(host="http://HOST:PORT/NAME", auth_token=...) has a sandbox of its own for each NAME.
    """

    def load() -> Serve:
        from callsheet.integrations.swerex.app import serve

        return serve

    _run(settings, load, no_auth, log_format, log_level)


@facade_app.command("e2b")
@options_of(settings=E2bSettings)
def e2b(
    *,
    settings: E2bSettings,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Accept every client that can reach the address.")] = False,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Serve sandboxes by E2B's protocols.

    E2B's clients take its address as E2B_API_URL and E2B_SANDBOX_URL.
    """

    def load() -> Serve:
        from callsheet.integrations.e2b.app import serve

        return serve

    _run(settings, load, no_auth, log_format, log_level)


def _run(
    settings: ServedFacade, load: Callable[[], Serve], no_auth: bool, log_format: LogFormat | None, log_level: LogLevel
) -> None:
    """Runs what `load` imports, once it is known that its extra is there."""
    if (settings.auth_token is None) != no_auth:
        raise CommandError("auth-token: give a token (CALLSHEET_FACADE_TOKEN), or --no-auth, and not both", usage=True)
    link = ParentLink.adopt()
    with needs("facade"):
        serve = load()
        from callsheet.deploy.logs import configure_logs
    configure_logs(log_format, log_level, role="facade")
    anyio.run(serve_until_signal, serve, settings, lambda address: link.report_ready(address=address))
