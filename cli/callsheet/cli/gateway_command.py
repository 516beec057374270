"""`callsheet gateway`: models behind the APIs that agents speak."""

from __future__ import annotations

import anyio
from callsheet.cli.errors import CommandError, first_error, needs
from callsheet.cli.options import LogFormatOption, LogLevelOption, options_of
from callsheet.deploy.child import ParentLink
from callsheet.deploy.signals import cancel_on_signal
from callsheet.gateway.server.settings import GatewaySettings
from callsheet.options.common import LogLevel


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
        from callsheet.gateway.server.server import serve  # noqa: F401
    configure_logs(log_format, log_level, role="gateway")
    try:
        anyio.run(_serve, settings, link)
    except* (OSError, ValueError) as group:
        raise CommandError(str(first_error(group))) from None


async def _serve(settings: GatewaySettings, link: ParentLink) -> None:
    from callsheet.gateway.server.server import serve

    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as waiting:
            tasks.start_soon(cancel_on_signal, waiting)
            url = await tasks.start(serve, settings, stop)
            link.report_ready(url=url)
            await anyio.sleep_forever()
        stop.set()
