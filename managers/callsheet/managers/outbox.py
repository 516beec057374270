"""What goes out to the scheduler: batches of one stream, and ends that outlive it. Pure."""

from __future__ import annotations

from collections import deque

from callsheet.managers.fencing import Token
from callsheet.v1 import manager_service_pb2

MAX_BATCH_ITEMS = 1024
MAX_BATCH_BYTES = 1 << 20
# Field tag and length of one item within its batch.
ITEM_OVERHEAD_BYTES = 6


class Outbox:
    """Items waiting to be written to one stream, cut into batches that the contract allows."""

    def __init__(self) -> None:
        self._items: deque[manager_service_pb2.ManagerItem] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: manager_service_pb2.ManagerItem) -> None:
        """Appends an item."""
        self._items.append(item)

    def take_batch(self) -> manager_service_pb2.ManagerSessionRequest | None:
        """Removes and returns the next items: at most 1,024 and 1 MiB, but at least one; None if there are none."""
        if not self._items:
            return None
        batch: list[manager_service_pb2.ManagerItem] = []
        size = 0
        while self._items and len(batch) < MAX_BATCH_ITEMS:
            size += self._items[0].ByteSize() + ITEM_OVERHEAD_BYTES
            if batch and size > MAX_BATCH_BYTES:
                break
            batch.append(self._items.popleft())
        return manager_service_pb2.ManagerSessionRequest(items=batch)


class UnacknowledgedEnds:
    """Ends of attempts, kept in the order they happened until the scheduler acknowledges them.

    Nothing is dropped here. `full` tells the runtime to refuse new attempts until there is room again.
    """

    def __init__(self, max_ends: int, max_bytes: int) -> None:
        self._max_ends = max_ends
        self._max_bytes = max_bytes
        self._ends: dict[Token, tuple[manager_service_pb2.ManagerItem, int]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._ends)

    def full(self, expected: int) -> bool:
        """Returns whether there is no room for one more end besides `expected` ones of running attempts."""
        return len(self._ends) + expected >= self._max_ends or self._bytes >= self._max_bytes

    def add(self, token: Token, item: manager_service_pb2.ManagerItem) -> None:
        """Keeps an end."""
        self.acknowledge(token)
        size = item.ByteSize()
        self._ends[token] = (item, size)
        self._bytes += size

    def get(self, token: Token) -> manager_service_pb2.ManagerItem | None:
        """Returns the end of an attempt if it is kept."""
        kept = self._ends.get(token)
        return None if kept is None else kept[0]

    def acknowledge(self, token: Token) -> bool:
        """Forgets an end, and returns whether it was kept."""
        kept = self._ends.pop(token, None)
        if kept is None:
            return False
        self._bytes -= kept[1]
        return True

    def items(self) -> list[manager_service_pb2.ManagerItem]:
        """Returns all kept ends, the oldest first."""
        return [item for item, _ in self._ends.values()]
