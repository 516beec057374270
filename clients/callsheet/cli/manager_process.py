"""What every manager process does around its executor."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
from callsheet.cli.errors import CommandError, load
from callsheet.deploy.child import ParentLink
from callsheet.deploy.choices import LogFormat, LogLevel, Role

if TYPE_CHECKING:
    from callsheet.managers.executor import Executor
    from callsheet.managers.settings import ManagerSettings


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    """What all managers are told on the command line; the attributes are the options of the same names."""

    role: Role
    scheduler: str
    manager_id: str | None
    node_id: str | None
    cpus: int | None
    memory_mib: int | None
    drain_timeout: float
    log_format: LogFormat | None
    log_level: LogLevel


def run_manager_process(options: ManagerOptions, build: Callable[[ManagerSettings], Executor]) -> None:
    """Runs a manager until it has left; tells the parent, if there is one, when it is registered.

    Args:
        options: The command line.
        build: Makes the executor, once logs are set up; it may take long and import a lot.

    Raises:
        CommandError: An option is wrong.
        RegistrationRefusedError: The scheduler refused the registration (inside an exception group).
    """
    link = ParentLink.adopt()
    logs = load("callsheet.deploy.logs", extra_of(options.role))
    logs.configure_logs(options.log_format, options.log_level, role=options.role.value)
    settings = _settings(options)
    try:
        executor = build(settings)
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error
    anyio.run(_serve, settings, executor, link)


def extra_of(role: Role) -> str:
    """The extra that installs what a role needs."""
    return "sandbox" if role is Role.NOOP else role.value


def _settings(options: ManagerOptions) -> ManagerSettings:
    node_module = load("callsheet.managers.node", extra_of(options.role))
    settings_module = load("callsheet.managers.settings", extra_of(options.role))
    try:
        node = node_module.describe_node(node_id=options.node_id, cpus=options.cpus, memory_mib=options.memory_mib)
        settings: ManagerSettings = settings_module.ManagerSettings(
            scheduler_address=options.scheduler,
            manager_id=options.manager_id or f"{node.node_id}-{options.role.value}",
            node=node,
            drain_timeout_s=options.drain_timeout,
        )
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error
    return settings


async def _serve(settings: ManagerSettings, executor: Executor, link: ParentLink) -> None:
    from callsheet.managers.runtime import run_manager

    async with anyio.create_task_group() as tasks:
        await tasks.start(functools.partial(run_manager, settings, executor))
        link.report_ready(manager_id=settings.manager_id)
