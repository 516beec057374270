"""Work that many want at the same time and that is done once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
from callsheet.managers.clock import waiting
from callsheet.managers.sandbox.stopping import unless_stopped
from callsheet.timing.waits import Cause


@dataclass(slots=True)
class _Running:
    """What is under way; `error` is for those who wait."""

    done: anyio.Event = field(default_factory=anyio.Event)
    error: Exception | None = None


class SharedWork:
    """Does one thing of a name at a time. Whoever comes meanwhile waits for it and looks again whether all is there.

    That wait is told as one for a set-up, unless it is within one that is told as another.
    """

    def __init__(self, shared: tuple[type[Exception], ...]) -> None:
        """Args: shared: Exceptions of the work that those get as well who wait. After any other, the next one works."""
        self._shared = shared
        self._running: dict[str, _Running] = {}

    async def do(self, name: str, work: Callable[[], Awaitable[None]], stop: anyio.Event) -> None:
        """Does it, or waits while somebody else does.

        Args:
            name: What is done.
            work: Does it, in the task of the first who comes: cancelling that task cancels it.
            stop: Ends the wait for somebody else.

        Raises:
            StoppedError: `stop` was set while it waited.
            Exception: What the work raised.
        """
        running = self._running.get(name)
        if running is not None:
            with waiting(Cause.SET_UP):
                await unless_stopped(stop, running.done.wait)
            if running.error is not None:
                raise running.error
            return
        running = self._running[name] = _Running()
        try:
            await work()
        except Exception as error:
            if isinstance(error, self._shared):
                running.error = error
            raise
        finally:
            del self._running[name]
            running.done.set()
