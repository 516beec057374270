"""The lease of a job, which lets it live on for a while without a client session."""

from __future__ import annotations

from dataclasses import dataclass, field

from callsheet.scheduler.core.words.peers import ClientSession


@dataclass(slots=True)
class Lease:
    """Client sessions that hold a job, and how long it lives on without any.

    Attributes:
        sessions: Those that hold it.
        expired: None did for its whole grace.
        ends_at: When it expires, or is closed if it has expired; None while it is held or if it is detached.
        left: Seconds until then as the journal has them; None if it has none, which stands for all of them.
    """

    sessions: set[ClientSession] = field(default_factory=set)
    expired: bool = False
    ends_at: float | None = None
    left: float | None = None
