"""User ids for sandboxes."""

from __future__ import annotations

import threading
import zlib

from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.settings import POOL_UID_BASE, POOL_UID_COUNT


class UserPool:
    """Hands out user ids, one a sandbox, so that sandboxes share nothing that is counted or allowed by user."""

    def __init__(self, offset: int) -> None:
        """Args: offset: Where to begin; different for the managers of a machine."""
        self._next = offset % POOL_UID_COUNT
        self._used: set[int] = set()
        self._lock = threading.Lock()

    @classmethod
    def of_manager(cls, manager_id: str) -> UserPool:
        """Returns the pool of a manager, which begins elsewhere than those of most others."""
        return cls(zlib.crc32(manager_id.encode()))

    def take(self) -> int:
        """Returns a free id; raises SandboxCreateError when all are taken."""
        with self._lock:
            for _ in range(POOL_UID_COUNT):
                uid = POOL_UID_BASE + self._next
                self._next = (self._next + 1) % POOL_UID_COUNT
                if uid not in self._used:
                    self._used.add(uid)
                    return uid
        raise SandboxCreateError(f"all {POOL_UID_COUNT} user ids for sandboxes are taken")

    def give_back(self, uid: int) -> None:
        """Makes it free again."""
        with self._lock:
            self._used.discard(uid)
