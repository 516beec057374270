"""Clients and managers of a core that runs in a benchmark: they are called by functions, not by streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from callsheet.scheduler.core.words.commands import Dispatch
from callsheet.scheduler.core.words.events import Event, ManagerHeartbeat, ManagerJoined, ReplyTo
from callsheet.scheduler.core.words.model import Opened
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.core.words.registration import NodeDescription, ServiceDescription


class AcceptingClient:
    """A client whose requests are all to be accepted, and which is told of outcomes another way."""

    gone = False

    def put_result(self, sequence: int, refusal: RefusedError | None) -> None:
        """Raises a refusal."""
        if refusal is not None:
            raise refusal

    def put_opened(self, sequence: int, opened: Opened) -> None:
        """Does nothing."""

    def put_outcome(self, outcome: bytes) -> None:
        """Does nothing."""

    def miss_outcome(self) -> None:
        """Does nothing."""


@dataclass(frozen=True, slots=True)
class NamedManager:
    """The stream of a manager: its name."""

    manager_id: str


def joining(node: NodeDescription, *services: ServiceDescription) -> Iterator[Event]:
    """The events by which a manager registers; it is called like its node."""
    yield ManagerJoined(NamedManager(node.node_id), node.node_id, "only", node, services)
    yield ManagerHeartbeat(node.node_id)


CLIENT = AcceptingClient()
TO_CLIENT = ReplyTo(CLIENT, 0)


def manager_of(dispatch: Dispatch) -> str:
    """The id of the manager that a dispatch is for."""
    if dispatch.session is None:
        raise AssertionError("the stream of a manager of a benchmark never breaks")
    return dispatch.session.manager_id
