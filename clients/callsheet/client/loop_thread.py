"""An event loop in a thread of its own, for callers that have none."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_STOP_TIMEOUT_S = 10.0
_DRAIN_TIMEOUT_S = 2.0


class LoopThread:
    """Runs coroutines for plain threads. Its thread does not keep the interpreter alive: it is stopped at exit.

    anyio's blocking portal would do the same, but its thread is waited for at exit before anything can stop it.
    """

    def __init__(self, name: str) -> None:
        """Starts the thread and returns once its loop runs."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(loop,), name=name, daemon=True)
        self._loop = loop
        thread.start()
        self._finalizer = weakref.finalize(self, _stop, loop, thread)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine and returns its result; an interrupt of the caller cancels it.

        Raises:
            RuntimeError: Called from the loop's own thread, which would wait for itself.
        """
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine beside its caller and returns its future."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """Lets what still runs end within 2 s, cancels the rest, and ends the thread."""
        # A call that was cancelled ends once gRPC has said so. gRPC says it through any loop of the process that uses
        # it: where the call's own loop is closed by then, that other loop logs "Event loop is closed".
        if self._finalizer.alive:
            self.run(_drain())
        self._finalizer()


async def _drain() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=_DRAIN_TIMEOUT_S)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if thread.is_alive():
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_STOP_TIMEOUT_S)
