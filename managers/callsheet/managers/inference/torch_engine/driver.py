"""The torch engine behind the `EngineDriver` protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar, cast

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.inference.driver import (
    EngineBusyError,
    EngineCapabilities,
    EngineDriver,
    EngineFailedError,
    EngineHealth,
    EngineLoad,
    GenerateRequest,
    Generation,
    RequestRefusedError,
    UpdateMode,
    WeightUpdate,
    WeightUpdateError,
)
from callsheet.managers.inference.torch_engine.abilities import torch_abilities
from callsheet.managers.inference.torch_engine.batch_runner import BatchRunner
from callsheet.managers.inference.torch_engine.batcher import Batcher, BatchLimits, Finished, check_request
from callsheet.managers.inference.torch_engine.sequence import TokenBytes
from callsheet.managers.inference.torch_engine.thread import ComputeThread, in_daemon_thread
from callsheet.managers.inference.torch_engine.weight_sources import FirstState, WeightSources
from torch import Tensor

log = structlog.get_logger(__name__)

CALL_TIMEOUT_S = 60.0
"""The longest wait for the compute thread to come to a step's end."""
CLOSE_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 600.0
"""The longest that weights may take to be read from a disk; groups have the deadline of their update."""

T = TypeVar("T")


class TorchEngineDriver(EngineDriver):
    """Drives a `Batcher` in a thread of its own. Must be used from one event loop."""

    def __init__(
        self,
        runner: BatchRunner,
        limits: BatchLimits | None = None,
        *,
        policy_version: int = 0,
        token_bytes: TokenBytes | None = None,
        end_tokens: frozenset[int] = frozenset(),
        threads: int = 1,
        cores: Sequence[int] = (),
        max_requests: int = 4096,
        first_weights: FirstState | None = None,
    ) -> None:
        """Starts the engine.

        Args:
            runner: The model and its KV cache; belongs to the engine from now on.
            limits: Bounds of the batch.
            policy_version: Version of the weights the model has.
            token_bytes: What a token adds to the text; None where that is not known, so that stop texts are refused.
            end_tokens: The model's own tokens that end generation.
            threads: Threads of torch's kernels.
            cores: Cores to pin them to; empty leaves the process's cores.
            max_requests: The most live requests, running and waiting; more are refused as busy.
            first_weights: Reads the weights that the model has now; None where they cannot be had again.
        """
        self._runner = runner
        self._batcher = Batcher(
            runner, limits or BatchLimits(), policy_version, token_bytes=token_bytes, end_tokens=end_tokens
        )
        self._stop_texts = token_bytes is not None
        self._abilities = torch_abilities(
            prefix_cache=(limits or BatchLimits()).prefix_cache_tokens > 0 and runner.keeps_prefixes,
            stop_texts=self._stop_texts,
            batch_invariant=runner.batch_invariant,
            half_precision=runner.half_precision,
        )
        self._report: Callable[[], None] = _tell_nobody
        self._sources = WeightSources(runner, first_weights)
        self._max_requests = max_requests
        self._live: dict[str, asyncio.Future[Generation]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._control = anyio.Lock()
        self._failed = anyio.Event()
        self._thread = ComputeThread(
            self._batcher,
            threads=threads,
            cores=cores,
            on_finished=lambda finished: self._in_loop(partial(_deliver, finished)),
            on_failure=lambda: self._in_loop(self._fail_all),
        )

    @property
    def capabilities(self) -> EngineCapabilities:
        """See `EngineDriver`."""
        return self._abilities

    @property
    def policy_version(self) -> int:
        """See `EngineDriver`."""
        return self._batcher.version

    @property
    def load(self) -> EngineLoad:
        """See `EngineDriver`."""
        return self._thread.load

    @property
    def health(self) -> EngineHealth:
        """See `EngineDriver`."""
        failure = self._thread.dead_reason
        return EngineHealth(alive=failure is None, reason=failure or "")

    def on_change(self, report: Callable[[], None]) -> None:
        """See `EngineDriver`."""
        self._report = report

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `EngineDriver`."""
        check_request(request, self._runner.bounds, stop_texts=self._stop_texts)
        if request.request_id in self._live:
            raise RequestRefusedError("duplicate_request", f"request_id {request.request_id!r} is live already")
        if len(self._live) >= self._max_requests:
            raise EngineBusyError(f"{len(self._live)} requests are live; the bound is {self._max_requests}")
        self._loop = asyncio.get_running_loop()
        answer: asyncio.Future[Generation] = self._loop.create_future()
        self._thread.post(partial(self._batcher.submit, request, answer))
        self._live[request.request_id] = answer
        try:
            return await answer
        finally:
            del self._live[request.request_id]
            if answer.cancelled():
                self._post_if_alive(partial(self._batcher.abort, request.request_id))

    async def abort(self, request_id: str) -> None:
        """See `EngineDriver`."""
        self._post_if_alive(partial(self._batcher.abort, request_id))

    async def update_weights(self, update: WeightUpdate) -> str:
        """See `EngineDriver`."""
        if update.version < 0:
            raise WeightUpdateError(f"version is {update.version}; it must be at least 0", intact=True)
        # Not a thread of a pool: one that waits for a group that never forms is left behind until its deadline.
        reading = in_daemon_thread("weights", partial(self._sources.read, update.source, update.timeout_s))
        state = await self._in_time(reading, update)
        async with self._control:
            try:
                if update.mode is UpdateMode.DRAIN:
                    await self._drain(update.timeout_s)
                await self._call(partial(self._swap, state, update))
            except TimeoutError as error:
                raise WeightUpdateError(f"the engine did not drain within {update.timeout_s} s", intact=True) from error
            finally:
                self._post_if_alive(partial(self._set_admits, True))
        log.info("weights updated", version=update.version, mode=update.mode.value)
        self._report()
        return f"all of its {len(state)} tensors that came were compared"

    async def read_policy_version(self) -> int:
        """See `EngineDriver`."""
        return await self._call(lambda: self._batcher.version)

    async def wait_failed(self) -> str:
        """See `EngineDriver`."""
        self._loop = asyncio.get_running_loop()
        if self._thread.failure is None:
            await self._failed.wait()
        return self._thread.failure or ""

    async def close(self) -> None:
        """See `EngineDriver`."""
        if self._thread.dead_reason is None:
            await self._call(self._batcher.abort_all)
        await anyio.to_thread.run_sync(self._thread.close, CLOSE_TIMEOUT_S)
        await anyio.to_thread.run_sync(self._sources.close)

    async def _in_time(self, reading: Future[Mapping[str, Tensor]], update: WeightUpdate) -> Mapping[str, Tensor]:
        try:
            with anyio.fail_after(update.timeout_s + READ_TIMEOUT_S):
                return await asyncio.wrap_future(reading)
        except TimeoutError as error:
            message = f"the weights did not come within {update.timeout_s + READ_TIMEOUT_S:g} s"
            raise WeightUpdateError(message, intact=True) from error

    def _swap(self, state: Mapping[str, Tensor], update: WeightUpdate) -> None:
        """Runs in the compute thread."""
        if update.mode is UpdateMode.ABORT:
            self._batcher.abort_running()
        try:
            self._batcher.replace_weights(state, update.version)
        except Exception as error:  # A device may run out of memory between two tensors.
            raise WeightUpdateError(f"the weights were replaced in part: {error}", intact=False) from error
        if differing := self._runner.differing(state):
            named = f"{len(differing)} of {len(state)} tensors are not as they came ({', '.join(differing[:5])})"
            raise WeightUpdateError(f"the engine has other weights than were published: {named}")

    async def _drain(self, timeout_s: float) -> None:
        """Returns once nothing runs, with admission stopped."""
        await self._call(partial(self._set_admits, False))
        with anyio.fail_after(timeout_s):
            await asyncio.wrap_future(self._thread.drained())

    def _set_admits(self, admits: bool) -> None:
        self._batcher.admits = admits

    async def _call(self, function: Callable[[], T]) -> T:
        """Runs a function in the compute thread between two steps."""
        with anyio.fail_after(CALL_TIMEOUT_S):
            return cast(T, await asyncio.wrap_future(self._thread.call(function)))

    def _post_if_alive(self, command: Callable[[], None]) -> None:
        if self._thread.dead_reason is None:
            self._thread.post(command)

    def _in_loop(self, callback: Callable[[], None]) -> None:
        """Runs a callback in the event loop; called from the compute thread."""
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            log.info("event loop is closed, results dropped", live=len(self._live))

    def _fail_all(self) -> None:
        if self._thread.failure is not None:
            self._failed.set()
        for answer in self._live.values():
            if not answer.done():
                answer.set_exception(EngineFailedError(self._thread.dead_reason or "the engine failed"))


def _tell_nobody() -> None:
    """Stands for whoever wants to know, until there is one."""


def _deliver(finished: list[Finished]) -> None:
    for one in finished:
        answer = cast("asyncio.Future[Generation]", one.tag)
        if answer.done():
            continue
        if isinstance(one.result, Generation):
            answer.set_result(one.result)
        else:
            answer.set_exception(one.result)
