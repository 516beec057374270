"""Looks which trajectories are closed, and forgets them once they have been for long enough."""

from __future__ import annotations

import time

import anyio
import structlog
from callsheet.client import CallsheetError, Client, NotFoundError
from callsheet.gateway.server.call_store import CallStore
from callsheet.gateway.server.live_trajectories import LiveTrajectories

_log = structlog.get_logger(__name__)


class Retention:
    """Sweeps the database for as long as it runs."""

    def __init__(self, client: Client, store: CallStore, live: LiveTrajectories, retention_s: float) -> None:
        """Args:
        client: Of the scheduler, which knows what is closed.
        store: Where call records are.
        live: Conversations in memory.
        retention_s: How long a closed trajectory is kept.
        """
        self._client = client
        self._store = store
        self._live = live
        self._retention_s = retention_s

    async def run(self, every_s: float) -> None:
        """Sweeps again and again."""
        while True:
            await self.sweep(time.time())
            await anyio.sleep(every_s)

    async def sweep(self, now: float) -> None:
        """Notes what is closed, and forgets what was closed for long enough."""
        for job_id, trajectory_ids in (await self._store.open_trajectories()).items():
            try:
                closed = await self._closed(job_id, [each for each in trajectory_ids if each])
            except CallsheetError as error:
                _log.warning("closed_unknown", job_id=job_id, reason=str(error))
            else:
                await self._store.note_closed(job_id, closed, now)
        for job_id, trajectory_id in await self._store.forget_closed(now - self._retention_s):
            self._live.drop(job_id, trajectory_id)
            _log.info("trajectory_forgotten", job_id=job_id, trajectory_id=trajectory_id)

    async def _closed(self, job_id: str, trajectory_ids: list[str]) -> list[str]:
        if not trajectory_ids:
            return []
        try:
            found = await self._client.backend().trajectories(job_id)
        except NotFoundError:
            return trajectory_ids
        is_open = {status.trajectory_id for status in found}
        return [each for each in trajectory_ids if each not in is_open]
