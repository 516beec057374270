"""The seam between a fleet and whoever has its machines: start managers, list them, stop them, ask for more room.

The local provider has nodes that are processes of this machine, which share its cores among them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from callsheet.deploy.fleet.node import FleetNode, ManagerOnNode, NodeOrder
from callsheet.deploy.fleet.settings import RoleSettings
from callsheet.managers.node import describe_node


class UnreadableError(Exception):
    """A list cannot be read now. It is not an empty one: nothing may be concluded from it."""


class NoNodeRoomError(Exception):
    """The provider has not enough for what is wanted; the message names what is short."""


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """The machine of the scheduler: how nodes can dial it, and whether there are nodes on others."""

    host: str
    has_others: bool


class Provider(ABC):
    """Has the nodes of one fleet. Methods may block for seconds; one is called at a time, but for `stop`."""

    @abstractmethod
    def open(self) -> ThisMachine:
        """Connects, and tells how its nodes reach this machine.

        Raises:
            UnreadableError: The provider does not answer.
        """

    @abstractmethod
    def nodes(self) -> Sequence[FleetNode]:
        """All nodes that were started and not stopped, the oldest first.

        Raises:
            UnreadableError: They cannot be told now.
        """

    @abstractmethod
    def start(self, role: RoleSettings, orders: Sequence[NodeOrder], *, within_s: float | None) -> None:
        """Starts managers, each on a machine that has no other one of their role.

        Args:
            role: What each machine must have.
            orders: What runs there.
            within_s: How long finding room may take; None waits for as long as it takes, as nodes that are `WAITING`.

        Raises:
            NoNodeRoomError: There is no room for all of them in time; none was started.
        """

    @abstractmethod
    def stop(self, name: str, grace_s: float) -> None:
        """Ends a node's manager after its drain, and gives its machine back. No error if it has ended.

        Args:
            name: The node.
            grace_s: Seconds until it is killed.
        """

    @abstractmethod
    def want(self, nodes: Mapping[str, int], roles: Mapping[str, RoleSettings]) -> None:
        """Notes how many nodes of each role are wanted in all, for providers that can get more machines."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of everything; all nodes have been stopped."""


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
