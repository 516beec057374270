"""The seam between a fleet and whoever has its machines: start managers, list them, stop them, ask for more room."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from callsheet.deploy.fleet.node import FleetNode, NodeOrder
from callsheet.deploy.fleet.settings import RoleSettings


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
        """Tells how many nodes of each role are wanted in all, for providers that can get more machines."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of everything; all nodes have been stopped."""
