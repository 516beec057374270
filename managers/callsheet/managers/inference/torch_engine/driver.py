"""The torch engine behind the `EngineDriver` protocol."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread
import structlog
import torch
from callsheet.managers.inference.driver import (
    EngineBusyError,
    EngineCapabilities,
    EngineDriver,
    EngineError,
    EngineFailedError,
    EngineHealth,
    EngineLoad,
    FinishReason,
    GenerateRequest,
    Generation,
    RequestRefusedError,
    UpdateMode,
    WeightUpdate,
    WeightUpdateError,
)
from callsheet.managers.inference.torch_engine.engine import TorchEngine
from callsheet.managers.inference.torch_engine.sequence import Sequence as Live
from callsheet.managers.inference.torch_engine.weight_sources import WeightSources
from torch import Tensor
from typing_extensions import override

log = structlog.get_logger(__name__)

CLOSE_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 600.0
"""The longest that weights may take to be read from a disk; groups have the deadline of their update."""

T = TypeVar("T")


class TorchEngineDriver(EngineDriver):
    """Computes requests turn by turn in one thread, which alone touches the model. Must be used from one event loop.

    The thread takes turns in the order in which they were asked for, and a request asks for its next one when it has
    had the last: so all get on alike. A request gets room for its longest possible output before its first turn, first
    come, and never has to be thrown out again.
    """

    def __init__(
        self,
        engine: TorchEngine,
        sources: WeightSources,
        *,
        kv_cache_tokens: int,
        max_running: int = 64,
        threads: int = 1,
        cores: Sequence[int] = (),
        max_requests: int = 4096,
    ) -> None:
        """Starts the engine.

        Args:
            engine: Belongs to the thread from now on.
            sources: Reads its new weights.
            kv_cache_tokens: The most tokens of all requests that have begun, their longest outputs included.
            max_running: The most requests that have begun.
            threads: Threads of torch's kernels.
            cores: Cores to pin them to; empty leaves the process's cores.
            max_requests: The most live requests, running and waiting; more are refused as busy.

        Raises:
            ValueError: A request as long as the model's context would never have room.
        """
        context = engine.bounds.context_length
        if kv_cache_tokens < context:
            raise ValueError(f"kv_cache_tokens is {kv_cache_tokens}; it must be at least context_length ({context})")
        self._engine = engine
        self._sources = sources
        self._kv_cache_tokens, self._max_running, self._max_requests = kv_cache_tokens, max_running, max_requests
        self._report: Callable[[], None] = lambda: None
        self._live: dict[str, Live] = {}
        self._waiting: list[Live] = []
        self._running: list[Live] = []
        self._admits = True
        self._drained = anyio.Event()
        self._control = anyio.Lock()
        self._closed = False
        self._failed: Future[str] = Future()
        self._thread = ThreadPoolExecutor(1, "torch-engine")
        self._thread.submit(self._guarded, partial(_set_up, threads, tuple(cores)))

    @property
    @override
    def capabilities(self) -> EngineCapabilities:
        return self._engine.abilities

    @property
    @override
    def policy_version(self) -> int:
        return self._engine.version

    @property
    @override
    def load(self) -> EngineLoad:
        return EngineLoad(len(self._running), len(self._waiting), self._kv_tokens_used, self._kv_cache_tokens)

    @property
    @override
    def health(self) -> EngineHealth:
        reason = self._dead_reason
        return EngineHealth(alive=reason is None, reason=reason or "")

    @override
    def on_change(self, report: Callable[[], None]) -> None:
        self._report = report

    @override
    async def generate(self, request: GenerateRequest) -> Generation:
        self._check_alive()
        live = self._engine.sequence(request)
        if request.request_id in self._live:
            raise RequestRefusedError("duplicate_request", f"request_id {request.request_id!r} is live already")
        if len(self._live) >= self._max_requests:
            raise EngineBusyError(f"{len(self._live)} requests are live; the bound is {self._max_requests}")
        self._live[request.request_id] = live
        self._waiting.append(live)
        try:
            self._admit()
            await live.settled.wait()
            while live.ended is None:
                await self._in_thread(partial(self._engine.turn, live))
        finally:
            live.end(FinishReason.ABORT)
            self._leave(live)
        return live.generation()

    @override
    async def abort(self, request_id: str) -> None:
        if (live := self._live.get(request_id)) is not None:
            live.end(FinishReason.ABORT)
            live.settled.set()

    @override
    async def update_weights(self, update: WeightUpdate) -> str:
        if update.version < 0:
            raise WeightUpdateError(f"version is {update.version}; it must be at least 0", intact=True)
        self._check_alive()
        # Not a thread of a pool: one that waits for a group that never forms is left behind until its deadline.
        reading = _in_daemon_thread(partial(self._sources.read, update.source, update.timeout_s))
        state = await self._in_time(reading, update)
        async with self._control:
            try:
                if update.mode is UpdateMode.DRAIN:
                    await self._drain(update.timeout_s)
                if update.mode is UpdateMode.ABORT:
                    for live in self._running:
                        live.end(FinishReason.ABORT)
                with anyio.fail_after(update.timeout_s):
                    await self._in_thread(partial(self._swap, state, update.version))
            except TimeoutError as error:
                raise WeightUpdateError(f"turns before the update took over {update.timeout_s} s") from error
            finally:
                self._admits = True
                self._admit()
        log.info("weights updated", version=update.version, mode=update.mode.value)
        self._report()
        return f"all of its {len(state)} tensors that came were compared"

    @override
    async def read_policy_version(self) -> int:
        self._check_alive()
        return self._engine.version

    @override
    async def wait_failed(self) -> str:
        return await asyncio.shield(asyncio.wrap_future(self._failed))

    @override
    async def close(self) -> None:
        self._closed = True
        for request_id in self._live:
            await self.abort(request_id)
        with anyio.move_on_after(CLOSE_TIMEOUT_S) as waiting:
            await anyio.to_thread.run_sync(self._thread.shutdown, abandon_on_cancel=True)
        if waiting.cancelled_caught:
            log.warning("compute thread did not stop", timeout_s=CLOSE_TIMEOUT_S)
        await anyio.to_thread.run_sync(self._sources.close)

    @property
    def _kv_tokens_used(self) -> int:
        return sum(live.most_tokens for live in self._running)

    @property
    def _dead_reason(self) -> str | None:
        """Returns why the engine takes nothing more; None while it does."""
        if self._failed.done():
            return self._failed.result()
        return "the engine is closed" if self._closed else None

    def _check_alive(self) -> None:
        if (reason := self._dead_reason) is not None:
            raise EngineFailedError(reason)

    def _admit(self) -> None:
        """Lets requests begin, strictly first come, so that none starves."""
        while self._admits and self._waiting and len(self._running) < self._max_running:
            first = self._waiting[0]
            if self._kv_tokens_used + first.most_tokens > self._kv_cache_tokens:
                return
            self._running.append(self._waiting.pop(0))
            first.admitted_at = time.monotonic()
            first.settled.set()

    def _leave(self, live: Live) -> None:
        del self._live[live.request.request_id]
        (self._running if live in self._running else self._waiting).remove(live)
        if not self._running:
            self._drained.set()
        self._admit()

    async def _drain(self, timeout_s: float) -> None:
        """Returns once nothing runs, with admission stopped."""
        self._admits = False
        self._drained = anyio.Event()
        with anyio.move_on_after(timeout_s) as waiting:
            if self._running:
                await self._drained.wait()
        if waiting.cancelled_caught:
            raise WeightUpdateError(f"the engine did not drain within {timeout_s} s", intact=True)

    async def _in_time(self, reading: Future[Mapping[str, Tensor]], update: WeightUpdate) -> Mapping[str, Tensor]:
        try:
            with anyio.fail_after(update.timeout_s + READ_TIMEOUT_S):
                return await asyncio.wrap_future(reading)
        except TimeoutError as error:
            message = f"the weights did not come within {update.timeout_s + READ_TIMEOUT_S:g} s"
            raise WeightUpdateError(message, intact=True) from error

    def _swap(self, state: Mapping[str, Tensor], version: int) -> None:
        """Runs in the compute thread."""
        try:
            differing = self._engine.replace_weights(state, version)
        except Exception as error:  # A device may run out of memory between two tensors.
            raise WeightUpdateError(f"the weights were replaced in part: {error}", intact=False) from error
        if differing:
            named = f"{len(differing)} of {len(state)} tensors are not as they came ({', '.join(differing[:5])})"
            raise WeightUpdateError(f"the engine has other weights than were published: {named}")

    async def _in_thread(self, function: Callable[[], T]) -> T:
        """Runs a function in the compute thread, after all that were asked for before."""
        self._check_alive()
        try:
            return await asyncio.wrap_future(self._thread.submit(self._guarded, function))
        finally:
            if self._failed.done():
                for live in self._waiting:
                    live.settled.set()

    def _guarded(self, function: Callable[[], T]) -> T:
        """Runs in the compute thread. Whatever a function raises but its own answer, the engine is dead then."""
        if self._failed.done():
            raise EngineFailedError(self._failed.result())
        try:
            return function()
        except EngineError:
            raise
        except Exception as error:
            log.exception("engine failed")
            reason = f"{type(error).__name__}: {error}"
            self._failed.set_result(reason)
            raise EngineFailedError(reason) from error


def _set_up(threads: int, cores: Sequence[int]) -> None:
    if cores:
        # Pins this thread; the kernels' threads are started by it later and inherit its cores.
        os.sched_setaffinity(0, cores)
    torch.set_num_threads(threads)


def _in_daemon_thread(function: Callable[[], T]) -> Future[T]:
    """Runs a function in a thread of its own, which the process's end does not wait for."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as error:  # Belongs to whoever waits.
            future.set_exception(error)

    threading.Thread(target=run, name="weights", daemon=True).start()
    return future
