"""Everything a manager tells the scheduler, over whichever stream is up at the time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

import anyio
from callsheet.managers.ends import bounded
from callsheet.managers.fencing import Token
from callsheet.managers.settings import ManagerSettings
from callsheet.v1 import common_pb2, manager_service_pb2
from callsheet.wire.encoded_fields import embedded, tag

MAX_BATCH_ITEMS = 1024
MAX_BATCH_BYTES = 1 << 20

_ITEM = tag(manager_service_pb2.ManagerSessionRequest.ITEMS_FIELD_NUMBER)

START_HELD_S = 0.02
"""How long the start of an attempt is held back: what is shorter is told by one message instead of two."""
# Items waiting beyond which what attempts print is dropped: their ends must not wait for it.
MAX_ITEMS_BEFORE_OUTPUT = 64

ManagerItem = manager_service_pb2.ManagerItem
HEARTBEAT = ManagerItem(heartbeat=manager_service_pb2.Heartbeat()).SerializeToString()
DRAINING = ManagerItem(draining=manager_service_pb2.Draining()).SerializeToString()

_ENDED = tag(ManagerItem.ENDED_FIELD_NUMBER)


class Outbox:
    """Encoded items waiting to be written to one stream, cut into batches that the contract allows."""

    def __init__(self) -> None:
        self._items: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: bytes) -> None:
        """Appends an encoded ManagerItem."""
        self._items.append(embedded(_ITEM, item))

    def take_batch(self) -> bytes | None:
        """Removes the next items and returns them as one encoded ManagerSessionRequest; None if there are none.

        They are at most 1,024 and 1 MiB, but at least one.
        """
        if not self._items:
            return None
        batch: list[bytes] = []
        size = 0
        while self._items and len(batch) < MAX_BATCH_ITEMS:
            size += len(self._items[0])
            if batch and size > MAX_BATCH_BYTES:
                break
            batch.append(self._items.popleft())
        return b"".join(batch)


class UnacknowledgedEnds:
    """Encoded ends of attempts, kept in the order they happened until the scheduler acknowledges them.

    Nothing is dropped here. `full` tells the runtime to refuse new attempts until there is room again.
    """

    def __init__(self, max_ends: int, max_bytes: int) -> None:
        self._max_ends = max_ends
        self._max_bytes = max_bytes
        self._ends: dict[Token, bytes] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._ends)

    def full(self, expected: int) -> bool:
        """Returns whether there is no room for one more end besides `expected` ones of running attempts."""
        return len(self._ends) + expected >= self._max_ends or self._bytes >= self._max_bytes

    def add(self, token: Token, item: bytes) -> None:
        """Keeps an end."""
        self.acknowledge(token)
        self._ends[token] = item
        self._bytes += len(item)

    def get(self, token: Token) -> bytes | None:
        """Returns the end of an attempt if it is kept."""
        return self._ends.get(token)

    def acknowledge(self, token: Token) -> bool:
        """Forgets an end, and returns whether it was kept."""
        kept = self._ends.pop(token, None)
        if kept is None:
            return False
        self._bytes -= len(kept)
        return True

    def items(self) -> list[bytes]:
        """Returns all kept ends, the oldest first."""
        return list(self._ends.values())


class Mailbox:
    """The outbox of one stream, with a wake-up for each side. Bounded by whoever fills it: see `wait_below`."""

    def __init__(self) -> None:
        self._outbox = Outbox()
        self._filled = anyio.Event()
        self._emptied = anyio.Event()
        self._finished = False

    def __len__(self) -> int:
        """Items that wait to be written."""
        return len(self._outbox)

    def put(self, item: bytes) -> None:
        """Appends an encoded ManagerItem; it is written as soon as the stream takes it."""
        self._outbox.put(item)
        self._filled.set()

    def finish(self) -> None:
        """Notes that nothing will be put any more."""
        self._finished = True
        self._filled.set()

    async def next_batch(self) -> bytes | None:
        """Waits until there is an item, and returns as many as one message may carry, encoded; None once finished."""
        while True:
            batch = self._outbox.take_batch()
            if batch is not None:
                self._emptied.set()
                return batch
            if self._finished:
                return None
            self._filled = anyio.Event()
            await self._filled.wait()

    async def wait_below(self, limit: int) -> None:
        """Waits until fewer than `limit` items are left."""
        while len(self._outbox) >= limit:
            self._emptied = anyio.Event()
            await self._emptied.wait()


class Reports:
    """Sends reports while a stream is up, and keeps the ends of attempts until they are acknowledged.

    While no stream is up all else is dropped: the next registration says the same.
    """

    def __init__(self, settings: ManagerSettings) -> None:
        self._ends = UnacknowledgedEnds(settings.max_unacknowledged_ends, settings.max_unacknowledged_bytes)
        self._max_end_bytes = settings.max_end_bytes
        self._mailbox: Mailbox | None = None
        self._draining = False
        self._losses: list[bytes] = []
        # What tells the starts that were not told yet, in their order.
        self._starts: dict[Token, asyncio.TimerHandle] = {}
        self._all_acknowledged = anyio.Event()

    @property
    def unacknowledged(self) -> int:
        """How many ends are kept."""
        return len(self._ends)

    def full(self, running: int) -> bool:
        """Returns whether one more attempt beside `running` ones could end without room to keep its end."""
        return self._ends.full(running)

    def registering(self) -> None:
        """Notes that a registration is being made, which says what is true now; what changes from here on is kept."""
        self._losses.clear()

    def open(self, mailbox: Mailbox) -> None:
        """Takes a stream whose registration was accepted.

        The kept ends go first and a heartbeat follows them: it tells the scheduler that attempts it has not heard of by
        then never started.
        """
        self._mailbox = mailbox
        if self._draining:
            mailbox.put(DRAINING)
        for item in self._losses:
            mailbox.put(item)
        self._losses.clear()
        for item in self._ends.items():
            mailbox.put(item)
        mailbox.put(HEARTBEAT)

    def close(self) -> None:
        """Notes that no stream is up any more."""
        self._mailbox = None

    def heartbeat(self, services: Sequence[manager_service_pb2.ServiceState] = ()) -> None:
        """Reports that the manager is alive, and the states of services that changed or may have."""
        if services:
            self._send(ManagerItem(heartbeat=manager_service_pb2.Heartbeat(services=services)).SerializeToString())
        else:
            self._send(HEARTBEAT)

    def started(self, token: Token) -> None:
        """Reports that an attempt began, unless it ends within `START_HELD_S`: its end tells that as well."""
        self._starts[token] = asyncio.get_running_loop().call_later(START_HELD_S, self._tell_start, token)

    def progressed(self, token: Token, execution_s: float) -> None:
        """Reports that an attempt is alive, and its execution clock."""
        progress = manager_service_pb2.AttemptProgress(token=token.message(), execution_s=execution_s)
        self._send(ManagerItem(progress=progress).SerializeToString())

    def printed(self, token: Token, chunk: common_pb2.OutputChunk) -> None:
        """Sends a part of what an attempt prints, or drops it if others wait."""
        if self._mailbox is not None and len(self._mailbox) < MAX_ITEMS_BEFORE_OUTPUT:
            output = manager_service_pb2.AttemptOutput(token=token.message(), chunk=chunk)
            self._send(ManagerItem(output=output).SerializeToString())

    def ended(self, end: manager_service_pb2.AttemptEnded) -> None:
        """Reports how an attempt ended, again and again until it is acknowledged."""
        item = embedded(_ENDED, bounded(end, self._max_end_bytes).SerializeToString())
        token = Token.of(end.token)
        self._ends.add(token, item)
        if token in self._starts:
            self._starts.pop(token).cancel()
        self._send(item, after_starts=False)

    def refused(self, end: manager_service_pb2.AttemptEnded) -> None:
        """Reports, once, that an attempt was not started.

        It need not be kept: after a new registration the scheduler takes an attempt that nobody knows as not started.
        """
        self._send(embedded(_ENDED, end.SerializeToString()))

    def end_repeated(self, token: Token) -> bool:
        """Reports a kept end once more, and returns whether there is one."""
        item = self._ends.get(token)
        if item is None:
            return False
        self._send(item)
        return True

    def acknowledged(self, token: Token) -> None:
        """Forgets an end that the scheduler has committed (or found stale)."""
        self._ends.acknowledge(token)
        if not self._ends:
            self._all_acknowledged.set()

    def sandbox_lost(self, sandbox: manager_service_pb2.SandboxState, reason: str) -> None:
        """Reports that a sandbox is gone without having been released."""
        lost = manager_service_pb2.SandboxLost(sandbox=sandbox, reason=reason)
        item = ManagerItem(sandbox_lost=lost).SerializeToString()
        if self._mailbox is None:
            self._losses.append(item)
        else:
            self._mailbox.put(item)

    def draining(self) -> None:
        """Reports, now and after every new registration, that the manager is leaving."""
        self._draining = True
        self._send(DRAINING)

    async def wait_acknowledged(self) -> None:
        """Waits until no end is kept."""
        while self._ends:
            self._all_acknowledged = anyio.Event()
            await self._all_acknowledged.wait()

    def _tell_start(self, token: Token) -> None:
        self._starts.pop(token).cancel()
        if self._mailbox is not None:
            started = manager_service_pb2.AttemptStarted(token=token.message())
            self._mailbox.put(ManagerItem(started=started).SerializeToString())

    def _send(self, item: bytes, *, after_starts: bool = True) -> None:
        """Sends an item, by default after the starts: what a heartbeat does not follow never started."""
        for token in list(self._starts) if after_starts else ():
            self._tell_start(token)
        if self._mailbox is not None:
            self._mailbox.put(item)
