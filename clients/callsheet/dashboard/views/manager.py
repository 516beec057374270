"""One manager: what it serves and holds."""

from __future__ import annotations

from callsheet.client.errors import RefusalCode, refused
from callsheet.dashboard.blocks import Cell, Facts, Table, View, WebForm, count, link
from callsheet.dashboard.plain_text import plain_line
from callsheet.dashboard.viewer import Asked
from callsheet.dashboard.views.now import manager_state
from callsheet.dashboard.words import number, units
from callsheet.v1 import admin_service_pb2


async def look(asked: Asked) -> View:
    """Asks for a registered manager.

    Raises:
        RefusedError: NOT_FOUND: there is none.
    """
    status = await asked.source.get_status(admin_service_pb2.GetStatusRequest())
    wanted = asked.of("manager")
    manager = next((each for each in status.managers if each.manager_id == wanted), None)
    if manager is None:
        raise refused(RefusalCode.NOT_FOUND, field="manager", value=wanted[:200], rule="is not registered")
    facts: list[tuple[str, Cell | str]] = [
        ("node", Cell(plain_line(manager.node_id), link("what-if", pool=manager.node_id).href)),
        ("state", manager_state(manager)),
        ("attempts", number(manager.attempts)),
        ("waiting for memory", number(manager.waiting_for_memory)),
        ("sandboxes", number(manager.sandboxes)),
    ]
    facts += [(f"memory {name}, MiB", number(size)) for name, size in sorted(manager.sandbox_memory_mib.items())]
    rows = [
        (
            plain_line(each.name),
            count(number(each.slots) if each.slots else "no limit"),
            units(each.reserved),
            units(each.shared),
            Cell(plain_line(each.problem, 500), tone="bad" if each.problem else ""),
        )
        for each in manager.services
    ]
    told = sorted(manager.capabilities.items())
    blocks: list[object] = [
        Facts(facts),
        Table("Services", ("service", "at once", "keeps", "shares", "problem"), rows),
        Table("What it can enforce", ("what", "how"), [(plain_line(name), plain_line(how, 300)) for name, how in told]),
    ]
    if asked.viewer.is_offered_acts and not manager.draining:
        hidden = {"manager": manager.manager_id}
        blocks.append(WebForm("/drain", "Drain this manager\N{HORIZONTAL ELLIPSIS}", hidden=hidden))
    trail = (Cell("Managers", "/now"),)
    return View(plain_line(manager.manager_id), blocks, f"It runs {number(manager.attempts)} attempts.", trail=trail)
