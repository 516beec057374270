"""`callsheet up`: the scheduler and local managers in one go."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from callsheet.cli.fleet_up import Fleet, Nodes, On, ProviderAddress, fleet_of, keep_fleet, of_fleet
from callsheet.cli.options import AsJson, options_of
from callsheet.cli.output import CommandError, needs, say
from callsheet.deploy.stack_settings import StackSettings
from callsheet.options.common import LogFormat

if TYPE_CHECKING:
    from callsheet.client.settings import ClientOptions
    from callsheet.deploy.fleet.settings import FleetSettings


@options_of(settings=StackSettings)
def up(
    *,
    settings: StackSettings,
    fleet: Fleet = None,
    on: On = None,
    address: ProviderAddress = None,
    nodes: Nodes = None,
    as_json: AsJson = False,
) -> None:
    """Run the scheduler, and managers here or on a fleet.

    Each is a process of its own, runs until SIGINT or SIGTERM, and is started again if it ends by itself. Standard
    output gets one line with the address as soon as the scheduler takes calls. Actions wait for the managers. Standard
    error gets a line for each manager that is ready, for the gateway with its URL, and last for the dashboard. The
    demo's models are loaded with their first request. A model of your own is loaded at once: `callsheet up --model
    DIR` serves a directory in Hugging Face's format.

    With --fleet or --on the managers are the nodes of a fleet, for instance on a Ray cluster: `callsheet up --on ray
    --nodes 3 --cpus 4 --memory-mib 8192`. Then --cpus and --memory-mib are those of one node.
    """
    wanted = fleet_of(settings, fleet, on, address, nodes)
    if wanted is not None:
        if wanted.provider == "local" and "sandbox" in wanted.roles:
            require_isolation(settings)
        settings = of_fleet(settings, wanted)
    with needs("local"):
        from callsheet.deploy.logs import configure_logs

        # Its own lines are for people, unless they go where those of its processes go.
        own_format = settings.log_format or (LogFormat.CONSOLE if settings.logs_to_files else None)
        configure_logs(own_format, settings.log_level, role="up")
        from callsheet.deploy.checks import describe_own_model, group_note, has_sandboxes
        from callsheet.deploy.stack import check_machine
    try:
        check_machine(settings)
        sandboxes = has_sandboxes(settings)
        own_model = describe_own_model(settings)
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error
    if sandboxes:
        if groups := group_note(settings.sandbox.isolation):
            show_progress(groups)
        require_isolation(settings)
    if own_model is not None:
        show_progress(own_model)
    if sandboxes:
        note_isolation(settings)
        note_core_sharing(settings)
    run_until_signal(settings, as_json, wanted)


def note_isolation(settings: StackSettings) -> None:
    """Warns on standard error if nothing isolates commands, or else of limits that this machine does not enforce."""
    from callsheet.deploy.checks import isolation_shortfalls, isolation_warning

    if warning := isolation_warning(settings.sandbox.isolation):
        show_progress(warning)
    if shortfalls := isolation_shortfalls(settings.sandbox.isolation):
        show_progress(f"not bounded for each sandbox on this machine: {shortfalls}")


def note_core_sharing(settings: StackSettings) -> None:
    """Warns on standard error if commands cannot be ranked, and names what happens instead."""
    from callsheet.deploy.checks import core_sharing_problem

    if problem := core_sharing_problem(settings):
        say(f"commands share the cores plainly and are not ranked: {problem}", err=True)


def require_isolation(settings: StackSettings) -> None:
    """Checks that sandboxes can be isolated here as is asked for.

    Raises:
        CommandError: They cannot; the message names the cause.
    """
    from callsheet.deploy.checks import isolation_problem

    if cause := isolation_problem(settings.sandbox.isolation):
        raise CommandError(
            f"bubblewrap cannot isolate sandboxes here: {cause}. Install or allow it, or run actions as plain "
            "processes with --isolation none (only for code that you trust)"
        )


def run_until_signal(settings: StackSettings, as_json: bool, wanted: FleetSettings | None = None) -> None:
    """Runs a stack until SIGINT or SIGTERM; a second signal ends this process, and with it the children, at once.

    One with a fleet also ends once the fleet was told to go down and has.
    """
    import anyio

    async def run() -> None:
        from callsheet.cli.up_progress import UpProgress
        from callsheet.deploy.signals import cancel_on_signal
        from callsheet.deploy.stack import LONGEST_STACK_END_S, local_stack

        watcher = UpProgress(
            show_progress,
            partial(announce, settings, as_json=as_json),
            lambda: _own_options(settings),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_on_signal, tasks.cancel_scope, settings.drain_s + LONGEST_STACK_END_S)
            async with local_stack(settings, watcher=watcher, wait_for_managers=False) as stack:
                if stack.metrics_url is not None:
                    show_progress(f"metrics for Prometheus are at {stack.metrics_url}")
                if wanted is None:
                    await anyio.sleep_forever()
                else:
                    await keep_fleet(settings, wanted, stack.address, _own_options(settings), show_progress)
            tasks.cancel_scope.cancel()

    anyio.run(run)


def _own_options(settings: StackSettings) -> ClientOptions:
    """How this process itself asks its scheduler."""
    from callsheet.client.settings import ClientOptions, Tls
    from callsheet.deploy.tokens import token_path

    token = token_path(settings.data_dir, "admin").read_text() if settings.access.tokens is not None else None
    return ClientOptions(tls=Tls(settings.tls_ca) if settings.access.tls_cert is not None else None, token=token)


def announce(
    settings: StackSettings, address: str, gateway: str | None, dashboard: str | None, *, as_json: bool
) -> None:
    """Prints that the scheduler serves, and which managers follow."""
    names = settings.managers
    if as_json:
        import json

        told = {"address": address, "gateway": gateway, "dashboard": dashboard, "managers": list(names)}
        say(json.dumps(told | {"data_dir": str(settings.data_dir)}))
    else:
        say(f"callsheet is up on {address}; Ctrl-C ends it")
    show_access(settings)
    note_gateway(settings)
    if names and not as_json:
        show_progress(f"waiting for the managers: {', '.join(names)}")


def note_gateway(settings: StackSettings) -> None:
    """Prints to standard error why there is no gateway, if a user could expect one."""
    from callsheet.deploy.gateway_process import why_no_gateway

    if cause := why_no_gateway(settings):
        show_progress(f"no gateway runs: {cause}")


def show_access(settings: StackSettings) -> None:
    """Prints to standard error which callers the scheduler admits."""
    if settings.access.tokens is not None:
        from callsheet.deploy.tokens import token_path

        show_progress(f"callers need a token; CALLSHEET_TOKEN_FILE={token_path(settings.data_dir, 'admin')} may do all")
    elif (warning := settings.access.check_listen(settings.listen)) is None:
        show_progress("programs on this machine need no token (--tokens asks for one)")
    else:
        show_progress(warning)


def show_progress(text: str) -> None:
    """Shows a line on standard error."""
    say(f"callsheet: {text}", err=True)
