"""The fleet of a `callsheet up`: what its options say, and how its keeper sees the scheduler."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from callsheet.cli.output import CommandError, needs
from callsheet.deploy.stack_settings import STANDARD_MANAGERS, StackSettings, check_taken

if TYPE_CHECKING:
    from callsheet.client.admin import AdminClient
    from callsheet.client.settings import ClientOptions
    from callsheet.deploy.fleet.keeper import SchedulerSeen
    from callsheet.deploy.fleet.provider import Provider
    from callsheet.deploy.fleet.settings import FleetSettings

Fleet = Annotated[
    Path | None,
    typer.Option(
        help="A TOML file with the settings of a fleet, at its top or in its table [fleet].",
        show_default="[fleet] of --config",
        exists=True,
        dir_okay=False,
        metavar="FILE",
    ),
]
On = Annotated[
    str | None, typer.Option(metavar="local|ray", help="Provider of the fleet's nodes.", show_default="local")
]
ProviderAddress = Annotated[
    str | None, typer.Option(help="Address of the provider, such as a Ray cluster's.", show_default="auto")
]
Nodes = Annotated[int | None, typer.Option(min=1, help="Nodes of each manager kind, without --fleet.")]


def fleet_of(
    settings: StackSettings, file: Path | None, on: str | None, address: str | None, nodes: int | None
) -> FleetSettings | None:
    """The fleet that the options ask for; None if they ask for managers of this machine.

    Raises:
        CommandError: An option, or a value of the file, breaks its rule, or an option is for none of its managers.
    """
    if file is None and on is None and nodes is None:
        if address is not None:
            raise CommandError("address: goes with --on or --fleet", usage=True)
        return None
    if file is not None and nodes is not None:
        raise CommandError(f"nodes: {nodes}: must not be given with a fleet's file, here {file}", usage=True)
    with needs("local"):
        from dataclasses import replace

        from callsheet.deploy.fleet.settings import read_fleet
    try:
        wanted = read_fleet(file.read_text(encoding="utf-8")) if file is not None else _plain(settings, nodes)
        check_taken(settings.given, wanted.roles)
        return replace(wanted, provider=on or wanted.provider, address=address or wanted.address)
    except (OSError, ValueError) as error:
        at = f"{file}: " if file is not None else ""
        raise CommandError(f"{at}{error}", usage=True) from error


def _plain(settings: StackSettings, nodes: int | None) -> FleetSettings:
    # As many nodes of each manager, all alike.
    from callsheet.deploy.fleet.settings import FleetSettings, RoleSettings

    for option, value in (("nodes", nodes), ("cpus", settings.cpus), ("memory-mib", settings.memory_mib)):
        if value is None:
            raise ValueError(f"--{option}: must be given for a fleet, or --fleet with a file that says it")
    assert nodes is not None
    assert settings.cpus is not None
    assert settings.memory_mib is not None
    managers = ("sandbox",) if settings.managers == STANDARD_MANAGERS else settings.managers
    units = {"nodes": (nodes, nodes), "cores": settings.cpus, "memory_mib": settings.memory_mib}
    return FleetSettings(roles={role: RoleSettings(role=role, **units) for role in managers})  # type: ignore[arg-type]


def of_fleet(settings: StackSettings, wanted: FleetSettings) -> StackSettings:
    """The stack of a fleet: a scheduler that expects its managers, and none of its own."""
    from dataclasses import replace

    arguments = {**settings.arguments, "scheduler": ["--expect", ",".join(wanted.roles)]}
    return replace(settings, managers=(), cpus=None, memory_mib=None, arguments=arguments)


async def keep_fleet(
    settings: StackSettings,
    wanted: FleetSettings,
    address: str,
    options: ClientOptions | None,
    show: Callable[[str], None],
) -> None:
    """Keeps a fleet until it has gone down, or this is cancelled; then nothing of it is left.

    Raises:
        NoNodeRoomError: Its provider has not enough for the least nodes.
        UnreadableError: Its provider does not answer.
    """
    import anyio.to_thread
    from callsheet.client.admin import AdminClient
    from callsheet.deploy.command_lines import own_address
    from callsheet.deploy.fleet.keeper import FleetKeeper
    from callsheet.deploy.fleet.notes import FleetFiles
    from callsheet.deploy.fleet.orders import NodeOrders, to_dial

    provider = _provider(wanted)
    machine = await anyio.to_thread.run_sync(provider.open)
    # Ray takes this signal for itself; what was to happen at it is set again.
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    # Names of its own are in its certificate; an address of its machine may be.
    near = own_address(settings, address)
    orders = NodeOrders(settings, to_dial(address, wanted.scheduler, machine, near=near))
    async with AdminClient(near, options) as admin:
        keeper = FleetKeeper(
            wanted,
            provider,
            AdminView(admin),
            FleetFiles(settings.data_dir),
            order=orders,
            retain=orders.retain,
            drain_s=settings.drain_s,
            show=show,
        )
        try:
            await keeper.start()
            await keeper.run()
        finally:
            await keeper.close()


def _provider(wanted: FleetSettings) -> Provider:
    if wanted.provider == "ray":
        with needs("ray"):
            from callsheet.deploy.fleet.ray_provider import RayProvider

            return RayProvider(wanted.address)
    from callsheet.deploy.fleet.provider import LocalProvider

    return LocalProvider()


class AdminView:
    # A `SchedulerView` through the scheduler's own interface.

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    async def look(self) -> SchedulerSeen:
        from callsheet.client.errors import CallsheetError
        from callsheet.deploy.fleet.decisions import ManagerSeen, RoleWanted
        from callsheet.deploy.fleet.keeper import SchedulerSeen
        from callsheet.deploy.fleet.provider import UnreadableError

        try:
            found = await self._admin.status()
        except CallsheetError as error:
            raise UnreadableError(f"scheduler: {error}") from error
        managers = {
            each.manager_id: ManagerSeen(
                each.connected, each.leaving or each.draining, each.sandboxes, each.attempts, each.leaves_by
            )
            for each in found.managers
        }
        wanted = {each.role: RoleWanted(each.waiting, each.held, each.waiting_units) for each in found.wanted}
        return SchedulerSeen(managers, frozenset(each.manager_id for each in found.lost), wanted)

    async def drain(self, manager_id: str, deadline_s: float | None) -> None:
        from callsheet.client.errors import CallsheetError, NotFoundError
        from callsheet.deploy.fleet.provider import UnreadableError

        try:
            await self._admin.drain(manager_id, deadline_s=deadline_s)
        except NotFoundError:
            return
        except CallsheetError as error:
            raise UnreadableError(f"scheduler: {error}") from error
