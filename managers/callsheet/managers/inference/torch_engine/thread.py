"""The compute thread: one thread that alone touches the model, so the event loop never waits for it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import structlog
import torch
from callsheet.managers.inference.driver import EngineFailedError, EngineLoad
from callsheet.managers.inference.torch_engine.batcher import Batcher, Finished

log = structlog.get_logger(__name__)
T = TypeVar("T")


def in_daemon_thread(name: str, function: Callable[[], T]) -> Future[T]:
    """Runs a function in a thread of its own, which the process's end does not wait for."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as error:  # Belongs to whoever waits.
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class ComputeThread:
    """Runs a batcher's steps while there is work, and commands between them.

    Attributes:
        load: The batcher's load after its newest step.
        failure: Why the thread died; None while it lives or was closed.
    """

    def __init__(
        self,
        batcher: Batcher,
        *,
        threads: int,
        cores: Sequence[int],
        on_finished: Callable[[list[Finished]], None],
        on_failure: Callable[[], None],
    ) -> None:
        """Starts the thread.

        Args:
            batcher: Used by the new thread alone from now on.
            threads: Threads of torch's kernels.
            cores: Cores to pin the thread and its kernels to; empty leaves the process's cores.
            on_finished: Called in the compute thread with what ended in a step.
            on_failure: Called in the compute thread when it dies.
        """
        self.load: EngineLoad = batcher.load()
        self.failure: str | None = None
        self._batcher = batcher
        self._threads, self._cores = threads, tuple(cores)
        self._on_finished, self._on_failure = on_finished, on_failure
        self._wake = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._calls: set[Future[object]] = set()
        self._drain_waiters: list[Future[object]] = []
        self._closing = False
        # A daemon, so that a step that hangs cannot keep the process from its end.
        self._thread = threading.Thread(target=self._run, name="torch-engine", daemon=True)
        self._thread.start()

    @property
    def dead_reason(self) -> str | None:
        """Why it takes no more commands; None while it does."""
        return self.failure or ("the engine is closed" if self._closing else None)

    def post(self, command: Callable[[], None]) -> None:
        """Has a command run between two steps. It must not raise.

        Raises:
            EngineFailedError: The thread is dead or closing.
        """
        with self._wake:
            self._check_alive()
            self._commands.append(command)
            self._wake.notify()

    def call(self, function: Callable[[], object]) -> Future[object]:
        """Has a function run between two steps; the future carries its result or exception.

        Raises:
            EngineFailedError: The thread is dead or closing.
        """
        return self._ask(lambda future: self._answer(future, function))

    def drained(self) -> Future[object]:
        """Returns a future that is done once no sequence is in the batch. Stop admission first.

        Raises:
            EngineFailedError: The thread is dead or closing.
        """
        return self._ask(self._drain_waiters.append)

    def close(self, timeout_s: float) -> None:
        """Stops the thread and waits for it; blocks up to `timeout_s`. What is still running stays unanswered."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("compute thread did not stop", timeout_s=timeout_s)

    def _ask(self, command: Callable[[Future[object]], None]) -> Future[object]:
        """Has a command run between two steps, with the future that it is to see answered; returns that."""
        future: Future[object] = Future()
        with self._wake:
            self._check_alive()
            self._calls.add(future)
            self._commands.append(lambda: command(future))
            self._wake.notify()
        return future

    def _check_alive(self) -> None:
        if (reason := self.dead_reason) is not None:
            raise EngineFailedError(reason)

    def _run(self) -> None:
        try:
            self._set_up()
            with torch.inference_mode():
                while not self._closing:
                    self._turn()
        except Exception as error:  # Whatever it is, the engine is dead and its users must learn so.
            log.exception("engine failed")
            self._die(f"{type(error).__name__}: {error}")
        else:
            self._die(None)

    def _set_up(self) -> None:
        if self._cores:
            # Pins this thread; the kernels' threads are started by it later and inherit its cores.
            os.sched_setaffinity(0, self._cores)
        torch.set_num_threads(self._threads)
        self._batcher.prepare()

    def _turn(self) -> None:
        for command in self._take():
            command()
        finished = self._batcher.step() if self._batcher.can_step() else []
        # Before anyone learns of what ended: the load must not count it any more.
        self.load = self._batcher.load()
        if finished:
            self._on_finished(finished)
        if self._drain_waiters and self._batcher.running == 0:
            for future in self._drain_waiters:
                self._answer(future, lambda: None)
            self._drain_waiters.clear()

    def _take(self) -> list[Callable[[], None]]:
        """Returns the commands posted since; waits for one if there is nothing else to do."""
        idle = not self._batcher.can_step()
        with self._wake:
            if idle:
                self._wake.wait_for(lambda: bool(self._commands) or self._closing)
            commands = list(self._commands)
            self._commands.clear()
        return commands

    def _answer(self, future: Future[object], function: Callable[[], object]) -> None:
        self._calls.discard(future)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function())
        except Exception as error:  # Belongs to the caller of `call`.
            future.set_exception(error)

    def _die(self, failure: str | None) -> None:
        with self._wake:
            self.failure = failure
            self._closing = True
            calls, self._calls = self._calls, set()
            self._commands.clear()
        for future in calls:
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineFailedError(failure or "the engine is closed"))
        self._on_failure()
