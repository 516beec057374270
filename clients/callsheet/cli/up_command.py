"""`callsheet up`: the scheduler and local managers in one go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from callsheet.cli.errors import CommandError, load
from callsheet.cli.options import (
    DEFAULT_ADDRESS,
    AsJson,
    Cpus,
    DataDir,
    EngineThreads,
    IsolationOption,
    Listen,
    LogFormatOption,
    LogLevelOption,
    MemoryMib,
    ShareCoresOption,
)
from callsheet.deploy.choices import Isolation, LogLevel, Role, ShareCores

if TYPE_CHECKING:
    from callsheet.deploy.stack_settings import StackSettings


def up(
    *,
    data_dir: DataDir,
    listen: Listen = DEFAULT_ADDRESS,
    managers: Annotated[
        str, typer.Option(envvar="CALLSHEET_MANAGERS", help="The managers to run, separated by commas.")
    ] = "sandbox,inference,reward",
    cpus: Cpus = None,
    memory_mib: MemoryMib = None,
    isolation: IsolationOption = Isolation.BUBBLEWRAP,
    share_cores: ShareCoresOption = ShareCores.RANKED,
    engine_threads: EngineThreads = None,
    drain_s: Annotated[
        float, typer.Option("--drain-s", min=0, help="Seconds that running attempts may go on at the end.")
    ] = 10.0,
    log_files: Annotated[
        bool,
        typer.Option(
            "--log-files/--log-stderr",
            help="Log to DATA_DIR/logs/ROLE.log, where callsheet logs reads it, or to standard error.",
        ),
    ] = True,
    log_format: LogFormatOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
    as_json: AsJson = False,
) -> None:
    """Run the scheduler and local managers on this machine, until SIGINT or SIGTERM.

    Each one is a process of its own and is started again if it ends by itself. One line with the address goes to
    standard output as soon as the scheduler takes calls. Actions wait for the managers, of which each shows a line on
    standard error when it is ready; models are loaded with their first request.
    """
    load("structlog", "local")
    from callsheet.deploy.logs import configure_logs
    from callsheet.deploy.stack import check_machine
    from callsheet.deploy.stack_settings import StackSettings

    roles = parse_managers(managers)
    if Role.SANDBOX in roles or Role.REWARD in roles:
        require_isolation(isolation)
    settings = StackSettings(
        data_dir=data_dir.absolute(),
        listen=listen,
        managers=roles,
        cpus=cpus,
        memory_mib=memory_mib,
        isolation=isolation,
        share_cores=share_cores,
        engine_threads=engine_threads,
        log_format=log_format,
        log_level=log_level,
        logs_to_files=log_files,
        drain_s=drain_s,
    )
    try:
        check_machine(settings)
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error
    configure_logs(log_format, log_level, role="up")
    if Role.SANDBOX in roles or Role.REWARD in roles:
        note_core_sharing(settings)
    run_until_signal(settings, as_json)


def note_core_sharing(settings: StackSettings) -> None:
    """Says on standard error where commands cannot be ranked, and what happens instead."""
    if settings.share_cores is not ShareCores.RANKED:
        return
    ranking = load("callsheet.managers.sandbox.ranking", "sandbox")
    problem = ranking.ranking_problem(ranking.Isolation(settings.isolation.value))
    if problem:
        typer.echo(f"commands share the cores plainly and are not ranked: {problem}", err=True)


def parse_managers(text: str) -> tuple[Role, ...]:
    """Reads the names of managers.

    Raises:
        typer.BadParameter: One is no manager, or is there twice.
    """
    known = [role for role in Role if role is not Role.SCHEDULER]
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"managers: {name!r} is none of {', '.join(known)}")
        if names.count(name) > 1:
            raise typer.BadParameter(f"managers: {name!r} is there twice")
    return tuple(Role(name) for name in names)


def require_isolation(isolation: Isolation) -> None:
    """Checks that bubblewrap works here if it is asked for. Whether Docker does, its manager finds out.

    Raises:
        CommandError: It does not; the message names the cause.
    """
    if isolation is not Isolation.BUBBLEWRAP:
        return
    cause = bubblewrap_problem()
    if cause:
        raise CommandError(
            f"bubblewrap cannot isolate sandboxes here: {cause}. Install or allow it, or run actions as plain "
            "processes with --isolation none (only for code that you trust)"
        )


def bubblewrap_problem() -> str:
    """Why bubblewrap does not work on this machine; empty if it does."""
    found = load("callsheet.managers.sandbox.probe", "sandbox").probe_bubblewrap()
    reason: str = found.reason
    return "" if found.works else reason or "a sandbox could not be made"


def run_until_signal(settings: StackSettings, as_json: bool) -> None:
    """Runs a stack until SIGINT or SIGTERM; a second signal ends this process, and with it the children, at once."""
    import anyio

    async def run() -> None:
        from callsheet.cli.signals import cancel_on_signal
        from callsheet.cli.up_progress import UpProgress
        from callsheet.deploy.stack import local_stack

        watcher = UpProgress(show_progress, lambda address: announce(settings, address, as_json))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_on_signal, tasks.cancel_scope)
            async with local_stack(settings, watcher=watcher, wait_for_managers=False):
                await anyio.sleep_forever()

    anyio.run(run)


def announce(settings: StackSettings, address: str, as_json: bool) -> None:
    """Says that the scheduler serves, and which managers follow."""
    names = [role.value for role in settings.managers]
    if as_json:
        import json

        typer.echo(json.dumps({"address": address, "managers": names, "data_dir": str(settings.data_dir)}))
        return
    typer.echo(f"callsheet is up on {address}; Ctrl-C ends it")
    if names:
        show_progress(f"waiting for the managers: {', '.join(names)}")


def show_progress(text: str) -> None:
    """Shows a line on standard error."""
    typer.echo(f"callsheet: {text}", err=True)
