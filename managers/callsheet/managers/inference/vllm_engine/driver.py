"""vLLM behind the `EngineDriver` protocol."""

from __future__ import annotations

from functools import partial
from typing import Any

from callsheet.managers.inference.driver import (
    EngineBusyError,
    EngineError,
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
from callsheet.managers.inference.http_engine.log_probs import Derivation
from callsheet.managers.inference.http_engine.looks import Look
from callsheet.managers.inference.http_engine.replies import Reply, label_of
from callsheet.managers.inference.vllm_engine.requests import generate_body, load_of, reply_of, server_request_id
from callsheet.managers.inference.vllm_engine.server import VLLMServer, identity_of, read_server
from callsheet.managers.inference.vllm_engine.settings import VLLMSettings
from callsheet.managers.inference.weights import DiskWeights, GroupWeights

PAUSE_TIMEOUT_S = 60.0
_WORDS = {UpdateMode.ABORT: "abort", UpdateMode.KEEP: "keep", UpdateMode.DRAIN: "wait"}


def attach_vllm(
    settings: VLLMSettings, url: Where, api_key: str | None = None, *, start_version: int = 0
) -> VLLMDriver:
    """Waits for a server, and returns a driver for what it turns out to be.

    Raises:
        EngineError: There is no such server in time.
    """
    connect = partial(EngineHttp, url, api_key)
    server = attach(connect, lambda http: read_server(http, settings), settings.attach_timeout)
    return VLLMDriver(connect(), server, settings, start_version=start_version)


class VLLMDriver(HttpEngineDriver):
    """Drives one vLLM server that was started with VLLM_SERVER_DEV_MODE=1 and --enable-scale-out.

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
        server: VLLMServer,
        settings: VLLMSettings,
        *,
        start_version: int = 0,
        max_requests: int = MAX_REQUESTS,
    ) -> None:
        super().__init__(http, server, start_version=start_version, max_requests=max_requests)
        self._server = server
        self._settings = settings
        self._served = server.model
        self._told = server.told

    async def _look(self) -> Look:
        health = await self._http.get("/health", timeout_s=LOOK_TIMEOUT_S)
        if not health.ok:
            # The API answers for an engine that has died.
            raise EngineUnreachableError(f"{self._http.url}/health: {health.message}", refused=True)
        paused = await self._http.get("/is_paused", timeout_s=LOOK_TIMEOUT_S)
        weights = await self._http.get("/weight_info", timeout_s=LOOK_TIMEOUT_S)
        identity = await identity_of(self._http)
        if not (paused.ok and weights.ok):
            bad = weights if paused.ok else paused
            raise EngineUnreachableError(f"{self._http.url}: {bad.message}", refused=False)
        stands = bool(paused.field("is_paused"))
        load = None if stands else await self._look_at_load()
        return Look(paused=stands, identity=identity, version=str(weights.field("weight_version")), load=load)

    async def _look_at_load(self) -> OthersLoad | None:
        """Returns the server's load, None if it reports none; the server lives even then."""
        try:
            answer = await self._http.get("/metrics", timeout_s=LOOK_TIMEOUT_S)
        except EngineUnreachableError:
            return None
        text = answer.content if answer.ok and isinstance(answer.content, str) else ""
        return load_of(text, self.limits.kv_tokens or 0)

    async def _served_path(self) -> str:
        return self._served

    async def _send(self, live: LiveRequest, how: Derivation, seed: int) -> HttpAnswer:
        return await self._http.post(
            "/inference/v1/generate", generate_body(live, self._server, how, seed), timeout_s=None
        )

    def _read(self, content: Any) -> Reply:
        return reply_of(content)

    async def _send_abort(self, live: LiveRequest) -> None:
        _require(await self._http.post("/abort_requests", {"request_ids": [server_request_id(live)]}))

    async def _send_pause(self, mode: UpdateMode) -> None:
        params = {"mode": _WORDS[mode], "clear_cache": "false"}
        _require(await self._http.post("/pause", params=params, timeout_s=PAUSE_TIMEOUT_S))

    async def _send_resume(self) -> None:
        _require(await self._http.post("/resume"))

    async def _replace_weights(self, update: WeightUpdate) -> None:
        label = label_of(update.version)
        kept = update.mode is UpdateMode.KEEP
        if isinstance(update.source, GroupWeights):
            await self._receive(update.source, update, label)
        elif isinstance(update.source, DiskWeights):
            await self._reload(update.source.location, update.timeout_s)
            self._served = update.source.location
            _require(await self._http.post("/update_weight_version", {"new_version": label}))
        if not kept or not self._settings.keep_kv:
            # Requests that go on compute their KV anew.
            await self._forget(reset_running=kept)

    async def _reload(self, location: str, timeout_s: float) -> None:
        body = {"method": "reload_weights", "kwargs": {"weights_path": location}}
        answer = await self._http.post("/collective_rpc", body, timeout_s=timeout_s)
        if not answer.ok:
            raise WeightUpdateError(f"{location}: {answer.message}")

    async def _receive(self, source: GroupWeights, update: WeightUpdate, label: str) -> None:
        if source.group_name not in self._groups:
            init = {
                "master_address": source.address,
                "master_port": source.port,
                "rank_offset": source.rank,
                "world_size": source.world_size,
            }
            joining = await self._http.post(
                "/init_weight_transfer_engine", {"init_info": init}, timeout_s=update.timeout_s
            )
            if not joining.ok:
                raise WeightUpdateError(f"group {source.group_name!r}: {joining.message}", intact=True)
            self._groups.add(source.group_name)
        info = {
            "names": [tensor.name for tensor in source.tensors],
            "dtype_names": [tensor.dtype for tensor in source.tensors],
            "shapes": [list(tensor.shape) for tensor in source.tensors],
        }
        steps: list[tuple[str, dict[str, object]]] = [
            ("/start_weight_update", {}),
            ("/update_weights", {"update_info": info}),
            ("/finish_weight_update", {"weight_version": label}),
        ]
        for path, body in steps:
            answer = await self._http.post(path, body, timeout_s=update.timeout_s)
            if not answer.ok:
                self._groups.discard(source.group_name)
                raise WeightUpdateError(f"{path}: {answer.message}")

    async def _forget(self, *, reset_running: bool) -> None:
        params = {"reset_running_requests": str(reset_running).lower()}
        answer = await self._http.post("/reset_prefix_cache", params=params, timeout_s=PAUSE_TIMEOUT_S)
        _require(answer)
        if answer.field("success") is False:
            raise EngineBusyError("the server has requests and forgot nothing")

    def _server_lost(self) -> None:
        self._groups.clear()
        self._served = self._server.model


def _require(answer: HttpAnswer) -> None:
    if not answer.ok:
        raise EngineError(answer.message)
