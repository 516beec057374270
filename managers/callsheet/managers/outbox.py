"""What goes out to the scheduler: batches of one stream, and ends that outlive it. Pure."""

from __future__ import annotations

from collections import deque

from callsheet.managers.fencing import Token
from callsheet.v1 import manager_service_pb2
from callsheet.v1.encoded_fields import embedded, tag

MAX_BATCH_ITEMS = 1024
MAX_BATCH_BYTES = 1 << 20

_ITEM = tag(manager_service_pb2.ManagerSessionRequest.ITEMS_FIELD_NUMBER)


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
