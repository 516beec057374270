"""A whole Callsheet on this machine, each part in its own process, for commands, benchmarks and tests."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import anyio
import anyio.abc
from callsheet.deploy.command_lines import published_weights, role_arguments, secret_variables
from callsheet.deploy.dashboard_process import dashboard_environment, dashboard_listen
from callsheet.deploy.gateway_process import gateway_environment, gateway_listen, gateway_url
from callsheet.deploy.roles import Role
from callsheet.deploy.signals import LONGEST_END_S
from callsheet.deploy.stack_settings import StackSettings, check_taken
from callsheet.deploy.tokens import issue_for_stack
from callsheet.managers.inference.settings import share_of_cores
from callsheet.managers.node import describe_node
from callsheet.managers.supervision.processes import ProcessSpec, command_module
from callsheet.managers.supervision.supervisor import Supervisor
from callsheet.managers.tools.settings import ToolsSettings, read_tools
from callsheet.options.private_files import make_private_directory

# How long a start may take before a watcher is told of it; again after twice as long, and so on.
_LONG_START_S = 10.0
# A user's model is loaded before its manager registers.
_LOADING_TIMEOUT_S = 900.0
# On top of a manager's own drain: what `ManagerSettings.longest_end_s` counts beside it.
MANAGER_END_S = 30.0
LONGEST_STACK_END_S = 2 * LONGEST_END_S + MANAGER_END_S + 10.0
"""A stack that was asked to ends within so many seconds beside its managers' drain: gateway, managers, scheduler."""
# A dashboard waits so long for managers, whose start takes all cores.
_MANAGERS_FIRST_S = 10.0
# The user's own may be for another scheduler. Empty ones count as unset, and options go before them.
_OF_CALLERS = ("TLS_CA", "TLS_CERT", "TLS_KEY", "TOKEN", "TOKEN_FILE", "USE_PROXY")
_OF_SCHEDULERS = ("SERVER_CERT", "SERVER_KEY", "CLIENT_CA", "TOKENS")
_OF_FACADES = ("FACADE_TOKEN", "FACADE_TOKEN_FILE")
_OF_GATEWAYS = ("GATEWAY_CERT", "GATEWAY_KEY", "GATEWAY_DATABASE_URL", "GATEWAY_DATABASE_URL_FILE")
_OF_DASHBOARDS = ("DASHBOARD_CERT", "DASHBOARD_KEY")
_ALL_OF_THESE = _OF_CALLERS + _OF_SCHEDULERS + _OF_FACADES + _OF_GATEWAYS + _OF_DASHBOARDS
_NO_CREDENTIALS = {f"CALLSHEET_{name}": "" for name in _ALL_OF_THESE}
# The tables that a file has for single processes are not the stack's.
_NO_CREDENTIALS["CALLSHEET_CONFIG"] = ""
# Passwords may stand there, and managers have no use for them.
_OF_STORES = ("DATABASE_URL", "DATABASE_URL_FILE", "REDIS_URL", "REDIS_URL_FILE")
_NO_SECRETS = _NO_CREDENTIALS | {f"CALLSHEET_{name}": "" for name in _OF_STORES}
_OF_TOOLS = ("CALLSHEET_QUOTA_REDIS", "CALLSHEET_QUOTA_REDIS_FILE")


class StackWatcher(Protocol):
    """Is told how a stack is doing."""

    def scheduler_serves(self, address: str, gateway_url: str | None, dashboard_url: str | None) -> None:
        """The scheduler takes calls; managers, a gateway and a dashboard are started now."""

    def gateway_serves(self, url: str) -> None:
        """The gateway takes calls."""

    def dashboard_serves(self, url: str) -> None:
        """The dashboard takes calls."""

    def manager_registered(self, role: str, took_s: float, missing: Sequence[str]) -> None:
        """A manager has registered for the first time; those of `missing` have not."""

    def still_waiting(self, waited_s: float, logs: Mapping[str, Path | None]) -> None:
        """Some roles do not serve yet after 10, 20, 40 ... seconds. Has the log of each; None where it has none."""

    async def watch_drain(self, address: str, limit_s: float) -> None:
        """Runs while managers finish their attempts, which takes `limit_s` at most; cancelled once they have left."""


def check_machine(settings: StackSettings) -> int:
    """Returns the cores that a stack would share on this machine.

    Raises:
        ValueError: There are not as many, or not enough for the managers, or an option is for none of these.
    """
    usable = len(os.sched_getaffinity(0))
    cores = usable if settings.cpus is None else settings.cpus
    if not 1 <= cores <= usable:
        raise ValueError(f"cpus: {cores} must be between 1 and {usable}, the cores that this process may use")
    if settings.managers:
        check_taken(settings.given, settings.managers)
    if Role.INFERENCE in settings.managers and not settings.inference.served_apart:
        share_of_cores(cores, settings.inference.threads)
    return cores


def environment_of(settings: StackSettings, role: str) -> dict[str, str]:
    """Returns the environment of a stack's process, in which secrets that it has no use for are empty."""
    without = _NO_CREDENTIALS if role == Role.SCHEDULER else _NO_SECRETS
    tools_file = settings.of(ToolsSettings).tools_file
    if role == Role.TOOLS or tools_file is None:
        return without
    keys = read_tools(tools_file).keys.values()
    return without | dict.fromkeys([*_OF_TOOLS, *(key.variable for key in keys if key.variable)], "")


class Stack:
    """A running stack.

    Attributes:
        settings: What it was started with.
        address: Where the scheduler listens, "host:port"; the same after its restarts.
        gateway_url: Where the gateway is; None where there is none.
        dashboard_url: Where the dashboard is; None where there is none.
        metrics_url: Where its metrics are; None for nowhere.
    """

    def __init__(self, settings: StackSettings) -> None:
        self.settings = settings
        self.address = settings.listen
        self.metrics_url: str | None = None
        self._metrics_listen = settings.metrics_listen
        self._managers_ready = anyio.Event()
        self._cores = check_machine(settings)
        self._gateway = gateway_listen(settings)
        self.gateway_url = None if self._gateway is None else gateway_url(settings, self._gateway)
        self._dashboard = dashboard_listen(settings)
        self.dashboard_url = None if self._dashboard is None else gateway_url(settings, self._dashboard)
        roles: tuple[str, ...] = (Role.SCHEDULER, *settings.managers)
        roles += (Role.GATEWAY,) if self._gateway is not None else ()
        roles += (Role.DASHBOARD,) if self._dashboard is not None else ()
        self._supervisors = {role: self._supervisor(role) for role in roles}

    def supervisor(self, role: str) -> Supervisor:
        """Returns the supervisor that keeps the process of a role running."""
        return self._supervisors[role]

    def pid(self, role: str) -> int:
        """The process id of a role.

        Raises:
            LookupError: It does not run now.
        """
        process = self._supervisors[role].process
        if process is None:
            raise LookupError(f"{role} does not run now")
        return process.pid

    def _supervisor(self, role: str) -> Supervisor:
        is_manager = role not in {Role.SCHEDULER, Role.GATEWAY, Role.DASHBOARD}
        grace_s = self.settings.drain_s + MANAGER_END_S if is_manager else LONGEST_END_S
        # A manager that was drained leaves in good order.
        may_leave = role != Role.SCHEDULER
        return Supervisor(role, lambda: self._spec(role), self.settings.restart, grace_s, may_leave=may_leave)

    def _spec(self, role: str) -> ProcessSpec:
        if role == Role.GATEWAY:
            own = gateway_environment(self.settings)
        elif role == Role.DASHBOARD:
            own = dashboard_environment(self.settings)
        else:
            own = {} if role == Role.SCHEDULER else secret_variables(role, self.settings)
        return ProcessSpec(
            name=role,
            module=command_module(),
            arguments=role_arguments(
                role,
                self.settings,
                address=self.address,
                cores=self._cores,
                gateway=self._gateway,
                dashboard=self._dashboard,
                metrics=self._metrics_listen,
            ),
            environment=environment_of(self.settings, role) | own,
            log_path=self._log_path(role),
            ready_timeout_s=self._ready_timeout_s(role),
        )

    def _log_path(self, role: str) -> Path | None:
        if not self.settings.logs_to_files:
            return None
        return self.settings.data_dir / "logs" / f"{role}.log"

    def _ready_timeout_s(self, role: str) -> float:
        inference = self.settings.inference
        if role == Role.INFERENCE and (inference.model_directory is not None or inference.served_apart):
            return max(self.settings.ready_timeout_s, _LOADING_TIMEOUT_S)
        return self.settings.ready_timeout_s

    async def tell_of_long_starts(self, watcher: StackWatcher) -> None:
        """Reports to a watcher the processes that do not serve yet, until all have served."""
        began, wait_s = anyio.current_time(), _LONG_START_S
        while True:
            await anyio.sleep_until(began + wait_s)
            served = {role for role, supervisor in self._supervisors.items() if supervisor.standing.served}
            late = [role for role in self._supervisors if role not in served and role != Role.DASHBOARD]
            if not late:
                return
            watcher.still_waiting(wait_s, {role: self._log_path(role) for role in late})
            wait_s *= 2

    async def run_scheduler(self, tasks: anyio.abc.TaskGroup) -> None:
        """Starts the scheduler and learns its address."""
        supervisor = self._supervisors[Role.SCHEDULER]
        await tasks.start(supervisor.run)
        process = supervisor.process
        if process is not None:
            self.address = process.facts["address"]
            self.metrics_url = process.facts.get("metrics")
        if self.metrics_url is not None:
            self._metrics_listen = urlsplit(self.metrics_url).netloc

    async def run_gateway(self, tasks: anyio.abc.TaskGroup, watcher: StackWatcher | None) -> None:
        """Starts the gateway, if there is one."""
        if self.gateway_url is None:
            return
        await tasks.start(self._supervisors[Role.GATEWAY].run)
        if watcher is not None:
            watcher.gateway_serves(self.gateway_url)

    async def run_dashboard(self, tasks: anyio.abc.TaskGroup, watcher: StackWatcher | None) -> None:
        """Starts the dashboard, if there is one, after the managers, unless these take long."""
        if self.dashboard_url is None:
            return
        with anyio.move_on_after(_MANAGERS_FIRST_S):
            await self._managers_ready.wait()
        await tasks.start(self._supervisors[Role.DASHBOARD].run)
        if watcher is not None:
            watcher.dashboard_serves(self.dashboard_url)

    async def run_managers(self, tasks: anyio.abc.TaskGroup, watcher: StackWatcher | None) -> None:
        """Starts all managers, together, and waits until each is registered.

        Args:
            tasks: Where they run.
            watcher: Told of each that has registered.
        """
        began = time.monotonic()
        missing = list(self.settings.managers)

        async def start(role: str) -> None:
            await tasks.start(self._supervisors[role].run)
            missing.remove(role)
            if watcher is not None:
                watcher.manager_registered(role, time.monotonic() - began, tuple(missing))

        async with anyio.create_task_group() as starts:
            for role in self.settings.managers:
                starts.start_soon(start, role)
        self._managers_ready.set()

    async def drain(self, watcher: StackWatcher | None) -> None:
        """Asks the managers to end for good and waits until all have; shielded, as each has its deadline."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                if watcher is not None:
                    tasks.start_soon(watcher.watch_drain, self.address, self.settings.drain_s)
                self.stop(*self.settings.managers)
                for role in self.settings.managers:
                    await self._supervisors[role].wait_ended()
                tasks.cancel_scope.cancel()

    def stop(self, *roles: str) -> None:
        """Asks the processes of these roles to end for good."""
        for role in roles:
            if role in self._supervisors:
                self._supervisors[role].stop()


@asynccontextmanager
async def local_stack(
    settings: StackSettings, *, watcher: StackWatcher | None = None, wait_for_managers: bool = True
) -> AsyncIterator[Stack]:
    """Runs a stack for the length of a `with` block: ready at its beginning, gone at its end.

    Managers are stopped first and may finish their attempts; then the scheduler. Processes that end by themselves are
    started again as the settings say.

    Args:
        settings: What to run.
        watcher: Told how it is doing.
        wait_for_managers: Begin the block when all managers are registered; else as soon as the scheduler serves.

    Raises:
        ProcessFailedError: A process did not become ready, or failed too often (inside an exception group).
        ValueError: The settings do not fit this machine.
        TokenFileError: The file of tokens cannot be used.
    """
    stack = Stack(settings)
    if settings.logs_to_files:
        make_private_directory(settings.data_dir / "logs")
    if settings.access.tokens is not None:
        node_id = describe_node().node_id
        manager_ids = {role: f"{node_id}-{role}" for role in settings.managers}
        gateway = Role.GATEWAY if stack.gateway_url is not None else ""
        issue_for_stack(settings.access.tokens, settings.data_dir, manager_ids, gateway)
        make_private_directory(published_weights(settings))
    async with AsyncExitStack() as exits:
        if watcher is not None:
            telling = await exits.enter_async_context(anyio.create_task_group())
            exits.callback(telling.cancel_scope.cancel)
            telling.start_soon(stack.tell_of_long_starts, watcher)
        scheduler = await exits.enter_async_context(anyio.create_task_group())
        exits.callback(stack.stop, Role.SCHEDULER)
        await stack.run_scheduler(scheduler)
        if watcher is not None:
            watcher.scheduler_serves(stack.address, stack.gateway_url, stack.dashboard_url)
        managers = await exits.enter_async_context(anyio.create_task_group())
        exits.push_async_callback(stack.drain, watcher)
        gateway_tasks = await exits.enter_async_context(anyio.create_task_group())
        exits.callback(stack.stop, Role.GATEWAY)
        dashboard_tasks = await exits.enter_async_context(anyio.create_task_group())
        exits.callback(stack.stop, Role.DASHBOARD)
        exits.callback(dashboard_tasks.cancel_scope.cancel)
        if wait_for_managers:
            await stack.run_gateway(gateway_tasks, watcher)
            await stack.run_managers(managers, watcher)
            await stack.run_dashboard(dashboard_tasks, watcher)
        else:
            dashboard_tasks.start_soon(stack.run_dashboard, dashboard_tasks, watcher)
            gateway_tasks.start_soon(stack.run_gateway, gateway_tasks, watcher)
            managers.start_soon(stack.run_managers, managers, watcher)
        yield stack
