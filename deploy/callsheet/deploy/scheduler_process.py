"""A process that is the scheduler."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import anyio
from callsheet.deploy.child import ParentLink
from callsheet.deploy.process_options import WrongOptionError
from callsheet.deploy.signals import cancel_on_signal
from callsheet.options.common import LogFormatOption, LogLevel, LogLevelOption, comma_separated
from callsheet.options.declaration import Setting
from callsheet.scheduler.service.settings import SchedulerSettings

if TYPE_CHECKING:
    from callsheet.scheduler.core.state.announced_managers import ExpectedRole


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """Options of a scheduler's process.

    Attributes:
        settings: The scheduler's settings.
    """

    settings: SchedulerSettings
    expect: Annotated[
        tuple[str, ...],
        Setting(
            "Kinds of the managers that will register. Actions for these kinds wait until then.",
            variable="CALLSHEET_EXPECT",
            metavar="ROLE,...",
            default="",
            text=str,
            parse=comma_separated,
        ),
    ] = ()
    log_format: LogFormatOption = None
    log_level: LogLevelOption = LogLevel.INFO


def run_scheduler_process(options: SchedulerOptions) -> None:
    """Runs the scheduler until SIGINT or SIGTERM; tells the parent, if there is one, its address.

    Raises:
        WrongOptionError: An option is wrong.
    """
    from callsheet.deploy.logs import configure_logs
    from callsheet.deploy.roles import Role, expected_roles
    from callsheet.managers.open_files import raise_open_files
    from callsheet.scheduler.service.event_loop import GatheringLoop

    link = ParentLink.adopt()
    configure_logs(options.log_format, options.log_level, role=Role.SCHEDULER)
    try:
        expected = expected_roles(options.expect)
    except ValueError as error:
        raise WrongOptionError(f"expect: {error}") from error
    # Every client's process and every manager is a connection.
    raise_open_files()
    anyio.run(_serve, options.settings, expected, link, backend_options={"loop_factory": GatheringLoop})


async def _serve(settings: SchedulerSettings, expected: tuple[ExpectedRole, ...], link: ParentLink) -> None:
    from callsheet.scheduler.service.server import serve

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_on_signal, tasks.cancel_scope)
        facts: dict[str, str] = {}
        told = functools.partial(facts.__setitem__, "metrics")
        facts["address"] = await tasks.start(functools.partial(serve, settings, expected, on_metrics=told))
        link.report_ready(**facts)
