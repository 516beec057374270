"""Memory that a manager's sandboxes hold against what it may use: pure."""

from __future__ import annotations


class MemoryLedger:
    """Holds memory for each sandbox as long as it lives; never more than the limit.

    Attributes:
        limit_mib: What all sandboxes may hold together, in MiB; None for no limit.
        held_mib: What they hold.
    """

    def __init__(self, limit_mib: int | None) -> None:
        self.limit_mib = limit_mib
        self.held_mib = 0
        self._held: dict[str, int] = {}

    def shortage_mib(self, memory_mib: int) -> int:
        """MiB that would have to be given back before another sandbox fits; 0 if it does."""
        if self.limit_mib is None:
            return 0
        return max(0, self.held_mib + memory_mib - self.limit_mib)

    def hold(self, sandbox_id: str, memory_mib: int) -> bool:
        """Holds memory for a sandbox; returns whether it fits. One that holds some already is an error."""
        if sandbox_id in self._held:
            raise ValueError(f"sandbox_id: {sandbox_id!r}: holds memory already")
        if self.shortage_mib(memory_mib):
            return False
        self._held[sandbox_id] = memory_mib
        self.held_mib += memory_mib
        return True

    def give_back(self, sandbox_id: str) -> None:
        """Takes back what a sandbox held, if anything."""
        self.held_mib -= self._held.pop(sandbox_id, 0)
