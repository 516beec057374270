"""Looks which trajectories are closed, and forgets them once they have been for long, or take too much room."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import anyio
import structlog
from callsheet.client import CallsheetError, Client, NotFoundError
from callsheet.gateway.server.call_store import CallStore, JobLife, KeptTrajectory
from callsheet.gateway.server.live_trajectories import LiveTrajectories

_OUTSIDE_S: Final = 6 * 3600.0
"""How long calls outside of trajectories are kept, which is for retries alone. The scheduler keeps outcomes longer."""
_log = structlog.get_logger(__name__)


class Retention:
    """Sweeps the database for as long as it runs.

    Attributes:
        is_full: Whether records take more room than they may, and none of them can be removed.
    """

    def __init__(
        self, client: Client, store: CallStore, live: LiveTrajectories, *, retention_s: float, most_bytes: int
    ) -> None:
        """Args:
        client: Of the scheduler, which knows what is closed.
        store: Where call records are.
        live: Conversations in memory.
        retention_s: How long a closed trajectory is kept.
        most_bytes: What all records may take; those of the trajectories that were closed first go first.
        """
        self._client = client
        self._store = store
        self._live = live
        self._retention_s = retention_s
        self._most_bytes = most_bytes
        self.is_full = False

    async def run(self, every_s: float) -> None:
        """Sweeps again and again."""
        while True:
            await self.sweep(time.time())
            await anyio.sleep(every_s)

    async def sweep(self, now: float) -> None:
        """Notes what is closed and what is not, and forgets what was closed for long enough or takes too much room."""
        await self._store.forget_outside(now - _OUTSIDE_S)
        by_job: defaultdict[JobLife, list[KeptTrajectory]] = defaultdict(list)
        for each in await self._store.kept():
            if each.trajectory_id:
                by_job[each.job].append(each)
        for job, of_job in by_job.items():
            await self._look(job, of_job, now)
        kept = await self._store.kept()
        held = sum(each.size for each in kept)
        for each in kept:
            if each.closed_at is None or (each.closed_at > now - self._retention_s and held <= self._most_bytes):
                break
            if await self._live.forget(each.job, each.trajectory_id, each.closed_at):
                _log.info("trajectory_forgotten", job_id=each.job.job_id, trajectory_id=each.trajectory_id)
                held -= each.size
        self.is_full = held > self._most_bytes
        if self.is_full:
            _log.warning("database_full", held_bytes=held, most_bytes=self._most_bytes)

    async def _look(self, job: JobLife, kept: Sequence[KeptTrajectory], now: float) -> None:
        # A call may open its trajectory only while it is looked for.
        busy = {each.trajectory_id for each in kept if self._live.is_busy(job, each.trajectory_id)}
        try:
            # Before its trajectories: what is opened meanwhile is of this life or a later one.
            lives_on = (await self._client.job(job.job_id).status()).life == job.life
            found = await self._client.backend().trajectories(job.job_id) if lives_on else []
            is_open = {status.trajectory_id for status in found}
        except NotFoundError:
            is_open = set()
        except CallsheetError as error:
            _log.warning("closed_unknown", job_id=job.job_id, reason=str(error))
            return
        names = {each.trajectory_id: each.closed_at is not None for each in kept}
        closed = [name for name, was_closed in names.items() if not was_closed and name not in is_open | busy]
        reopened = [name for name, was_closed in names.items() if was_closed and name in is_open]
        await self._store.note_closed(job, closed, now)
        await self._store.note_closed(job, reopened, None)
