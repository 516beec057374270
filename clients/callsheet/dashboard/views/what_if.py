"""Shows what more nodes of a pool would do to the actions that wait and run now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from callsheet.client.errors import RefusalCode, refused
from callsheet.dashboard.blocks import Facts, FormField, Notice, Table, View, WebForm, count
from callsheet.dashboard.plain_text import plain_line
from callsheet.dashboard.viewer import Asked
from callsheet.dashboard.words import duration, number
from callsheet.v1 import admin_service_pb2

_MOST_POOLS: Final = 200
_CLASSES: Final = 50


async def look(asked: Asked) -> View:
    """Asks which nodes there are, and the question of the form, if there is one."""
    status = await asked.source.get_status(admin_service_pb2.GetStatusRequest())
    # What is no plain text cannot be sent back by a browser as it was.
    pools = sorted(each.node_id for each in status.nodes if plain_line(each.node_id, 300) == each.node_id)[:_MOST_POOLS]
    pool, nodes = asked.of("pool"), asked.of("nodes")
    if not nodes:
        return what_if_view(pools, pool, "1", None)
    if not (nodes.isascii() and nodes.isdigit() and len(nodes) <= 6):
        raise refused(RefusalCode.INVALID_ARGUMENT, field="nodes", value=nodes[:40], rule="must be a whole number")
    request = admin_service_pb2.WhatIfRequest(pool=pool, nodes=int(nodes))
    return what_if_view(pools, pool, nodes, await asked.source.what_if(request))


def what_if_view(pools: Sequence[str], pool: str, nodes: str, told: admin_service_pb2.WhatIfResponse | None) -> View:
    """Returns the page.

    Args:
        pools: A node's id for each choice.
        pool: The one that is chosen.
        nodes: The number of nodes to add, as the form has it.
        told: The answer; None where nothing was asked yet.
    """
    choices = (
        FormField("pool", "Pool of node", pool or (pools[0] if pools else ""), pools),
        FormField("nodes", "Nodes to add", nodes, number=True),
    )
    blocks: list[Any] = [
        Notice("Compares what can be expected now with more nodes of a pool, if nothing new arrives."),
        WebForm("/what-if", "Ask", choices)
        if pools
        else Notice("No node is known yet: a manager must register.", "bad"),
    ]
    if told is None:
        return View("What if", blocks, refresh_s=0)
    blocks += [Notice(plain_line(told.summary, 1000), "good"), _facts(told), _classes(told)]
    return View("What if", blocks, plain_line(told.summary, 1000), refresh_s=0)


def _facts(told: admin_service_pb2.WhatIfResponse) -> Facts:
    before, after = told.before, told.after
    return Facts(
        (
            ("pool", plain_line(told.pool)),
            ("nodes now", number(told.nodes)),
            ("mean completion time now", duration(before.mean_act_s)),
            ("with those added", duration(after.mean_act_s)),
            ("start in the next round now", number(before.start_now)),
            ("with those added ", number(after.start_now)),
            ("commands that share cores", number(before.shared.running)),
            ("cores they would use", f"{number(before.shared.use)} of {number(before.shared.cores)}"),
        )
    )


def _classes(told: admin_service_pb2.WhatIfResponse) -> Table:
    after = {each.name: each for each in told.after.classes}
    rows = [
        (
            plain_line(each.name),
            count(number(each.waiting), "/stuck"),
            count(duration(each.waited_s)),
            count(duration(each.mean_wait_s)),
            count(duration(after[each.name].mean_wait_s) if each.name in after else ""),
            count(number(each.stuck), tone="bad" if each.stuck else ""),
        )
        for each in told.before.classes[:_CLASSES]
    ]
    columns = ("class", "waiting", "waited so far", "wait now", "wait then", "fit nowhere")
    return Table("What waits and may go to any node", columns, rows, "nothing waits")
