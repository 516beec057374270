"""The part that all drivers of engines behind HTTP share."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.inference.driver import (
    EngineCapabilities,
    EngineDriver,
    EngineError,
    EngineFailedError,
    EngineHealth,
    EngineLimits,
    EngineLoad,
    FinishReason,
    GenerateRequest,
    Generation,
    OthersLoad,
    UnsupportedError,
    UpdateMode,
    WeightUpdate,
    WeightUpdateError,
)
from callsheet.managers.inference.http_engine.client import EngineHttp, EngineUnreachableError, HttpAnswer
from callsheet.managers.inference.http_engine.live_requests import LiveRequest, LiveRequests
from callsheet.managers.inference.http_engine.log_probs import Derivation, ToldLogProbs, derivation
from callsheet.managers.inference.http_engine.looks import Look, OthersBooks, ServerState, after_look
from callsheet.managers.inference.http_engine.own_server import OwnServer
from callsheet.managers.inference.http_engine.replies import Reply, label_of, version_of
from callsheet.managers.inference.http_engine.requests import FoundServer, check_request, error_of
from callsheet.managers.inference.http_engine.weights_check import check_weights, differing_tensor
from callsheet.managers.inference.weights import DiskWeights, FirstWeights, GroupWeights

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 1.0
"""How often the server is looked at."""
ABORT_WAIT_S = 4.0
"""The longest wait for an aborted request to end; the manager's runtime waits five seconds."""
ABORT_AGAIN_S = 1.0
"""An abort that overtakes its request is lost on the server, so it is sent again."""
CLOSE_TIMEOUT_S = 5.0
MAX_REQUESTS = 4096
_WEIGHTS_LOST = "the engine may have lost its weights"
_TRAINER_AGAIN_S = 0.1


async def await_trainer(source: GroupWeights, timeout_s: float) -> None:
    """Returns once somebody listens at a group's address, which must be reachable from here too.

    Raises:
        WeightUpdateError: Nobody did in time.
    """
    with anyio.move_on_after(timeout_s):
        while True:
            try:
                stream = await anyio.connect_tcp(source.address, source.port)
            except OSError:
                await anyio.sleep(_TRAINER_AGAIN_S)
            else:
                await stream.aclose()
                return
    where = f"{source.address}:{source.port}"
    raise WeightUpdateError(
        f"group {source.group_name!r}: nobody listened at {where} within {timeout_s:g} s", intact=True
    )


class HttpEngineDriver(EngineDriver):
    """Drives one server: requests and their gate, updates and the watch. Must be used from one event loop.

    A request counts as begun once it was sent. Those that are not sent wait in the driver, never in a stopped server.

    Attributes:
        _seed_bits: How long a seed is that the server takes.
        _joint: See `over_top_k`.
        _told: Of which distribution the server tells log-probabilities; None if it tells none.

    Args:
        http: Calls to the server; belongs to the driver from now on.
        server: The server as it was found.
        start_version: The policy version of the weights that it starts with.
        max_requests: The most live requests; more are refused as busy.
    """

    _seed_bits: ClassVar[int] = 63
    _joint: ClassVar[bool] = False
    _told: ToldLogProbs | None = None

    def __init__(
        self,
        http: EngineHttp,
        server: FoundServer,
        *,
        start_version: int = 0,
        max_requests: int = MAX_REQUESTS,
    ) -> None:
        self._http = http
        self._bounds = server.bounds
        self._first_model = server.model
        # Where the weights lie that the server has now; empty where they came otherwise, or others updated it before.
        self._model_now = "" if str(server.label).isdigit() else server.model
        self._abilities = server.abilities
        self._start_version = start_version
        self._state = ServerState(identity=server.identity, version=server.label)
        self._live = LiveRequests(max_requests)
        self._others = OthersBooks()
        self._groups: set[str] = set()  # Transfer groups that the server is in, by name.
        self._control = anyio.Lock()
        self._steps = 0
        self._closed = False
        self._look_wanted = anyio.Event()
        self._report: Callable[[], None] = _tell_nobody
        self._own_server: OwnServer | None = None
        self._failed = anyio.Event()

    def own_server(self, server: OwnServer) -> None:
        """Takes over a server that is to end with this driver. Looks tell it which of its starts serves."""
        self._own_server = server

    @property
    def capabilities(self) -> EngineCapabilities:
        """See `EngineDriver`."""
        return self._abilities

    @property
    def policy_version(self) -> int:
        """See `EngineDriver`."""
        return version_of(self._state.version, self._start_version)

    @property
    def load(self) -> EngineLoad:
        """Own requests alone: what servers tell of their load is old, and stands still while they are paused."""
        total = self._bounds.limits.kv_tokens or 0
        return EngineLoad(
            running=self._live.sent,
            waiting=self._live.held,
            kv_tokens_used=self._live.tokens,
            kv_tokens_total=total,
        )

    @property
    def health(self) -> EngineHealth:
        """See `EngineDriver`."""
        if self._closed:
            return EngineHealth(alive=False, reason="the driver is closed")
        return EngineHealth(self._state.alive, self._state.paused, self._state.problem)

    @property
    def limits(self) -> EngineLimits:
        """See `EngineDriver`."""
        return self._bounds.limits

    @property
    def others(self) -> OthersLoad:
        """See `EngineDriver`."""
        return self._others.found

    @property
    def incarnation(self) -> str:
        """See `EngineDriver`."""
        start = "" if self._own_server is None else f".{self._own_server.starts}"
        return f"{self._state.identity}.{self._state.losses}{start}"

    def on_change(self, report: Callable[[], None]) -> None:
        """See `EngineDriver`."""
        self._report = report

    async def serve(self) -> None:
        """See `EngineDriver`."""
        while True:
            self._look_wanted = anyio.Event()
            await self.look()
            with anyio.move_on_after(LOOK_EVERY_S):
                await self._look_wanted.wait()

    async def look(self) -> None:
        """Looks at the server once, and draws the conclusions."""
        steps, server = self._steps, self._own_server
        start = 0 if server is None else server.starts
        look = await self._safe_look()
        # What was seen while the driver itself changed something tells nothing.
        undisturbed = steps == self._steps and not self._control.statistics().locked
        if undisturbed:
            self._conclude(look)
            told = None if look.paused else look.load
            if self._others.told(told, self._live.sent, self._live.tokens, anyio.current_time()):
                self._report()
        if server is not None:
            if look.answered and not look.problem:
                server.note_serving(start)
            elif undisturbed:
                server.note_silent(start)
            if server.failure:
                self._failed.set()

    async def wait_failed(self) -> str:
        """See `EngineDriver`. A server of somebody else's may always come back."""
        await self._failed.wait()
        return "" if self._own_server is None else self._own_server.failure

    async def read_policy_version(self) -> int:
        """See `EngineDriver`."""
        look = await self._look()
        self._conclude(look)
        return self.policy_version

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `EngineDriver`."""
        self._check_open()
        check_request(request, self._bounds)
        live = self._live.begin(request)
        try:
            with live.scope:
                await self._live.released()
                live.sent, live.begun_version = True, self.policy_version
                self._others.own(self._live.sent, self._live.tokens, anyio.current_time())
                return await self._submit(live)
            if live.failure:
                raise EngineFailedError(live.failure)
            return self._cut_short(live)
        except EngineUnreachableError:
            self._look_wanted.set()
            raise
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._abort_quietly(live)
            raise
        finally:
            self._live.end(live)

    async def abort(self, request_id: str) -> None:
        """See `EngineDriver`. Returns once the request has ended, or is not waited for any longer."""
        live = self._live.find(request_id)
        if live is None:
            return
        live.aborted = True
        if live.sent:
            with anyio.move_on_after(ABORT_WAIT_S):
                while not live.ended.is_set():
                    # A server that keeps requests still answers no abort, or forgets their tokens over it.
                    await self._live.released()
                    await self._abort_quietly(live)
                    with anyio.move_on_after(ABORT_AGAIN_S):
                        await live.ended.wait()
        live.scope.cancel()

    async def update_weights(self, update: WeightUpdate) -> str:
        """See `EngineDriver`."""
        self._check_open()
        abilities = self.capabilities
        if isinstance(update.source, FirstWeights) and self._first_model:
            update = replace(update, source=DiskWeights(self._first_model))
        if update.version < 0:
            raise WeightUpdateError(f"version is {update.version}; it must be at least 0", intact=True)
        if update.mode not in abilities.update_modes:
            raise UnsupportedError(f"this engine cannot update its weights with {update.mode.value}")
        if type(update.source) not in abilities.weight_sources:
            raise UnsupportedError(f"this engine takes no weights from {type(update.source).__name__}")
        if isinstance(update.source, DiskWeights):
            await anyio.to_thread.run_sync(check_weights, update.source.location, await self._served_path())
        if isinstance(update.source, GroupWeights) and update.source.group_name not in self._groups:
            await await_trainer(update.source, update.timeout_s)
        before = await self._checksum()
        async with self._controlling():
            former = self._model_now
            self._model_now = ""
            await self._update(update)
            shown = await self._show_tensors(update, former, before)
            self._model_now = update.source.location if isinstance(update.source, DiskWeights) else ""
        log.info("weights updated", version=update.version, mode=update.mode.value)
        return shown

    async def close(self) -> None:
        """See `EngineDriver`. A server that somebody else runs lives on."""
        if self._closed:
            return
        self._closed = True
        with anyio.move_on_after(CLOSE_TIMEOUT_S / 2):
            async with anyio.create_task_group() as tasks:
                for live in self._live.all:
                    tasks.start_soon(self._end_at_close, live)
        self._live.cut(held=True)
        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            await self._http.close()
        if self._own_server is not None:
            await self._own_server.stop()

    @abstractmethod
    async def _look(self) -> Look:
        """Looks at the server; EngineUnreachableError if it does not answer."""

    @abstractmethod
    async def _send(self, live: LiveRequest, how: Derivation, seed: int) -> HttpAnswer:
        """Sends a request and returns the answer."""

    @abstractmethod
    def _read(self, content: Any) -> Reply:
        """Reads an answer that tells of success."""

    @abstractmethod
    async def _send_abort(self, live: LiveRequest) -> None:
        """Has the server end a request."""

    async def _send_pause(self, mode: UpdateMode) -> None:
        """Has the server stand still for an update; of DRAIN there is nothing left to wait for."""

    async def _send_resume(self) -> None:
        """Undoes `_send_pause`."""

    async def _replace_weights(self, update: WeightUpdate) -> None:
        """Has the server replace its weights, and call them as `label_of` says; it is stopped, and stays so."""

    async def _served_path(self) -> str:
        """Returns the path of the weights that the server serves, as the server sees it; empty if it is not known."""
        return ""

    async def _checksum(self) -> str:
        """Returns the server's own checksum of its tensors; empty if it reports none."""
        return ""

    def _server_lost(self) -> None:
        """The server may be another one than before."""

    async def _submit(self, live: LiveRequest) -> Generation:
        sampling = live.request.sampling
        how = Derivation.NONE if self._told is None else derivation(self._told, sampling)
        seed = secrets.randbits(self._seed_bits) if sampling.seed is None else sampling.seed
        answer = await self._send(live, how, seed & ((1 << self._seed_bits) - 1))
        if not answer.ok:
            raise error_of(answer)
        return self._read(answer.content).generation(live, how, seed, self._start_version, joint=self._joint)

    async def _update(self, update: WeightUpdate) -> None:
        self._live.hold()
        stopped = False
        try:
            try:
                await self._stop(update.mode, update.timeout_s)
            except TimeoutError as error:
                message = f"the engine did not drain within {update.timeout_s} s"
                raise WeightUpdateError(message, intact=True) from error
            stopped = True
            try:
                await self._replace_weights(update)
            except BaseException as error:
                self._note_failed_update(error)
                raise
            self._state = replace(self._state, version=label_of(update.version))
        finally:
            if stopped:
                with anyio.CancelScope(shield=True):
                    await self._quietly(self._send_resume)
            self._state = replace(self._state, paused=False)
            self._live.release()

    async def _show_tensors(self, update: WeightUpdate, former: str, before: str) -> str:
        """Compares the server's checksum with that of before, when its weights lay at `former`."""
        after = await self._checksum()
        if not (before and after):
            return ""
        if before != after:
            return f"its checksum was {before:.12} and is {after:.12}"
        differing = ""
        if isinstance(update.source, DiskWeights) and former:
            differing = await anyio.to_thread.run_sync(differing_tensor, update.source.location, former)
        if differing:
            error = WeightUpdateError(f"its checksum is {after:.12} as before, though {differing} differs on disk")
            self._note_failed_update(error)
            raise error
        return f"its checksum is {after:.12} as before"

    def _note_failed_update(self, error: BaseException) -> None:
        if not (isinstance(error, WeightUpdateError) and error.intact):
            # Nothing may go on under weights that are half of one version and half of another.
            self._live.cut("the weights may be half updated", held=True)
            self._state = replace(self._state, losses=self._state.losses + 1)
            self._report()

    async def _stop(self, mode: UpdateMode, timeout_s: float) -> None:
        """Has the server stand still; nothing new is sent meanwhile. TimeoutError: it did not drain."""
        if mode is UpdateMode.DRAIN:
            with anyio.fail_after(timeout_s):
                await self._live.drained()
        await self._send_pause(mode)
        if mode is UpdateMode.ABORT:
            with anyio.move_on_after(ABORT_WAIT_S):
                await self._live.drained()
            # What is left reached the server behind the order to stop, and has no tokens.
            self._live.cut()

    @asynccontextmanager
    async def _controlling(self) -> AsyncIterator[None]:
        async with self._control:
            self._steps += 1
            try:
                yield
            finally:
                self._steps += 1

    def _check_open(self) -> None:
        if self._closed:
            raise EngineFailedError("the driver is closed")

    async def _safe_look(self) -> Look:
        try:
            return await self._look()
        except EngineUnreachableError as error:
            why = self._own_server.problem if self._own_server is not None else ""
            return Look(answered=False, refused=error.refused, problem=why or str(error))
        except EngineError as error:
            return Look(problem=str(error), identity=self._state.identity, version=self._state.version)

    def _conclude(self, look: Look) -> None:
        before, self._state = self._state, after_look(self._state, look)
        after = self._state
        if before.alive and not after.alive:
            log.warning("engine lost", reason=after.problem)
            self._live.cut(after.problem or "the engine is lost")
            self._others.forget()
        if after.losses != before.losses:
            log.warning("engine may have lost its weights", version=after.version)
            self._live.cut(_WEIGHTS_LOST, held=True)
            self._model_now = ""
            self._server_lost()
        if replace(before, unanswered=0, problem="") != replace(after, unanswered=0, problem=""):
            self._report()

    def _cut_short(self, live: LiveRequest) -> Generation:
        return Generation(
            token_ids=(),
            log_probs=(),
            finish_reason=FinishReason.ABORT,
            version_spans=(),
            seed=live.request.sampling.seed or 0,
        )

    async def _end_at_close(self, live: LiveRequest) -> None:
        if live.sent:
            await self._abort_quietly(live)
            await live.ended.wait()

    async def _abort_quietly(self, live: LiveRequest) -> None:
        if live.sent:
            with anyio.move_on_after(ABORT_WAIT_S):
                await self._quietly(lambda: self._send_abort(live))

    async def _quietly(self, call: Callable[[], Awaitable[None]]) -> None:
        """Makes a call whose failure the watch will notice anyway."""
        try:
            await call()
        except EngineError as error:
            self._look_wanted.set()
            log.warning("engine did not obey", reason=str(error))


def _tell_nobody() -> None:
    """Until there is somebody to tell."""
