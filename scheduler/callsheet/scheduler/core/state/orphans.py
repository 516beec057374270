"""Orphans: attempts of actions that the core does not know, because a crash lost their submits."""

from __future__ import annotations

from dataclasses import dataclass

from callsheet.scheduler.core.words.events import AttemptEnded, result_bytes
from callsheet.scheduler.core.words.registration import RunningAttempt

# What an orphan takes besides its result.
_ORPHAN_BYTES = 1024


@dataclass(slots=True)
class Orphan:
    """An attempt of an action nobody knows: its submit was lost in a crash and its client will submit it again.

    Attributes:
        running: As its manager tells, or told before it ended.
        ended: How it ended, if it has.
    """

    manager_id: str
    running: RunningAttempt
    ended: AttemptEnded | None = None

    @property
    def size(self) -> int:
        """Bytes of its result, and about what the rest of it takes."""
        return _ORPHAN_BYTES + (result_bytes(self.ended.result) if self.ended is not None else 0)
