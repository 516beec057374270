"""SGLang behind the `EngineDriver` protocol."""

from __future__ import annotations

import secrets
from typing import Any

import anyio
import structlog
from callsheet.managers.inference.driver import (
    EngineBusyError,
    EngineCapabilities,
    EngineError,
    EngineFailedError,
    Generation,
    PauseMode,
    TokenListener,
    UnsupportedError,
    UpdateMode,
    WeightUpdate,
    WeightUpdateError,
)
from callsheet.managers.inference.http_engine.client import (
    LOOK_TIMEOUT_S,
    EngineHttp,
    EngineUnreachableError,
    HttpAnswer,
)
from callsheet.managers.inference.http_engine.driver import MAX_REQUESTS, HttpEngineDriver
from callsheet.managers.inference.http_engine.live_requests import LiveRequest
from callsheet.managers.inference.http_engine.log_probs import Derivation, ToldLogProbs, derivation
from callsheet.managers.inference.http_engine.requests import error_of
from callsheet.managers.inference.http_engine.versions import label_of
from callsheet.managers.inference.http_engine.watch import Look
from callsheet.managers.inference.sglang_engine.group_update import update_from_group
from callsheet.managers.inference.sglang_engine.server import SGLangServer, identity_of
from callsheet.managers.inference.sglang_engine.settings import SGLangSettings
from callsheet.managers.inference.sglang_engine.wire import check_stops, generate_body, generation_of, log_probs_of
from callsheet.managers.inference.weights import DiskWeights, GroupWeights

log = structlog.get_logger(__name__)

PAUSE_TIMEOUT_S = 60.0
MEMORY_TIMEOUT_S = 300.0
FLUSH_TIMEOUT_S = 30.0
PAIR_REQUEST_TIMEOUT_S = 600.0
"""Of a pair for prefill and decode of which one half is gone, the other keeps requests without a word."""
_SEED_BITS = 63


class SGLangDriver(HttpEngineDriver):
    """Drives one SGLang server.

    The orders of its calls are those that servers survive: it never gives memory back, nor flushes with an update,
    while requests run; and it never asks the health of a paused server, which takes that for an illness.

    Args:
        http: Calls to the server; belongs to the driver from now on.
        server: The server as it was found.
        settings: The driver's own.
        start_version: The policy version of the weights that the server starts with.
        max_requests: The most live requests; more are refused as busy.
    """

    def __init__(
        self,
        http: EngineHttp,
        server: SGLangServer,
        settings: SGLangSettings,
        *,
        start_version: int = 0,
        max_requests: int = MAX_REQUESTS,
    ) -> None:
        seen = Look(identity=server.identity, version=server.label)
        super().__init__(http, server.bounds, seen, start_version=start_version, max_requests=max_requests)
        self._server = server
        self._settings = settings
        self._told = ToldLogProbs.RAW if settings.original_log_probs else ToldLogProbs.SCALED
        self._asleep = False
        self._request_timeout_s = settings.request_timeout or (PAIR_REQUEST_TIMEOUT_S if server.split else None)

    @property
    def capabilities(self) -> EngineCapabilities:
        """See `EngineDriver`."""
        return self._server.abilities

    async def flush(self) -> None:
        """See `EngineDriver`. A server with requests does not forget anything, so it is waited for."""
        self._check_open()
        answer = await self._http.post("/flush_cache", params={"timeout": str(FLUSH_TIMEOUT_S)}, timeout_s=60.0)
        if not answer.ok:
            raise EngineBusyError(f"the server has requests and forgot nothing: {answer.message}")

    async def sleep(self) -> None:
        """See `EngineDriver`."""
        self._check_open()
        if not self._server.memory_saver:
            raise UnsupportedError("sleep: the server was started without --enable-memory-saver")
        async with self._controlling():
            if self._asleep:
                return
            if self._live.all:
                raise EngineBusyError(f"{len(self._live.all)} requests are live; an engine with requests cannot sleep")
            self._live.hold()
            # A server dies of it while it has requests, but for those that wait under a pause.
            await self._send_pause(PauseMode.KEEP)
            self._paused = True
            self._require(await self._http.post("/release_memory_occupation", timeout_s=MEMORY_TIMEOUT_S))
            self._asleep = True

    async def wake(self) -> None:
        """See `EngineDriver`. What was never given back is not asked for: a server dies of that."""
        if not self._server.memory_saver:
            raise UnsupportedError("wake: the server was started without --enable-memory-saver")
        async with self._controlling():
            if not self._asleep:
                return
            self._require(await self._http.post("/resume_memory_occupation", timeout_s=MEMORY_TIMEOUT_S))
            self._asleep = False
            if not self._server.weights_backup:
                self._note_weights_lost()
        await self.resume()

    async def _look(self) -> Look:
        info = await self._look_at("/server_info", "/get_server_info")
        model = await self._look_at("/model_info", "/get_model_info")
        # /health runs a request, takes a second, and calls a paused server ill after twenty.
        ready = await self._look_at("/ready")
        if not (info.ok and model.ok):
            bad = model if info.ok else info
            raise EngineUnreachableError(f"{self._http.url}: {bad.message}", refused=False)
        identity = identity_of(info.content)
        return Look(paused=ready.status == 503, identity=identity, version=str(model.field("weight_version")))

    async def _look_at(self, path: str, former: str = "") -> HttpAnswer:
        answer = await self._http.get(path, timeout_s=LOOK_TIMEOUT_S)
        if answer.status == 404 and former:
            return await self._http.get(former, timeout_s=LOOK_TIMEOUT_S)
        return answer

    async def _served_path(self) -> str:
        return str((await self._look_at("/model_info", "/get_model_info")).field("model_path") or "")

    async def _submit(self, live: LiveRequest, listen: TokenListener | None) -> Generation:
        sampling = live.request.sampling
        check_stops(sampling)
        how = derivation(self._told, sampling)
        seed = secrets.randbits(_SEED_BITS) if sampling.seed is None else sampling.seed
        body = generate_body(live, self._server, how, seed, stream=listen is not None)
        try:
            with anyio.fail_after(self._request_timeout_s):
                content = await self._send(live, body, how, listen)
        except TimeoutError as error:
            await self._abort_quietly(live)
            raise EngineFailedError(f"the request did not end within {self._request_timeout_s:g} s") from error
        return generation_of(content, live, how, seed, self._start_version)

    async def _send(
        self, live: LiveRequest, body: dict[str, Any], how: Derivation, listen: TokenListener | None
    ) -> dict[str, Any]:
        if listen is None:
            answer = await self._http.post("/generate", body, timeout_s=None)
            if not answer.ok:
                raise error_of(answer)
            content: dict[str, Any] = answer.content
            return content
        return await self._listen(live, body, how, listen)

    async def _listen(
        self, live: LiveRequest, body: dict[str, Any], how: Derivation, listen: TokenListener
    ) -> dict[str, Any]:
        """Tells tokens as they come; returns the last event, which has all of them."""
        last: dict[str, Any] = {}
        async with self._http.stream("/generate", body) as (refusal, events):
            if refusal is not None:
                raise error_of(refusal)
            async for event in events:
                if "error" in event:
                    raise error_of(HttpAnswer(int(event["error"].get("code") or 500), event))
                last = event
                tokens = tuple(event.get("output_ids") or ())
                log_probs = log_probs_of(how, event.get("meta_info") or {}, live.request.sampling, len(tokens))
                if new := live.tell(tokens, log_probs):
                    listen(new)
        if not last:
            raise EngineFailedError("the server ended the stream without an event")
        return last

    async def _send_abort(self, live: LiveRequest) -> None:
        self._require(await self._http.post("/abort_request", {"rid": live.server_id}))

    async def _send_pause(self, mode: PauseMode) -> None:
        word = {PauseMode.ABORT: "abort", PauseMode.KEEP: "in_place", PauseMode.DRAIN: "retract"}[mode]
        # In place a request that has just ended would count as running until the end of the pause, and so keep the
        # server from a flush. Older servers die of a flush under a retracting pause.
        if self._server.split or (mode is PauseMode.DRAIN and not self._server.modern):
            word = "abort"
        self._require(await self._http.post("/pause_generation", {"mode": word}, timeout_s=PAUSE_TIMEOUT_S))

    async def _send_resume(self) -> None:
        self._require(await self._http.post("/continue_generation"))

    def _check_source(self, update: WeightUpdate) -> None:
        if not isinstance(update.source, DiskWeights | GroupWeights):
            raise UnsupportedError(f"SGLang takes no weights from {type(update.source).__name__}")

    async def _replace_weights(self, update: WeightUpdate) -> None:
        kept = update.mode is UpdateMode.KEEP or self._paused
        flush = not kept
        if kept and self._server.modern and not self._server.split and not self._settings.keep_kv:
            # KV of requests that go on is given up and computed anew, so that all of it can be forgotten.
            body = {"mode": "retract"}
            self._require(await self._http.post("/pause_generation", body, timeout_s=PAUSE_TIMEOUT_S))
            flush = True
        if isinstance(update.source, GroupWeights):
            await update_from_group(self._http, update.source, update, joined=self._groups, flush=flush)
        elif isinstance(update.source, DiskWeights):
            await self._read_from_disk(update.source, update, flush=flush)

    async def _read_from_disk(self, source: DiskWeights, update: WeightUpdate, *, flush: bool) -> None:
        body = {
            "model_path": source.location,
            "weight_version": label_of(update.version),
            "flush_cache": flush,
            "abort_all_requests": False,
        }
        answer = await self._http.post("/update_weights_from_disk", body, timeout_s=update.timeout_s)
        if not answer.ok or answer.field("success") is False:
            # It looks for all files before it touches a weight.
            intact = "Failed to get weights iterator" in answer.message
            raise WeightUpdateError(f"{source.location}: {answer.message}", intact=intact)

    def _server_lost(self) -> None:
        self._groups.clear()
        self._asleep = False

    def _require(self, answer: HttpAnswer) -> None:
        if not answer.ok or answer.field("success") is False:
            raise EngineError(answer.message)
