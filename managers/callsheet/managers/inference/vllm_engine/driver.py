"""vLLM behind the `EngineDriver` protocol."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from callsheet.managers.inference.driver import (
    EngineBusyError,
    EngineCapabilities,
    EngineError,
    EngineLimits,
    OthersLoad,
    UpdateMode,
    WeightUpdate,
    WeightUpdateError,
)
from callsheet.managers.inference.http_engine.client import (
    LOOK_TIMEOUT_S,
    EngineHttp,
    EngineStartingError,
    EngineUnreachableError,
    FoundServer,
    HttpAnswer,
    RequestBounds,
    Where,
    attach,
    new_tokens,
    sampling_parameters,
)
from callsheet.managers.inference.http_engine.driver import MAX_REQUESTS, HttpEngineDriver
from callsheet.managers.inference.http_engine.live_requests import (
    Derivation,
    LiveRequest,
    Look,
    Reply,
    ToldLogProbs,
    label_of,
)
from callsheet.managers.inference.http_engine.vocabulary import vocabulary_of
from callsheet.managers.inference.vllm_engine.settings import VLLMSettings
from callsheet.managers.inference.weights import DiskWeights, FirstWeights, GroupWeights
from callsheet.managers.models.completions import told_tokens
from typing_extensions import override

# Requests and answers of vLLM's /inference/v1/generate.

_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_KV_SHARE = "vllm:kv_cache_usage_perc"
_LOAD_METRICS = frozenset({_RUNNING, _WAITING, _KV_SHARE})


def generate_body(live: LiveRequest, server: VLLMServer, how: Derivation, seed: int) -> dict[str, Any]:
    """The body of a request."""
    request, sampling = live.request, live.request.sampling
    params = sampling_parameters(sampling) | {
        "max_tokens": new_tokens(request, server.bounds.limits),
        "top_k": sampling.top_k,
        "seed": seed,
    }
    if how is Derivation.AS_TOLD:
        params["logprobs"] = 0
    elif how is Derivation.OVER_TOP_K:
        params["logprobs"] = sampling.top_k
    body: dict[str, Any] = {
        "request_id": live.server_id,
        "token_ids": list(request.prompt_token_ids),
        "sampling_params": params,
        # Its texts begin with the prompt's where that ends within a character.
        "output_mode": "tokens",
        "stream": False,
    }
    if request.kv_namespace:
        body["cache_salt"] = request.kv_namespace
    return body


def server_request_id(live: LiveRequest) -> str:
    """What the server itself calls a request, as its aborts want it."""
    return f"generate-tokens-{live.server_id}"


def reply_of(content: Any) -> Reply:
    """Reads an answer."""
    choice = content["choices"][0]
    told = (choice.get("logprobs") or {}).get("content") or ()
    return Reply(
        token_ids=tuple(int(token) for token in choice.get("token_ids") or ()),
        finish_reason=choice.get("finish_reason"),
        own=[entry["logprob"] for entry in told],
        # The token itself is among the most likely, or comes before them.
        likeliest=[[top["logprob"] for top in entry.get("top_logprobs") or ()] for entry in told],
        versions=choice.get("weight_versions") or None,
        cached_tokens=told_tokens(content).get("tokens_cached", 0),
    )


def load_of(metrics: str, kv_tokens: int) -> OthersLoad | None:
    """All that a server has, by the text of its /metrics; None where that does not tell.

    Args:
        metrics: Lines of a name, labels in braces, and a value.
        kv_tokens: What its KV cache holds, of which it tells a share; 0 where that is not known.
    """
    seen: dict[str, float] = {}
    for line in metrics.splitlines():
        left, _, value = line.rpartition(" ")
        name = left.partition("{")[0]
        if name in _LOAD_METRICS:
            with suppress(ValueError):
                seen[name] = seen.get(name, 0.0) + float(value)
    if _RUNNING not in seen:
        return None
    sequences = int(seen[_RUNNING] + seen.get(_WAITING, 0.0))
    return OthersLoad(sequences, int(min(max(seen.get(_KV_SHARE, 0.0), 0.0), 1.0) * kv_tokens))


# What a vLLM server says of itself.

_TOLD = {"raw_logprobs": ToldLogProbs.RAW, "processed_logprobs": ToldLogProbs.SAMPLED}
_START = re.compile(r"^process_start_time_seconds(?:\{[^}\n]*\})? (\S+)", re.MULTILINE)
MAX_STOP_TEXTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMServer(FoundServer):
    """A server as it was found.

    Attributes:
        told: Of which distribution it tells log-probabilities; None where it tells none.
        prefix_cache: Whether it reuses KV.
    """

    told: ToldLogProbs | None
    prefix_cache: bool
    gpus: int

    @property
    @override
    def abilities(self) -> EngineCapabilities:
        return EngineCapabilities(
            update_modes=frozenset(UpdateMode),
            version_spans=True,
            prefix_cache=self.prefix_cache,
            batch_invariant=False,
            stop_texts=self.bounds.stop_texts > 0,
            weight_sources=frozenset({DiskWeights, GroupWeights, FirstWeights}),
            kv_namespaces=True,
            gpus=self.gpus,
        )


async def read_server(http: EngineHttp, settings: VLLMSettings) -> VLLMServer:
    """Asks a server what it is.

    Raises:
        EngineUnreachableError: It does not answer.
        EngineStartingError: It is not ready.
        EngineError: It is no vLLM server, or lacks the routes for reinforcement learning.
    """
    health = await http.get("/health", timeout_s=LOOK_TIMEOUT_S)
    if health.status == 503:
        raise EngineStartingError(health.message)
    info = await http.get("/server_info", {"config_format": "json"}, timeout_s=LOOK_TIMEOUT_S * 6)
    weights = await http.get("/weight_info", timeout_s=LOOK_TIMEOUT_S)
    if 404 in (info.status, weights.status):
        raise EngineError(f"{http.url}: lacks /server_info or /weight_info: start vLLM with VLLM_SERVER_DEV_MODE=1")
    if not (info.ok and weights.ok):
        raise EngineError(f"{http.url}: {(weights if info.ok else info).message}")
    label, identity = str(weights.field("weight_version")), await identity_of(http)
    return server_of(info.field("vllm_config") or {}, label, identity, settings)


def server_of(config: Mapping[str, Any], label: str, identity: str, settings: VLLMSettings) -> VLLMServer:
    """Reads the configuration in /server_info."""
    model, cache = config.get("model_config") or {}, config.get("cache_config") or {}
    blocks, block = cache.get("num_gpu_blocks"), cache.get("block_size")
    limits = EngineLimits(
        sequences=(config.get("scheduler_config") or {}).get("max_num_seqs"),
        kv_tokens=blocks * block if isinstance(blocks, int) and isinstance(block, int) else None,
        context_length=model.get("max_model_len"),
    )
    path = str(model.get("model", ""))
    bounds = RequestBounds(
        limits=limits,
        vocabulary=settings.vocabulary_size or vocabulary_of(path),
        stop_texts=0 if model.get("skip_tokenizer_init") else MAX_STOP_TEXTS,
    )
    return VLLMServer(
        bounds=bounds,
        label=label,
        identity=identity,
        model=path,
        told=_TOLD.get(str(model.get("logprobs_mode"))),
        prefix_cache=bool(cache.get("enable_prefix_caching")),
        gpus=_gpus(config.get("device_config") or {}, config.get("parallel_config") or {}),
    )


def _gpus(device: Mapping[str, Any], parallel: Mapping[str, Any]) -> int:
    # Behind a load balancer of others' a server has the copies of its own machine alone.
    alone = parallel.get("data_parallel_external_lb") or parallel.get("data_parallel_hybrid_lb")
    copies = "data_parallel_size_local" if alone else "data_parallel_size"
    parts = (f"{way}_parallel_size" for way in ("tensor", "pipeline", "prefill_context"))
    ways = [parallel.get(name, 1) for name in (*parts, copies)]
    on_cpu = str(device.get("device_type") or device.get("device") or "cpu").startswith("cpu")
    return 0 if on_cpu or not all(isinstance(each, int) for each in ways) else math.prod(ways)


async def identity_of(http: EngineHttp) -> str:
    """When the server's process started, from its metrics; empty where it does not tell."""
    answer = await http.get("/metrics", timeout_s=LOOK_TIMEOUT_S)
    return start_in(answer)


def start_in(metrics: HttpAnswer) -> str:
    """Reads the start of the process in an answer of /metrics."""
    found = _START.search(metrics.content) if metrics.ok and isinstance(metrics.content, str) else None
    return found.group(1) if found else ""


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
        """What the server tells of its load, if it does; it lives even where it does not."""
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
