"""Clients and managers of a core as tests call them: by their names."""

from __future__ import annotations

from callsheet.scheduler.core.words.model import Opened
from callsheet.scheduler.core.words.refusals import RefusedError


class Peer(str):
    """A client's session, somebody who watches actions, or a manager's stream.

    The worlds of tests carry commands out by themselves, so nothing is ever put to it.
    """

    gone = False

    @property
    def manager_id(self) -> str:
        """See `ManagerSession`."""
        return self

    def put_result(self, sequence: int, refusal: RefusedError | None) -> None:
        """See `ClientSession`."""
        raise AssertionError(f"{self} was answered past its world")

    def put_opened(self, sequence: int, opened: Opened) -> None:
        """See `ClientSession`."""
        raise AssertionError(f"{self} was answered past its world")

    def put_outcome(self, outcome: bytes) -> None:
        """See `Watcher`."""
        raise AssertionError(f"{self} was told an outcome past its world")

    def miss_outcome(self) -> None:
        """See `Watcher`."""
        raise AssertionError(f"{self} was told past its world that there is no outcome")
