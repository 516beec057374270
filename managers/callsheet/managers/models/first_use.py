"""Something large that is loaded when it is first needed, so that a manager that waits for work stays small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
import anyio.to_thread
import structlog

T = TypeVar("T")
log = structlog.get_logger(__name__)


class LoadError(Exception):
    """It could not be loaded, and will not be tried again; the message says why."""


class FirstUse(Generic[T]):
    """A value, or how to load it. Must be used from one event loop.

    Attributes:
        value: What was loaded; None before.
    """

    def __init__(self, load: Callable[[], T]) -> None:
        """Takes what loads the value; it is called once, in a thread."""
        self.value: T | None = None
        self._load = load
        self._lock = anyio.Lock()
        self._settled = anyio.Event()
        self._failure = ""

    @classmethod
    def of(cls, value: T) -> FirstUse[T]:
        """A value that is there already."""
        first_use = cls(lambda: value)
        first_use.value = value
        return first_use

    async def get(self) -> T:
        """Returns the value, and loads it before if it is not there.

        Raises:
            LoadError: It cannot be loaded.
        """
        if self.value is not None:
            return self.value
        async with self._lock:
            if self.value is None and not self._failure:
                await self._settle()
        return self._result()

    async def wait(self) -> T:
        """Returns the value once a `get` has loaded it, however long that takes.

        Raises:
            LoadError: A `get` could not load it.
        """
        if self.value is None and not self._failure:
            await self._settled.wait()
        return self._result()

    async def _settle(self) -> None:
        try:
            self.value = await anyio.to_thread.run_sync(self._load)
        except Exception as error:  # Whatever it is, all who wait for the value must learn of it.
            log.exception("loading failed")
            self._failure = f"{type(error).__name__}: {error}"
        self._settled.set()

    def _result(self) -> T:
        if self.value is None:
            raise LoadError(self._failure)
        return self.value
