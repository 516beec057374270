"""What the scheduler's process does around the service."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
from callsheet.cli.errors import CommandError, load
from callsheet.cli.signals import cancel_on_signal
from callsheet.deploy.child import ParentLink
from callsheet.deploy.choices import LogFormat, LogLevel, Role

if TYPE_CHECKING:
    from callsheet.scheduler.service.settings import SchedulerSettings


def run_scheduler_process(log_format: LogFormat | None, log_level: LogLevel, **options: Any) -> None:
    """Runs the scheduler until SIGINT or SIGTERM; tells the parent, if there is one, its address.

    Args:
        log_format: Look of log lines.
        log_level: Least important log lines to keep.
        options: Attributes of `SchedulerSettings`; None takes the default.

    Raises:
        CommandError: An option is wrong.
    """
    link = ParentLink.adopt()
    logs = load("callsheet.deploy.logs", "scheduler")
    logs.configure_logs(log_format, log_level, role=Role.SCHEDULER.value)
    load("callsheet.scheduler.service.server", "scheduler")
    settings_module = load("callsheet.scheduler.service.settings", "scheduler")
    given = {name: value for name, value in options.items() if value is not None}
    if "planner" in given:
        given["planner"] = settings_module.PlannerChoice(given["planner"])
    try:
        settings = settings_module.SchedulerSettings(**given)
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error
    # Every client's process and every manager is a connection.
    load("callsheet.managers.open_files", "scheduler").raise_open_files()
    anyio.run(_serve, settings, link)


async def _serve(settings: SchedulerSettings, link: ParentLink) -> None:
    from callsheet.scheduler.service.server import serve

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_on_signal, tasks.cancel_scope)
        address = await tasks.start(functools.partial(serve, settings))
        link.report_ready(address=str(address))
