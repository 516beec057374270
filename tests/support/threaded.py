"""What is sync behind the methods of what is async, so that one suite tests both."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from functools import partial
from typing import Any, Self

import anyio
import anyio.to_thread

_NOT_ASYNC = {"job", "trajectory", "group"}


class Threaded:
    """A sync client, job, trajectory, group or handle, with the async one's methods: each call runs in a thread."""

    def __init__(self, blocking: Any) -> None:
        self._blocking = blocking

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._blocking, name)
        if not inspect.isroutine(found):
            return found
        if name in _NOT_ASYNC:
            return lambda *args, **kwargs: Threaded(found(*args, **kwargs))
        return partial(self._call, found)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._call(self._blocking.outcome).__await__()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._each(iter(self._blocking))

    def output(self) -> AsyncIterator[Any]:
        """As of a handle."""
        return self._each(self._blocking.output())

    def start(self, rollout: Callable[[Any], Awaitable[Any]]) -> None:
        """As of a group: each rollout has a loop of its own in its thread."""
        self._blocking.start(lambda trajectory: anyio.run(rollout, Threaded(trajectory)))

    async def __aenter__(self) -> Self:
        await self._call(self._blocking.__enter__)
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._call(self._blocking.__exit__, *raised)

    async def _each(self, values: Iterator[Any]) -> AsyncIterator[Any]:
        end = object()
        while (value := await self._call(next, values, end)) is not end:
            yield value

    async def _call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        result = await anyio.to_thread.run_sync(partial(method, *args, **kwargs))
        return Threaded(result) if type(result).__name__.startswith("Sync") else result
