"""`callsheet fleet status`, `scale` and `down`: the fleet that a `callsheet up` of this machine keeps."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from callsheet.cli.options import AsJson, DataDir
from callsheet.cli.output import CommandError, print_json, print_table, say

if TYPE_CHECKING:
    from callsheet.deploy.fleet.notes import FleetFiles

fleet_app = typer.Typer(
    help="Show, scale and end the fleet that `callsheet up` keeps.", no_args_is_help=True, rich_markup_mode=None
)

_LOOK_S = 0.2
_AUTO = "auto"
# On top of a deadline: drains, and what Ray takes to end its processes.
_DOWN_MARGIN_S = 120.0


@fleet_app.command("status")
def fleet_status(*, data_dir: DataDir, as_json: AsJson = False) -> None:
    """Show the nodes of the fleet, and how many are wanted."""
    note = _note(_files(data_dir), data_dir)
    if as_json:
        print_json(note)
        return
    since = time.time() - note["looked_at"]
    say(f"fleet on {note['provider']}, kept by process {note['pid']}, looked at {since:.0f} s ago")
    if note["problem"]:
        say(f"the newest look failed, this is the one before: {note['problem']}")
    _print("Roles", note["roles"], ["role", "target #", "by_hand", "least #", "most #"])
    columns = ["name", "role", "phase", "manager", "sandboxes #", "attempts #", "cores", "place", "why"]
    _print("Nodes", note["nodes"], columns)


@fleet_app.command("scale")
def fleet_scale(
    role: Annotated[str, typer.Argument(metavar="ROLE", help="A role of the fleet.", show_default=False)],
    nodes: Annotated[str, typer.Argument(metavar="NODES|auto", help="Number of nodes.", show_default=False)],
    *,
    data_dir: DataDir,
    as_json: AsJson = False,
) -> None:
    """Set by hand how many nodes a role has, within its bounds.

    With auto the role follows the scheduler's wishes again. Surplus nodes leave once their last trajectory has ended.
    """
    from dataclasses import replace

    files = _files(data_dir)
    known = {each["role"]: each for each in _note(files, data_dir)["roles"]}
    if role not in known:
        raise CommandError(f"role: {role!r} is none of {', '.join(known)}", usage=True)
    least, most = known[role]["least"], known[role]["most"]
    if nodes != _AUTO and not (nodes.isdecimal() and least <= int(nodes) <= most):
        raise CommandError(f"nodes: {nodes!r} must be from {least} to {most}, or auto", usage=True)
    orders = files.orders()
    by_hand = {name: count for name, count in orders.nodes.items() if name != role}
    files.ask(replace(orders, nodes=by_hand if nodes == _AUTO else by_hand | {role: int(nodes)}))
    if as_json:
        print_json({"role": role, "nodes": nodes})
    else:
        say(f"{role} is to have {nodes} nodes" if nodes != _AUTO else f"{role} is to have as many nodes as are wanted")


@fleet_app.command("down")
def fleet_down(
    *,
    deadline: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.0, help="Seconds after which the remaining work dies.")
    ] = 60.0,
    data_dir: DataDir,
    as_json: AsJson = False,
) -> None:
    """End the fleet and its `callsheet up`.

    Nodes take nothing new, and each leaves once its last trajectory has ended.
    """
    from dataclasses import replace

    files = _files(data_dir)
    note = _note(files, data_dir)
    count, held = len(note["nodes"]), sum(each["sandboxes"] for each in note["nodes"])
    if not as_json:
        say(f"{count} nodes with {held} sandboxes are to leave within {deadline:g} s; what is left then dies")
    files.ask(replace(files.orders(), down_within_s=deadline))
    ends = time.monotonic() + deadline + _DOWN_MARGIN_S
    while _lives(note["pid"]) and files.note() is not None:
        if time.monotonic() > ends:
            raise CommandError(f"process {note['pid']} has not ended the fleet in time; its log says why")
        time.sleep(_LOOK_S)
    if as_json:
        print_json({"nodes": count, "sandboxes": held})
    else:
        say("the fleet is down")


def _print(title: str, rows: Sequence[Mapping[str, Any]], columns: list[str]) -> None:
    names = [column.removesuffix(" #") for column in columns]
    print_table(title, columns, [[_cell(row[name]) for name in names] for row in rows])


def _cell(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _files(data_dir: Path) -> FleetFiles:
    from callsheet.deploy.fleet.notes import FleetFiles

    return FleetFiles(data_dir)


def _note(files: FleetFiles, data_dir: Path) -> Mapping[str, Any]:
    """Returns the newest note of the keeper.

    Raises:
        CommandError: No process keeps a fleet there.
    """
    note = files.note()
    if note is None:
        raise CommandError(f"no fleet is kept with --data-dir {data_dir}; `callsheet up --fleet FILE` starts one")
    if not _lives(note["pid"]):
        raise CommandError(f"process {note['pid']}, which kept the fleet, is gone; its nodes drained and ended with it")
    return note


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
