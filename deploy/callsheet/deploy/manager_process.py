"""A process that is a manager of some kind."""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import os
import selectors
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskStatus
from callsheet.credentials.channel import Credentials
from callsheet.deploy.child import ParentLink
from callsheet.deploy.logs import configure_logs
from callsheet.deploy.process_options import Cpus, MemoryMib, TlsCa, WrongOptionError
from callsheet.managers.executor import Executor
from callsheet.managers.kind import ManagerKind
from callsheet.managers.node import describe_node
from callsheet.managers.settings import ManagerSettings
from callsheet.managers.supervision.remains import own_temporary_files
from callsheet.options.common import DEFAULT_ADDRESS, Address, LogFormatOption, LogLevel, LogLevelOption
from callsheet.options.declaration import PathRule, Setting

S = TypeVar("S")


def loop_without_epoll() -> asyncio.AbstractEventLoop:
    """Returns an event loop that goes on when its user may watch no further file by epoll."""
    return asyncio.SelectorEventLoop(selectors.PollSelector())


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    """Options of managers of all kinds; the attributes are the options of the same names."""

    scheduler: Address = DEFAULT_ADDRESS
    manager_id: Annotated[
        str | None,
        Setting(
            "Id of the manager: unique, and the same after a restart.",
            variable="CALLSHEET_MANAGER_ID",
            default_text="NODE-KIND",
        ),
    ] = None
    node_id: Annotated[
        str | None,
        Setting(
            "Name of this machine; managers that share a machine give the same, and the same cores and memory.",
            variable="CALLSHEET_NODE_ID",
            default_text="the host name",
        ),
    ] = None
    cpus: Cpus = None
    memory_mib: MemoryMib = None
    gpus: Annotated[
        int, Setting("GPUs of the node, for actions that demand GPUs.", variable="CALLSHEET_GPUS", least=0)
    ] = 0
    drain_timeout: Annotated[
        float,
        Setting(
            "Seconds for which running attempts may continue after SIGTERM.",
            variable="CALLSHEET_DRAIN_TIMEOUT",
            metavar="SECONDS",
            least=0,
        ),
    ] = 30.0
    tls_ca: TlsCa = None
    tls_cert: Annotated[
        str | None,
        Setting("A certificate to show the scheduler, as PEM.", variable="CALLSHEET_TLS_CERT", default_text="none"),
    ] = None
    tls_key: Annotated[
        str | None, Setting("The key of that certificate, as PEM.", variable="CALLSHEET_TLS_KEY", default_text="none")
    ] = None
    token_file: Annotated[
        str | None,
        Setting(
            "File of the manager's token, instead of CALLSHEET_TOKEN.",
            variable="CALLSHEET_TOKEN_FILE",
            default_text="none",
        ),
    ] = None
    use_proxy: Annotated[
        bool,
        Setting("Dial the scheduler through the proxy of the environment.", variable="CALLSHEET_USE_PROXY"),
    ] = False
    health_file: Annotated[
        Path | None,
        Setting(
            "File that each heartbeat renews while the manager is registered; see callsheet health.",
            variable="CALLSHEET_HEALTH_FILE",
            default_text="none",
            path=PathRule(file=True, directory=False),
        ),
    ] = None
    log_format: LogFormatOption = None
    log_level: LogLevelOption = LogLevel.INFO

    @property
    def credentials(self) -> Credentials:
        """How the manager recognises the scheduler and says who it is."""
        token = os.environ.get("CALLSHEET_TOKEN") if self.token_file is None else None
        return Credentials(self.tls_ca, self.tls_cert, self.tls_key, token, self.token_file, self.use_proxy)


def run_manager_process(kind: ManagerKind[S], options: ManagerOptions, settings: S) -> None:
    """Runs a manager until it has left; tells the parent, if there is one, when it is registered.

    Args:
        kind: Its kind, which makes the executor once logs are set up.
        options: What all managers are told.
        settings: The kind's own.

    Raises:
        WrongOptionError: An option is wrong.
        RegistrationRefusedError: The scheduler refused the registration (inside an exception group).
    """

    link = ParentLink.adopt()
    configure_logs(options.log_format, options.log_level, role=kind.name)
    with own_temporary_files("manager"):
        waits = _run(kind, options, settings, link)
    if waits:
        sys.stdout.flush()
        sys.stderr.flush()
        # All managers have left in good order; nothing ends a thread that waits for a server.
        os._exit(0)


def _run(kind: ManagerKind[S], options: ManagerOptions, settings: S, link: ParentLink) -> bool:
    """Returns whether a thread is left that waits for what a part of the manager needs."""
    try:
        manager = _manager_settings(kind.name, options)
        parts = kind.apart(settings)
        executor = kind.build(parts[0], manager) if len(parts) == 1 else None
    except ValueError as error:
        raise WrongOptionError(str(error)) from error
    # Elsewhere commands may share its user, who has a number of files to watch that one of them can take.
    loop = {} if os.geteuid() == 0 else {"loop_factory": loop_without_epoll}
    if executor is None:
        return anyio.run(_serve_several, kind, manager, parts, link, backend_options=loop)
    anyio.run(_serve, manager, executor, link, backend_options=loop)
    return False


def _manager_settings(kind: str, options: ManagerOptions) -> ManagerSettings:
    credentials = options.credentials
    # What this process starts has no use for it.
    os.environ.pop("CALLSHEET_TOKEN", None)
    node = describe_node(node_id=options.node_id, cpus=options.cpus, memory_mib=options.memory_mib, gpus=options.gpus)
    return ManagerSettings(
        scheduler_address=options.scheduler,
        manager_id=options.manager_id or f"{node.node_id}-{kind}",
        node=node,
        drain_timeout_s=options.drain_timeout,
        credentials=credentials,
        health_file=options.health_file,
    )


async def _serve(settings: ManagerSettings, executor: Executor, link: ParentLink) -> None:
    from callsheet.managers.runtime import run_manager

    async with anyio.create_task_group() as tasks:
        await tasks.start(functools.partial(run_manager, settings, executor))
        link.report_ready(manager_id=settings.manager_id)


async def _serve_several(kind: ManagerKind[S], settings: ManagerSettings, parts: Sequence[S], link: ParentLink) -> bool:
    """Runs a manager for each part, which is ready when it can be; the process is ready with the first of them.

    Returns:
        Whether a thread is left that still waits for what a part needs, such as a server that never came.
    """
    stop = anyio.Event()
    ready = anyio.Event()
    unbuilt = set(range(len(parts)))

    def build(part: S, own: ManagerSettings) -> Executor:
        try:
            return kind.build(part, own)
        except ValueError as error:
            raise WrongOptionError(str(error)) from error

    async def run(number: int, part: S) -> None:
        own = replace(settings, manager_id=f"{settings.manager_id}#{number}", handle_signals=False)
        async with anyio.create_task_group() as building:
            building.start_soon(cancel_on_stop, building.cancel_scope)
            # An engine's server may take minutes until it answers.
            executor = await anyio.to_thread.run_sync(build, part, own, abandon_on_cancel=True)
            unbuilt.discard(number)
            building.cancel_scope.cancel()
        if number not in unbuilt:
            await tasks.start(functools.partial(run_one, own, executor))
            ready.set()

    async def cancel_on_stop(scope: anyio.CancelScope) -> None:
        await stop.wait()
        scope.cancel()

    async def run_one(own: ManagerSettings, executor: Executor, *, task_status: TaskStatus[None]) -> None:
        from callsheet.managers.runtime import run_manager

        await run_manager(own, executor, stop=stop, task_status=task_status)

    async def watch_signals() -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                faulthandler.dump_traceback_later(settings.longest_end_s, exit=True)
                if stop.is_set() or not ready.is_set():
                    everything.cancel_scope.cancel()
                stop.set()

    async with anyio.create_task_group() as everything:
        everything.start_soon(watch_signals)
        async with anyio.create_task_group() as tasks:
            for number, part in enumerate(parts):
                tasks.start_soon(run, number, part)
            await ready.wait()
            link.report_ready(manager_id=settings.manager_id)
        everything.cancel_scope.cancel()
    return bool(unbuilt)
