"""When processes that were changed one by one have to be looked at again."""

from __future__ import annotations

# A fork that had begun before its parent was changed is listed by then, however busy the cores are.
_FORK_S = 0.5


class ForkWindow:
    """The time after a change in which the kernel may still come to list a process that it missed."""

    def __init__(self) -> None:
        """Nothing has been changed yet."""
        self._changed_at: float | None = None

    @property
    def open(self) -> bool:
        """Whether a look is due."""
        return self._changed_at is not None

    def changed(self, now: float) -> None:
        """Notes the end of a change, complete or not; monotonic seconds."""
        self._changed_at = now

    def looked(self, begun_at: float) -> None:
        """Notes that all processes were changed again; closes the window unless that began too early."""
        if self._changed_at is not None and begun_at >= self._changed_at + _FORK_S:
            self._changed_at = None
