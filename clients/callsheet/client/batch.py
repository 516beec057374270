"""Batches of finished trajectories, as a trainer takes them from the buffer of its job."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
from callsheet.client.backend import Connector
from callsheet.client.errors import CallsheetError, FailedPreconditionError, NotFoundError
from callsheet.client.words.jobs import BatchContent, FinishedTrajectory, Settlement

# A lease is extended so many times in its length.
_EXTENSIONS = 3


class Batch:
    """Finished trajectories that are leased to this process, until it acknowledges them.

    Its `async with` block acknowledges it at the end, and gives it back if the block raises. Meanwhile its lease is
    extended, as long as the event loop runs::

        async with await job.take_batch(at_least=64, wait_s=600) as batch:
            if batch:
                optimise(batch.trajectories)
                await job.publish(version)

    One for which there were too few trajectories is empty, and false. Its block does nothing.

    Attributes:
        job_id: Its job.
        content: The samples.
    """

    def __init__(self, client: Connector, job_id: str, content: BatchContent) -> None:
        self.client = client
        self.job_id = job_id
        self.content = content
        self._extending: anyio.abc.TaskGroup | None = None

    @property
    def batch_id(self) -> str:
        """Its id."""
        return self.content.batch_id

    @property
    def trajectories(self) -> tuple[FinishedTrajectory, ...]:
        """Its trajectories, the oldest group first, and groups whole."""
        return self.content.trajectories

    @property
    def groups(self) -> Mapping[str, tuple[FinishedTrajectory, ...]]:
        """Its trajectories by group; those without one are under the empty id."""
        found: dict[str, tuple[FinishedTrajectory, ...]] = {}
        for each in self.trajectories:
            found[each.group_id] = (*found.get(each.group_id, ()), each)
        return found

    def __len__(self) -> int:
        """How many trajectories it has."""
        return len(self.trajectories)

    async def acknowledge(self) -> None:
        """Says that it was trained on: none of it comes again. To be repeated at will.

        Raises:
            NotFoundError: Its lease has ended, so that it went back and may be another taker's.
            ConnectionLostError: There was no connection for too long.
        """
        await self._settle(Settlement.ACKNOWLEDGE)

    async def give_back(self) -> None:
        """Gives it back whole, at the place that it had; raises as `acknowledge` does."""
        await self._settle(Settlement.GIVE_BACK)

    async def extend(self) -> None:
        """Has its lease begin anew, as long as before; raises NotFoundError if it had ended."""
        await self._settle(Settlement.EXTEND)

    async def _settle(self, settlement: Settlement) -> None:
        if self:
            await self.client.backend().settle_batch(self.job_id, self.batch_id, settlement)

    async def __aenter__(self) -> Self:
        """Extends its lease from now on."""
        self._extending = anyio.create_task_group()
        await self._extending.__aenter__()
        if self:
            self._extending.start_soon(self._extend_for_ever)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Acknowledges it, or gives it back after an error, within the client's time for closing then."""
        assert self._extending is not None
        self._extending.cancel_scope.cancel()
        try:
            await self._extending.__aexit__(None, None, None)
        finally:
            if error is not None:
                await self._give_back_after_error()
        if error is None:
            await self.acknowledge()
        return None

    async def _give_back_after_error(self) -> None:
        """The error matters more; the end of the lease gives it back too."""
        with anyio.move_on_after(self.client.options.close_timeout_s, shield=True):
            try:
                await self.give_back()
            except CallsheetError:
                return

    async def _extend_for_ever(self) -> None:
        pause_s = max(self.content.lease_s / _EXTENSIONS, 0.05)
        while True:
            await anyio.sleep(pause_s)
            try:
                await self.extend()
            except (NotFoundError, FailedPreconditionError):
                return  # It is another's, or nobody's: the acknowledgement tells.
            except CallsheetError:
                continue  # A connection that is lost may be back before the lease ends.
