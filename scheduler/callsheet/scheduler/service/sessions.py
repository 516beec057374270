"""The two hot streams as the loop sees them: where replies, outcomes and dispatches are put."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import anyio
from callsheet.scheduler.core.model import RefusalCode, RefusedError
from callsheet.scheduler.service.manager_wire import ManagerCommand, fill_item
from callsheet.scheduler.service.refusals import to_duration, to_status
from callsheet.v1 import client_service_pb2, manager_service_pb2, outcome_pb2

MAX_ITEMS = 1024
MAX_BYTES = 1024 * 1024
# Batches, not items: a reader this far behind has stopped reading.
MAX_BATCHES = 10_000
# Batches waiting beyond which what commands print is dropped: a reader this far behind does not watch.
MAX_BATCHES_BEFORE_OUTPUT = 4

M = TypeVar("M", client_service_pb2.ClientSessionResponse, manager_service_pb2.ManagerSessionResponse)


class ReplySession(Protocol):
    """Takes the answer to a request."""

    def put_result(self, sequence: int, refusal: RefusedError | None) -> None:
        """Takes the acknowledgement of a request, or its refusal."""


class Watcher(Protocol):
    """Takes the outcome of an action."""

    def put_outcome(self, outcome: outcome_pb2.Outcome) -> None:
        """Takes an outcome."""


class Outbox(Generic[M]):
    """Messages waiting to be written to a stream, filled item by item.

    Bounded by `MAX_BATCHES`; past it the session is closed, since its reader has stopped reading.
    """

    def __init__(self, message_type: type[M]) -> None:
        self._message_type: type[M] = message_type
        self._batches: deque[M] = deque()
        self._items = 0
        self._bytes = 0
        self._filled = anyio.Event()
        self.closing: RefusedError | None = None

    def room_for(self, size: int) -> M:
        """The batch that the next item of about this many bytes goes into."""
        if not self._batches or self._items >= MAX_ITEMS or (self._items and self._bytes + size > MAX_BYTES):
            if len(self._batches) >= MAX_BATCHES:
                self.close(
                    RefusedError(
                        RefusalCode.RESOURCE_EXHAUSTED, "session", len(self._batches), "does not read its stream", 1.0
                    )
                )
                self._batches.clear()
            self._batches.append(self._message_type())
            self._items = self._bytes = 0
        self._items += 1
        self._bytes += size
        self._filled.set()
        return self._batches[-1]

    @property
    def backlog(self) -> int:
        """Batches that wait to be written."""
        return len(self._batches)

    def close(self, reason: RefusedError) -> None:
        """Ends the session once what is waiting has been written."""
        self.closing = self.closing or reason
        self._filled.set()

    async def next_batch(self) -> M | None:
        """Waits for a batch; None when the session is closing and nothing is left."""
        while not self._batches:
            if self.closing is not None:
                return None
            self._filled = anyio.Event()
            await self._filled.wait()
        batch = self._batches.popleft()
        if not self._batches:
            self._items = self._bytes = 0
        return batch


class ClientStream:
    """One client stream."""

    def __init__(self) -> None:
        self.outbox: Outbox[client_service_pb2.ClientSessionResponse] = Outbox(client_service_pb2.ClientSessionResponse)

    def put_result(self, sequence: int, refusal: RefusedError | None) -> None:
        """See `ReplySession`."""
        batch = self.outbox.room_for(16 if refusal is None else 512)
        result = batch.results.add(sequence=sequence)
        if refusal is not None:
            result.status.CopyFrom(to_status(refusal))

    def put_outcome(self, outcome: outcome_pb2.Outcome) -> None:
        """See `Watcher`."""
        self.outbox.room_for(outcome.ByteSize()).outcomes.append(outcome)

    def put_output(self, output: client_service_pb2.ActionOutput) -> None:
        """Takes what a command printed, or drops it if the reader is behind; the offset of the next one tells."""
        if self.outbox.backlog <= MAX_BATCHES_BEFORE_OUTPUT:
            self.outbox.room_for(output.ByteSize()).output.append(output)


class ManagerStream:
    """One manager stream."""

    def __init__(self, manager_id: str) -> None:
        self.manager_id = manager_id
        self.outbox: Outbox[manager_service_pb2.ManagerSessionResponse] = Outbox(
            manager_service_pb2.ManagerSessionResponse
        )

    def put_registered(self, epoch: int, heartbeat_interval: float, lease: float, shared_cores: Sequence[int]) -> None:
        """Answers the registration; times in seconds."""
        registered = self.outbox.room_for(32).items.add().registered
        registered.epoch = epoch
        registered.heartbeat_interval.CopyFrom(to_duration(heartbeat_interval))
        registered.lease.CopyFrom(to_duration(lease))
        registered.shared_cores.extend(shared_cores)

    def put_command(self, command: ManagerCommand, size: int) -> None:
        """Queues a command of about `size` bytes."""
        fill_item(self.outbox.room_for(size).items.add(), command)
