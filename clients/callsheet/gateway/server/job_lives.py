"""Finds the life of a job that callers mean: a job opened anew under the id of a closed one is another job."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from callsheet.client import CallsheetError, Client, NotFoundError
from callsheet.gateway.server.call_store import CallStore, JobLife
from callsheet.gateway.server.faults import UNKNOWN, NoReplyError, of_error

_MOST_KNOWN: Final = 4096


class JobLives:
    """Finds out which life is meant."""

    def __init__(self, client: Client, store: CallStore) -> None:
        """Args:
        client: Of the scheduler.
        store: Where call records are, also of jobs that were closed.
        """
        self._client, self._store = client, store
        self._newest: OrderedDict[str, str] = OrderedDict()

    async def named(self, job_id: str, life: str) -> JobLife:
        """Returns the life that a trainer names, else the one that is open now, else the newest that is known.

        Raises:
            NoReplyError: The scheduler does not answer, and none is known.
        """
        newest = self._newest.get(job_id, "")
        if not life:
            try:
                life = (await self._client.job(job_id).status()).life
            except NotFoundError:
                life = newest or await self._store.newest_life(job_id)
            except CallsheetError as error:
                if not newest:
                    raise of_error(error) from error
                life = newest
        self._newest[job_id] = max(newest, life)
        self._newest.move_to_end(job_id)
        if len(self._newest) > _MOST_KNOWN:
            self._newest.popitem(last=False)
        return JobLife(job_id, life)

    async def of_key(self, job_id: str, life: str) -> JobLife:
        """Returns the life that a key is of.

        Raises:
            NoReplyError: The job of the key was closed, and opened anew since.
        """
        if life and self._newest.get(job_id, "") > life:
            said = "the API key is of an earlier job of the same id: the trainer of this one issues another"
            raise NoReplyError(UNKNOWN, said)
        return JobLife(job_id, life) if life else await self.named(job_id, "")
