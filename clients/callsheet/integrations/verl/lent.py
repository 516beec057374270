"""Trajectory and sandbox that an agent loop lends to the tools and the server client that run within it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from callsheet.client import CallsheetError, Client, Job, Trajectory
from callsheet.environments import EpisodeFailure
from callsheet.environments.failures import failure_of
from callsheet.integrations.borrowed_sandbox import BorrowedSandbox


@dataclass(slots=True)
class LentTrajectory:
    """One run's trajectory.

    Attributes:
        trajectory: The trajectory.
        sandbox: Its sandbox, where tools use one.
        failure: The first failure that something within the run met with.
    """

    trajectory: Trajectory
    sandbox: BorrowedSandbox | None = None
    failure: EpisodeFailure | None = None

    def note(self, error: CallsheetError) -> EpisodeFailure | None:
        """Notes what an error tells; returns None for a mistake of its caller."""
        failure = failure_of(error)
        self.failure = self.failure or failure
        return failure


_LENT: ContextVar[LentTrajectory | None] = ContextVar("callsheet_lent_trajectory", default=None)


def lent_trajectory() -> LentTrajectory | None:
    """Returns what the run around this call lends; None where no loop of Callsheet runs."""
    return _LENT.get()


@contextmanager
def lending(lent: LentTrajectory) -> Iterator[LentTrajectory]:
    """Lends a trajectory to all that runs within the block, tasks that it starts included."""
    token = _LENT.set(lent)
    try:
        yield lent
    finally:
        _LENT.reset(token)


async def job_of(client: Client, job_id: str, settings: dict[str, Any] | None = None) -> Job:
    """Returns the job; opening it again attaches."""
    return await client.open_job(job_id, **(settings or {}))
