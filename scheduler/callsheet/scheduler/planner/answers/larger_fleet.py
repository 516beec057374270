"""The core's state as it would be with more nodes of a pool: the planner is then asked as ever."""

from __future__ import annotations

import copy
from dataclasses import replace

from callsheet.scheduler.core.entities import Manager
from callsheet.scheduler.core.fleet import update_reserve
from callsheet.scheduler.core.ledger import Node
from callsheet.scheduler.core.quotas import TokenBucket
from callsheet.scheduler.core.services import Service
from callsheet.scheduler.core.state import SchedulerState


def with_more_nodes(state: SchedulerState, like: Node, more: int, now: float) -> SchedulerState:
    """A state that shares everything with the given one, but has `more` idle nodes like one of its nodes.

    It is for reading only: what it shares would change in both.

    Args:
        state: The core.
        like: A node of it; each new one has its capacity, and managers with the services of its managers.
        more: How many.
        now: Seconds since the epoch.
    """
    larger = copy.copy(state)
    larger.nodes, larger.managers = dict(state.nodes), dict(state.managers)
    larger.servable_cache = {}
    larger.fleet_version = state.fleet_version + 1
    for number in range(1, more + 1):
        _add_copy(larger, like, number, now)
    return larger


def _add_copy(state: SchedulerState, like: Node, number: int, now: float) -> None:
    node = Node(replace(like.description, node_id=f"{like.node_id} (what if {number})"))
    state.nodes[node.node_id] = node
    for manager_id in sorted(like.managers):
        manager = state.managers[manager_id]
        twin = Manager(
            f"{manager_id} (what if {number})",
            manager.incarnation,
            node,
            {name: Service(service.description) for name, service in manager.services.items()},
            manager.session,
            now,
            manager.capabilities,
            draining=manager.draining,
            reconciled=manager.reconciled,
        )
        node.managers.add(twin.manager_id)
        state.managers[twin.manager_id] = twin
    node.meter(
        {name: TokenBucket(limits, float(limits.burst), now) for name, limits in like.description.quotas.items()}
    )
    update_reserve(state, node)
