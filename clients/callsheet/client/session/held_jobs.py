"""Which jobs a session holds, so that they do not expire while their client lives. Pure bookkeeping."""

from __future__ import annotations

import logging

from callsheet.client.errors import RefusedError
from callsheet.client.session.ledger import MAX_BATCH_ITEMS
from callsheet.v1 import client_service_pb2

logger = logging.getLogger("callsheet.client")


class HeldJobs:
    """The jobs that the client opened or named. On each new stream they are held again, before anything else."""

    def __init__(self) -> None:
        self._jobs: dict[str, None] = {}
        self._asked: dict[int, str] = {}

    def __bool__(self) -> bool:
        """Whether any job is held."""
        return bool(self._jobs)

    def hold(self, job_id: str) -> None:
        """Notes that a job is held, as an item that names it was accepted on the present stream."""
        self._jobs[job_id] = None

    def release(self, job_id: str) -> None:
        """Notes that a job is no longer held."""
        self._jobs.pop(job_id, None)

    def release_all(self) -> None:
        """Notes that no job is held."""
        self._jobs.clear()

    def requests(self, sequence: int) -> list[client_service_pb2.ClientSessionRequest]:
        """Returns what a new stream says first.

        Args:
            sequence: The last sequence of the session; the items take the next ones.
        """
        self._asked = dict(enumerate(self._jobs, start=sequence + 1))
        items = [client_service_pb2.ClientItem(sequence=n, hold_job=job_id) for n, job_id in self._asked.items()]
        starts = range(0, len(items), MAX_BATCH_ITEMS)
        return [client_service_pb2.ClientSessionRequest(items=items[at : at + MAX_BATCH_ITEMS]) for at in starts]

    def answer(self, sequence: int, refusal: RefusedError | None) -> bool:
        """Takes in the result of an item; returns whether the item was one of these."""
        job_id = self._asked.pop(sequence, None)
        if job_id is None:
            return False
        if refusal is not None:
            logger.warning("job is no longer held job=%s: %s", job_id, refusal)
            self.release(job_id)
        return True
