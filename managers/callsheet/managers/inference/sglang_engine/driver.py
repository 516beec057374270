"""SGLang behind the `EngineDriver` protocol."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import structlog
from callsheet.managers.inference.driver import (
    EngineError,
    EngineFailedError,
    OthersLoad,
    UpdateMode,
    WeightUpdate,
    WeightUpdateError,
)
from callsheet.managers.inference.http_engine.attaching import attach
from callsheet.managers.inference.http_engine.client import (
    LOOK_TIMEOUT_S,
    EngineHttp,
    EngineUnreachableError,
    HttpAnswer,
    Where,
)
from callsheet.managers.inference.http_engine.driver import MAX_REQUESTS, HttpEngineDriver
from callsheet.managers.inference.http_engine.live_requests import LiveRequest
from callsheet.managers.inference.http_engine.log_probs import Derivation, ToldLogProbs
from callsheet.managers.inference.http_engine.looks import Look
from callsheet.managers.inference.http_engine.replies import Reply, label_of
from callsheet.managers.inference.sglang_engine.group_updates import update_from_group
from callsheet.managers.inference.sglang_engine.requests import check_stops, generate_body, load_of, reply_of
from callsheet.managers.inference.sglang_engine.server import SGLangServer, identity_of, read_server
from callsheet.managers.inference.sglang_engine.settings import SGLangSettings
from callsheet.managers.inference.weights import DiskWeights, GroupWeights

log = structlog.get_logger(__name__)

PAUSE_TIMEOUT_S = 60.0
CHECKSUM_TIMEOUT_S = 120.0
PAIR_REQUEST_TIMEOUT_S = 600.0
"""Seconds for a request to a pair for prefill and decode: if one half is gone, the other keeps requests silently."""


def attach_sglang(
    settings: SGLangSettings, url: Where, api_key: str | None = None, *, start_version: int = 0
) -> SGLangDriver:
    """Waits for a server, and returns a driver for what it turns out to be.

    Raises:
        EngineError: There is no such server in time.
    """
    connect = partial(EngineHttp, url, api_key)
    server = attach(connect, lambda http: read_server(http, settings), settings.attach_timeout)
    if server.bounds.vocabulary is None:
        log.warning("the vocabulary is not known: a token id beyond it kills the server; set vocabulary_size", url=url)
    return SGLangDriver(connect(), server, settings, start_version=start_version)


class SGLangDriver(HttpEngineDriver):
    """Drives one SGLang server.

    The orders of its calls are those that servers survive: it never flushes with an update while requests run, and it
    never asks the health of a paused server, which takes that for an illness.

    Args:
        http: Calls to the server; belongs to the driver from now on.
        server: The server as it was found.
        settings: The driver's own.
        start_version: The policy version of the weights that the server starts with.
        max_requests: The most live requests; more are refused as busy.
    """

    _joint = True

    def __init__(
        self,
        http: EngineHttp,
        server: SGLangServer,
        settings: SGLangSettings,
        *,
        start_version: int = 0,
        max_requests: int = MAX_REQUESTS,
    ) -> None:
        super().__init__(http, server, start_version=start_version, max_requests=max_requests)
        self._server = server
        self._settings = settings
        self._told = ToldLogProbs.RAW if settings.original_log_probs else ToldLogProbs.SCALED
        self._request_timeout_s = settings.request_timeout or (PAIR_REQUEST_TIMEOUT_S if server.split else None)

    async def _look(self) -> Look:
        info = await self._look_at("/server_info", "/get_server_info")
        model = await self._look_at("/model_info", "/get_model_info")
        # /health runs a request, takes a second, and calls a paused server ill after twenty.
        ready = await self._look_at("/ready")
        if not (info.ok and model.ok):
            bad = model if info.ok else info
            raise EngineUnreachableError(f"{self._http.url}: {bad.message}", refused=False)
        paused = ready.status == 503
        load = None if paused else await self._look_at_load()
        version = str(model.field("weight_version"))
        return Look(paused=paused, identity=identity_of(info.content), version=version, load=load)

    async def _look_at_load(self) -> OthersLoad | None:
        """Returns the server's load, None if it reports none; the server lives even then."""
        try:
            answer = await self._look_at("/v1/loads", "/get_load")
        except EngineUnreachableError:
            return None
        return load_of(answer.content) if answer.ok else None

    async def _look_at(self, path: str, former: str = "") -> HttpAnswer:
        answer = await self._http.get(path, timeout_s=LOOK_TIMEOUT_S)
        if answer.status == 404 and former:
            return await self._http.get(former, timeout_s=LOOK_TIMEOUT_S)
        return answer

    async def _served_path(self) -> str:
        return str((await self._look_at("/model_info", "/get_model_info")).field("model_path") or "")

    async def _send(self, live: LiveRequest, how: Derivation, seed: int) -> HttpAnswer:
        check_stops(live.request.sampling)
        body = generate_body(live, self._server, how, seed)
        try:
            with anyio.fail_after(self._request_timeout_s):
                return await self._http.post("/generate", body, timeout_s=None)
        except TimeoutError as error:
            await self._abort_quietly(live)
            raise EngineFailedError(f"the request did not end within {self._request_timeout_s:g} s") from error

    def _read(self, content: Any) -> Reply:
        return reply_of(content)

    async def _send_abort(self, live: LiveRequest) -> None:
        self._require(await self._http.post("/abort_request", {"rid": live.server_id}))

    async def _send_pause(self, mode: UpdateMode) -> None:
        word = {UpdateMode.ABORT: "abort", UpdateMode.KEEP: "in_place", UpdateMode.DRAIN: "retract"}[mode]
        # In place a request that has just ended would count as running until the end of the pause, and so keep the
        # server from a flush. Older servers die of a flush under a retracting pause.
        if self._server.split or (mode is UpdateMode.DRAIN and not self._server.modern):
            word = "abort"
        self._require(await self._http.post("/pause_generation", {"mode": word}, timeout_s=PAUSE_TIMEOUT_S))

    async def _send_resume(self) -> None:
        self._require(await self._http.post("/continue_generation"))

    async def _replace_weights(self, update: WeightUpdate) -> None:
        kept = update.mode is UpdateMode.KEEP
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

    async def _checksum(self) -> str:
        if not self._server.modern:
            return ""
        try:
            answer = await self._http.post("/weights_checker", {"action": "checksum"}, timeout_s=CHECKSUM_TIMEOUT_S)
        except EngineUnreachableError as error:
            log.warning("no checksum of the weights", reason=str(error))
            return ""
        # Servers without a GPU compute none.
        return str(answer.field("per_engine_checksum") or "") if answer.ok else ""

    def _server_lost(self) -> None:
        self._groups.clear()

    def _require(self, answer: HttpAnswer) -> None:
        if not answer.ok or answer.field("success") is False:
            raise EngineError(answer.message)
