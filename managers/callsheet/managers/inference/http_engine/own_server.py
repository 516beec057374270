"""A server that belongs to its driver."""

from __future__ import annotations

from typing import Protocol


class OwnServer(Protocol):
    """A server that this manager runs itself. All of it but `stop` answers at once."""

    @property
    def starts(self) -> int:
        """How often it was started."""

    @property
    def problem(self) -> str:
        """Returns why the server does not serve, as a sentence; empty if it does as far as is known."""

    @property
    def failure(self) -> str:
        """Returns why the server will never serve again; empty if it may."""

    def note_serving(self, start: int) -> None:
        """Takes note that a start of it was found to serve."""

    def note_silent(self, start: int) -> None:
        """Takes note that a start of it does not serve though it should."""

    async def stop(self) -> None:
        """Ends it; may be called more than once."""
