"""Nodes that are processes of this machine, which share its cores among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from callsheet.deploy.fleet.node import FleetNode, ManagerOnNode, NodeOrder
from callsheet.deploy.fleet.provider import NoNodeRoomError, Provider, ThisMachine
from callsheet.deploy.fleet.settings import RoleSettings
from callsheet.managers.node import describe_node


class LocalProvider(Provider):
    """Has as many nodes as the cores and the memory of this machine allow."""

    def __init__(self) -> None:
        self._managers: dict[str, tuple[RoleSettings, ManagerOnNode]] = {}

    def open(self) -> ThisMachine:
        return ThisMachine("127.0.0.1", has_others=False)

    def nodes(self) -> Sequence[FleetNode]:
        return [manager.report() for _, manager in self._managers.values()]

    def start(self, role: RoleSettings, orders: Sequence[NodeOrder], *, within_s: float | None) -> None:
        machine = describe_node()
        has = {"cores": sum(len(numa.cores) for numa in machine.numa_nodes), "memory_mib": machine.capacity["memory"]}
        for name, units in has.items():
            taken = sum(getattr(each, name) for each, _ in self._managers.values())
            asked = getattr(role, name) * len(orders)
            if taken + asked > units:
                raise NoNodeRoomError(
                    f"roles.{role.role}.{name}: {len(orders)} nodes want {asked}; this machine has {units}, and other "
                    f"nodes have {taken} of them"
                )
        for order in orders:
            manager = ManagerOnNode(order)
            manager.begin(order.secrets)
            self._managers[order.name] = (role, manager)

    def stop(self, name: str, grace_s: float) -> None:
        if name in self._managers:
            self._managers[name][1].stop(grace_s)
            self._managers.pop(name, None)

    def want(self, nodes: Mapping[str, int], roles: Mapping[str, RoleSettings]) -> None:
        """There is one machine."""

    def close(self) -> None:
        """Its nodes were all there was."""
