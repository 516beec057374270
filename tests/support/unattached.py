"""What the service's loop hands on, where nobody waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from callsheet.scheduler.core.words.model import ActionKey
from callsheet.scheduler.core.words.peers import Watcher
from callsheet.scheduler.core.words.records import Record
from callsheet.scheduler.service.background import Background
from callsheet.scheduler.store.writer import GroupCommitWriter


class NoWriter(GroupCommitWriter):
    """Takes records and keeps no journal."""

    def __init__(self) -> None:
        """Needs nothing."""

    @property
    def backlog(self) -> int:
        """Nothing waits."""
        return 0

    @property
    def backlog_bytes(self) -> int:
        """Nothing waits."""
        return 0

    def submit(self, records: Sequence[Record], on_committed: Callable[[], None]) -> None:
        """Keeps nothing, and calls nobody back."""


class NoBackground(Background):
    """Takes what is to be done beside the loop and does none of it."""

    def __init__(self) -> None:
        """Needs nothing."""

    @property
    def backlog(self) -> int:
        """Nothing waits."""
        return 0

    def deliver_stored(self, watcher: Watcher, key: ActionKey) -> None:
        """Nobody asks."""

    def release_payloads(self, job_id: str) -> None:
        """There are none."""
