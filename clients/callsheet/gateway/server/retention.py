"""Looks which trajectories are closed, and forgets them once they have been for long, or take too much room."""

from __future__ import annotations

import time
from typing import Final

import anyio
import structlog
from callsheet.client import CallsheetError, Client, NotFoundError
from callsheet.gateway.server.call_store import CallStore
from callsheet.gateway.server.live_trajectories import LiveTrajectories

_OUTSIDE_S: Final = 6 * 3600.0
"""How long calls outside of trajectories are kept at most, which is for retries alone."""
_LOST_S: Final = 7 * 86_400.0
"""The same of those whose gateway ended and whose clients never came again."""
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
        for job_id, kept in (await self._store.kept_trajectories()).items():
            await self._look(job_id, {name: closed for name, closed in kept.items() if name}, now)
        for job_id, trajectory_id, _ in await self._store.closed_trajectories(now - self._retention_s):
            await self._forget(job_id, trajectory_id, now - self._retention_s)
        outside_s = min(self._retention_s, _OUTSIDE_S)
        await self._store.forget_outside(now - outside_s, now - _LOST_S)
        await self._make_room(now)

    async def _look(self, job_id: str, kept: dict[str, bool], now: float) -> None:
        if not kept:
            return
        # A call may open its trajectory only while it is looked for.
        busy = {name for name in kept if self._live.is_busy(job_id, name)}
        try:
            is_open = await self._open_ones(job_id)
        except CallsheetError as error:
            _log.warning("closed_unknown", job_id=job_id, reason=str(error))
            return
        closed = [name for name, was_closed in kept.items() if not was_closed and name not in is_open | busy]
        reopened = [name for name, was_closed in kept.items() if was_closed and name in is_open]
        await self._store.note_closed(job_id, closed, now)
        await self._store.note_closed(job_id, reopened, None)

    async def _open_ones(self, job_id: str) -> set[str]:
        try:
            return {status.trajectory_id for status in await self._client.backend().trajectories(job_id)}
        except NotFoundError:
            return set()

    async def _make_room(self, now: float) -> None:
        held = await self._store.held_bytes()
        if held > self._most_bytes:
            for job_id, trajectory_id, size in await self._store.closed_trajectories(now):
                if held <= self._most_bytes:
                    break
                if await self._forget(job_id, trajectory_id, now):
                    held -= size
        if held > self._most_bytes:
            _log.warning("database_full", held_bytes=held, most_bytes=self._most_bytes)
        self.is_full = held > self._most_bytes

    async def _forget(self, job_id: str, trajectory_id: str, closed_by: float) -> bool:
        gone = await self._live.forget(job_id, trajectory_id, closed_by)
        if gone:
            _log.info("trajectory_forgotten", job_id=job_id, trajectory_id=trajectory_id)
        return gone
