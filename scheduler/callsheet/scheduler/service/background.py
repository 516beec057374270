"""Work that the loop starts and does not wait for: it reads stored outcomes, and releases payloads of no more use."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import anyio
import structlog
from callsheet.scheduler.core.words.model import ActionKey
from callsheet.scheduler.core.words.peers import Watcher
from callsheet.scheduler.service.payloads.claims import PayloadClaims
from callsheet.scheduler.store.journal import Journal
from callsheet.scheduler.store.payloads import PayloadStoreError

READS_PER_THREAD_CALL = 256
BYTES_PER_THREAD_CALL = 16 * 1024 * 1024

_log = structlog.get_logger(__name__)


class Background:
    """Works off two queues; each entry stands for a request. Streams are not read while `backlog` is long."""

    def __init__(self, journal: Journal, claims: PayloadClaims, job_is_open: Callable[[str], bool]) -> None:
        self._journal = journal
        self._claims = claims
        self._job_is_open = job_is_open
        self._reads: deque[tuple[Watcher, ActionKey]] = deque()
        self._unneeded: deque[tuple[str, frozenset[str]]] = deque()
        self._wake = anyio.Event()

    @property
    def backlog(self) -> int:
        """Stored outcomes that wait to be read."""
        return len(self._reads)

    def deliver_stored(self, watcher: Watcher, key: ActionKey) -> None:
        """Sends the committed outcome of an action to a watcher."""
        self._reads.append((watcher, key))
        self._wake.set()

    def release_payloads(self, job_id: str) -> None:
        """Lets go of the payloads that only this job used."""
        self._claims.release_job(job_id)

    def release_some(self, job_id: str, payloads: frozenset[str]) -> None:
        """Lets go of payloads that a job needs no longer."""
        self._unneeded.append((job_id, payloads))
        self._wake.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            while self._reads:
                batch = [self._reads.popleft() for _ in range(min(len(self._reads), READS_PER_THREAD_CALL))]
                batch = [(watcher, key) for watcher, key in batch if not watcher.gone]
                stored = await anyio.to_thread.run_sync(self._read, [key for _, key in batch])
                self._reads.extendleft(reversed(batch[len(stored) :]))
                for (watcher, key), encoded in zip(batch, stored, strict=False):
                    self._deliver(watcher, key, encoded)
            while self._unneeded:
                await self._release_some(*self._unneeded.popleft())

    def _read(self, keys: list[ActionKey]) -> list[bytes | None]:
        """Outcomes of the first keys: of all, unless they are large."""
        stored: list[bytes | None] = []
        size = 0
        for key in keys:
            stored.append(outcome := self._journal.outcome(*key))
            size += len(outcome or b"")
            if size >= BYTES_PER_THREAD_CALL:
                break
        return stored

    async def _release_some(self, job_id: str, payloads: frozenset[str]) -> None:
        try:
            await self._claims.release(job_id, payloads)
        except PayloadStoreError as error:
            # They stay until they are idle, or the job is closed.
            _log.error("payloads_not_released", job_id=job_id, reason=str(error))

    def _deliver(self, watcher: Watcher, key: ActionKey, encoded: bytes | None) -> None:
        if encoded is None:
            _log.info("stored_outcome_gone", job_id=key.job_id, action_id=key.action_id)
            # The client that closed a job expects nothing more. Else it was forgotten since it was asked for.
            if self._job_is_open(key.job_id):
                watcher.miss_outcome()
            return
        watcher.put_outcome(encoded)
