"""Waits for a server to answer, before a manager registers what it serves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import anyio
import structlog
from callsheet.managers.inference.driver import (
    EngineError,
    EngineFailedError,
)
from callsheet.managers.inference.http_engine.client import EngineHttp, EngineUnreachableError

T = TypeVar("T")
log = structlog.get_logger(__name__)
ATTACH_TIMEOUT_S = 900.0
"""A server of a large model takes minutes to start."""
ATTACH_AGAIN_S = 1.0


def attach(
    connect: Callable[[], EngineHttp], read: Callable[[EngineHttp], Awaitable[T]], timeout_s: float = ATTACH_TIMEOUT_S
) -> T:
    """Returns what `read` finds out about a server, once it answers; blocks until then, also inside an event loop.

    Raises:
        EngineFailedError: It did not answer in time.
        EngineError: It answered, and is no server that can be used.
    """
    given_up = _GivenUp()
    # A thread of its own, as the caller may be in an event loop.
    with ThreadPoolExecutor(max_workers=1) as pool:
        try:
            return pool.submit(anyio.run, partial(_attach, connect, read, timeout_s, given_up)).result()
        finally:
            # Before the thread is waited for: a signal may have interrupted this one.
            given_up.set()


class _GivenUp:
    """Lets one thread cancel what another one waits for in an event loop of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = False
        self._cancel: Callable[[], object] | None = None

    def set(self) -> None:
        with self._lock:
            self._set = True
            if self._cancel is not None:
                self._cancel()

    @contextmanager
    def cancelling(self, scope: anyio.CancelScope) -> Iterator[None]:
        """Cancels the scope, in the running loop, once it is set; for the time of the block."""
        with self._lock:
            if self._set:
                scope.cancel()
            self._cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, scope.cancel)
        try:
            yield
        finally:
            with self._lock:
                self._cancel = None


async def _attach(
    connect: Callable[[], EngineHttp],
    read: Callable[[EngineHttp], Awaitable[T]],
    timeout_s: float,
    given_up: _GivenUp,
) -> T:
    http = connect()
    try:
        with anyio.move_on_after(timeout_s) as scope, given_up.cancelling(scope):
            return await _read_when_up(http, read)
        raise EngineFailedError(f"{http.place}: no engine was ready there within {timeout_s:g} s")
    finally:
        await http.close()


async def _read_when_up(http: EngineHttp, read: Callable[[EngineHttp], Awaitable[T]]) -> T:
    told = False
    while True:
        try:
            return await read(http)
        except (EngineUnreachableError, EngineStartingError) as error:
            if not told:
                log.info("waiting for an engine", url=http.place, reason=str(error))
                told = True
        await anyio.sleep(ATTACH_AGAIN_S)


class EngineStartingError(EngineError):
    """The server answers, and its engine is not ready yet."""
