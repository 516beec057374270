"""vLLM behind the `EngineDriver` protocol."""

from __future__ import annotations

import secrets
from typing import Any

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
from callsheet.managers.inference.http_engine.log_probs import Derivation, derivation
from callsheet.managers.inference.http_engine.requests import error_of
from callsheet.managers.inference.http_engine.versions import label_of
from callsheet.managers.inference.http_engine.watch import Look
from callsheet.managers.inference.vllm_engine.server import VLLMServer, identity_of
from callsheet.managers.inference.vllm_engine.settings import VLLMSettings
from callsheet.managers.inference.vllm_engine.wire import (
    generate_body,
    generation_of,
    joined,
    log_probs_of,
    server_request_id,
)
from callsheet.managers.inference.weights import DiskWeights, GroupWeights

PAUSE_TIMEOUT_S = 60.0
MEMORY_TIMEOUT_S = 300.0
_SEED_BITS = 63
_WORDS = {PauseMode.ABORT: "abort", PauseMode.KEEP: "keep", PauseMode.DRAIN: "wait"}


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
        seen = Look(identity=server.identity, version=server.label)
        super().__init__(http, server.bounds, seen, start_version=start_version, max_requests=max_requests)
        self._server = server
        self._settings = settings
        self._served = server.model
        self._asleep = False

    @property
    def capabilities(self) -> EngineCapabilities:
        """See `EngineDriver`."""
        return self._server.abilities

    async def flush(self) -> None:
        """See `EngineDriver`. A server with requests forgets nothing, and says so with HTTP 200."""
        self._check_open()
        await self._forget(reset_running=False)

    async def sleep(self) -> None:
        """See `EngineDriver`."""
        self._check_open()
        if not self._server.sleep:
            raise UnsupportedError("sleep: the server was started without --enable-sleep-mode")
        async with self._controlling():
            if self._asleep:
                return
            if self._live.all:
                raise EngineBusyError(f"{len(self._live.all)} requests are live; an engine with requests cannot sleep")
            self._live.hold()
            self._paused = True
            params = {"level": str(self._settings.sleep_level)}
            _require(await self._http.post("/sleep", params=params, timeout_s=MEMORY_TIMEOUT_S))
            self._asleep = True

    async def wake(self) -> None:
        """See `EngineDriver`. Weights that were dropped are read anew before the KV cache comes back."""
        if not self._server.sleep:
            raise UnsupportedError("wake: the server was started without --enable-sleep-mode")
        async with self._controlling():
            if not self._asleep:
                return
            if self._settings.sleep_level > 1:
                await self._wake("weights")
                await self._reload(self._served, MEMORY_TIMEOUT_S)
                await self._wake("kv_cache")
                self._note_weights_lost()
            else:
                _require(await self._http.post("/wake_up", timeout_s=MEMORY_TIMEOUT_S))
            self._asleep = False
        await self.resume()

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
        return Look(
            paused=bool(paused.field("is_paused")), identity=identity, version=str(weights.field("weight_version"))
        )

    async def _served_path(self) -> str:
        return self._served

    async def _submit(self, live: LiveRequest, listen: TokenListener | None) -> Generation:
        sampling = live.request.sampling
        how = Derivation.NONE if self._server.told is None else derivation(self._server.told, sampling)
        seed = secrets.randbits(_SEED_BITS) if sampling.seed is None else sampling.seed
        body = generate_body(live, self._server, how, seed, stream=listen is not None)
        if listen is None:
            answer = await self._http.post("/inference/v1/generate", body, timeout_s=None)
            if not answer.ok:
                raise error_of(answer)
            content = answer.content
        else:
            content = await self._listen(live, body, how, listen)
        return generation_of(content, live, how, seed, self._start_version)

    async def _listen(
        self, live: LiveRequest, body: dict[str, Any], how: Derivation, listen: TokenListener
    ) -> dict[str, Any]:
        answer: dict[str, Any] | None = None
        async with self._http.stream("/inference/v1/generate", body) as (refusal, events):
            if refusal is not None:
                raise error_of(refusal)
            async for event in events:
                if "error" in event:
                    raise error_of(HttpAnswer(int(event["error"].get("code") or 500), event))
                answer = joined(answer, event)
                for choice in event.get("choices") or ():
                    tokens = tuple(choice.get("token_ids") or ())
                    log_probs = log_probs_of(how, choice, live.request.sampling, len(tokens))
                    if new := live.tell(live.token_ids + tokens, live.log_probs + log_probs):
                        listen(new)
        if answer is None:
            raise EngineFailedError("the server ended the stream without an event")
        return answer

    async def _send_abort(self, live: LiveRequest) -> None:
        _require(await self._http.post("/abort_requests", {"request_ids": [server_request_id(live)]}))

    async def _send_pause(self, mode: PauseMode) -> None:
        params = {"mode": _WORDS[mode], "clear_cache": "false"}
        _require(await self._http.post("/pause", params=params, timeout_s=PAUSE_TIMEOUT_S))

    async def _send_resume(self) -> None:
        _require(await self._http.post("/resume"))

    def _check_source(self, update: WeightUpdate) -> None:
        if not isinstance(update.source, DiskWeights | GroupWeights):
            raise UnsupportedError(f"vLLM takes no weights from {type(update.source).__name__}")

    async def _replace_weights(self, update: WeightUpdate) -> None:
        label = label_of(update.version)
        kept = update.mode is UpdateMode.KEEP or self._paused
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

    async def _wake(self, tag: str) -> None:
        _require(await self._http.post("/wake_up", params={"tags": tag}, timeout_s=MEMORY_TIMEOUT_S))

    def _server_lost(self) -> None:
        self._groups.clear()
        self._asleep = False
        self._served = self._server.model


def _require(answer: HttpAnswer) -> None:
    if not answer.ok:
        raise EngineError(answer.message)
