"""Members of ready classes, in order, each handed out once."""

from __future__ import annotations

from callsheet.scheduler.core.entities import Action
from callsheet.scheduler.core.ready import ReadyClass


class Members:
    """Members of one class. Only those that are asked for are looked at, as a class can have a million.

    Attributes:
        left: How many have not been handed out.
    """

    def __init__(self, ready: ReadyClass) -> None:
        """Starts with all of them; the class must stay as it is meanwhile."""
        self._rest = iter(ready)
        self._head: Action | None = None
        self.left = ready.count

    def head(self) -> Action:
        """The next one; there must be one."""
        if self._head is None:
            self._head = next(self._rest)
        return self._head

    def pop(self) -> Action:
        """Hands out the next one; there must be one."""
        member = self.head()
        self._head = None
        self.left -= 1
        return member
