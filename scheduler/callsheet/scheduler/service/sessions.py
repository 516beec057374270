"""The two hot streams as the loop sees them: where replies, outcomes and dispatches are put."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from callsheet.scheduler.core.commands import AcknowledgeEnd
from callsheet.scheduler.core.model import RefusalCode, RefusedError
from callsheet.scheduler.service.manager_wire import ManagerCommand, fill_item
from callsheet.scheduler.service.refusals import to_duration, to_status
from callsheet.v1 import client_service_pb2, manager_service_pb2, outcome_pb2

MAX_ITEMS = 1024
MAX_BYTES = 1024 * 1024
# A reader this far behind has stopped reading.
MAX_WAITING_BYTES = 256 * 1024 * 1024
# Seconds that an item nobody waits for may wait for company: a message of its own costs either end far more than it.
COMPANY_WAIT = 0.005
# Batches waiting beyond which what commands print is dropped: a reader this far behind does not watch.
MAX_BATCHES_BEFORE_OUTPUT = 4

M = TypeVar("M", client_service_pb2.ClientSessionResponse, manager_service_pb2.ManagerSessionResponse)


class ReplySession(Protocol):
    """Takes the answer to a request."""

    def put_result(self, sequence: int, refusal: RefusedError | None) -> None:
        """Takes the acknowledgement of a request, or its refusal."""


class Watcher(Protocol):
    """Takes the outcome of an action."""

    @property
    def gone(self) -> bool:
        """Whether nobody would read it any more."""

    def put_outcome(self, outcome: outcome_pb2.Outcome) -> None:
        """Takes an outcome."""


def as_watcher(watcher: object) -> Watcher:
    """What the core was given to deliver to, as what it is.

    Raises:
        TypeError: It takes no outcomes.
    """
    if not (hasattr(watcher, "put_outcome") and hasattr(watcher, "gone")):
        raise TypeError(f"{watcher!r} takes no outcomes")
    return watcher


def is_gone(watcher: object) -> bool:
    """Whether a watcher is gone; for the core, which does not know what it is."""
    return as_watcher(watcher).gone


@dataclass(slots=True, eq=False)
class _Batch(Generic[M]):
    """A message being filled, and about how many bytes it has."""

    message: M
    items: int = 0
    size: int = 0


class Outbox(Generic[M]):
    """Messages waiting to be written to a stream, filled item by item.

    Bounded by `MAX_WAITING_BYTES`; past it the session is closed, since its reader has stopped reading.

    Attributes:
        closing: Why the session ends, once it does.
        abandoned: Nothing is written any more: what still comes is dropped.
    """

    def __init__(self, message_type: type[M]) -> None:
        self._message_type: type[M] = message_type
        self._batches: deque[_Batch[M]] = deque()
        self._size = 0
        # Set while there is something to write now, or nothing more to come.
        self._due = asyncio.Event()
        self._company_timer: asyncio.TimerHandle | None = None
        self.closing: RefusedError | None = None
        self.abandoned = False

    def room_for(self, size: int, *, patient: bool = False) -> M:
        """The batch that the next item goes into.

        Args:
            size: About how many bytes it has.
            patient: It may wait for others, up to `COMPANY_WAIT`, before it is written.
        """
        if self.abandoned:
            return self._message_type()
        if self._batches and self._size + size > MAX_WAITING_BYTES:
            waiting, rule = f"{self._size} bytes", "does not read its stream"
            self.close(RefusedError(RefusalCode.RESOURCE_EXHAUSTED, "session", waiting, rule, retry_after=1.0))
            self._clear()
        last = self._batches[-1] if self._batches else None
        if last is None or last.items >= MAX_ITEMS or last.size + size > MAX_BYTES:
            last = _Batch(self._message_type())
            self._batches.append(last)
        last.items += 1
        last.size += size
        self._size += size
        if not patient:
            self._due.set()
        elif self._company_timer is None:
            self._company_timer = asyncio.get_running_loop().call_later(COMPANY_WAIT, self._due.set)
        return last.message

    @property
    def backlog(self) -> int:
        """Batches that wait to be written."""
        return len(self._batches)

    def close(self, reason: RefusedError) -> None:
        """Ends the session once what is waiting has been written."""
        self.closing = self.closing or reason
        self._due.set()

    def abandon(self) -> None:
        """Its stream has ended: lets go of what waits, as whoever still has the session may have it for hours."""
        self.abandoned = True
        self._clear()

    def _clear(self) -> None:
        self._batches.clear()
        self._size = 0

    async def next_batch(self) -> M | None:
        """Waits for a batch; None when the session is closing and nothing is left."""
        await self._due.wait()
        if not self._batches:
            return None
        batch = self._batches.popleft()
        self._size -= batch.size
        if not self._batches:
            self._wait_for_more()
        return batch.message

    def _wait_for_more(self) -> None:
        if self._company_timer is not None:
            self._company_timer.cancel()
            self._company_timer = None
        if self.closing is None:
            self._due.clear()


class ClientStream:
    """One client stream."""

    def __init__(self) -> None:
        self.outbox: Outbox[client_service_pb2.ClientSessionResponse] = Outbox(client_service_pb2.ClientSessionResponse)

    @property
    def gone(self) -> bool:
        """See `Watcher`."""
        return self.outbox.abandoned

    def put_result(self, sequence: int, refusal: RefusedError | None) -> None:
        """See `ReplySession`."""
        batch = self.outbox.room_for(64 if refusal is None else 512)
        result = batch.results.add(sequence=sequence)
        if refusal is not None:
            result.status.CopyFrom(to_status(refusal))

    def put_outcome(self, outcome: outcome_pb2.Outcome) -> None:
        """See `Watcher`."""
        self.outbox.room_for(outcome.ByteSize()).outcomes.append(outcome)

    def put_output(self, output: client_service_pb2.ActionOutput) -> None:
        """Takes what a command printed, or drops it if the reader is behind; the offset of the next one tells."""
        if not self.gone and self.outbox.backlog <= MAX_BATCHES_BEFORE_OUTPUT:
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
        """Queues a command of about `size` bytes. Nobody waits to be told that an end was heard."""
        fill_item(self.outbox.room_for(size, patient=type(command) is AcknowledgeEnd).items.add(), command)
