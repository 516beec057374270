"""Event loops in threads of their own, for callers that have none."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_STOP_TIMEOUT_S = 10.0


class LoopThread:
    """Runs coroutines for plain threads. Its thread does not keep the interpreter alive.

    Its loop runs until the interpreter exits. gRPC tells the end of a call through any loop of the process that uses
    gRPC. If the call's own loop is closed by then, that other loop fails with "Event loop is closed".

    anyio's blocking portal would do the same. But it closes its loop as it ends, and a loop that is blocked would hold
    up the exit of the interpreter for ever: the portal's thread is asked and waited for without a deadline.
    """

    def __init__(self, name: str) -> None:
        """Starts the thread; see `loop_thread` for one that is shared."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine and returns its result; an interrupt of the caller cancels it.

        Raises:
            RuntimeError: Called from the loop's own thread, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                f'a blocking call was made in the thread "{self._thread.name}", whose event loop has to serve it: '
                "await the call of the async client there"
            )
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine beside its caller and returns its future."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stop(self) -> None:
        """Cancels the loop's tasks and ends the thread; for the exit of the interpreter."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())


class _Threads:
    """The threads of this process by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[str, LoopThread] = {}
        atexit.register(self._stop)
        # Not every system forks. A forked child has neither the threads nor whoever holds the lock.
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def get(self, name: str) -> LoopThread:
        with self._lock:
            if name not in self._by_name:
                self._by_name[name] = LoopThread(name)
            return self._by_name[name]

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._by_name = {}

    def _stop(self) -> None:
        threads = [*self._by_name.values()]
        for thread in threads:
            thread.stop()
        # A loop is closed once none runs that could be told of its calls.
        for thread in threads:
            if not thread.loop.is_running():
                thread.loop.close()


_threads = _Threads()


def loop_thread(name: str) -> LoopThread:
    """Returns the thread of that name, started once per process."""
    return _threads.get(name)
