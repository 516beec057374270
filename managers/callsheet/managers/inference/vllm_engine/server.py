"""A vLLM server as it was found."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from callsheet.managers.inference.driver import (
    EngineCapabilities,
    EngineError,
    EngineLimits,
    UpdateMode,
)
from callsheet.managers.inference.http_engine.attaching import EngineStartingError
from callsheet.managers.inference.http_engine.client import (
    LOOK_TIMEOUT_S,
    EngineHttp,
    HttpAnswer,
)
from callsheet.managers.inference.http_engine.log_probs import ToldLogProbs
from callsheet.managers.inference.http_engine.requests import (
    FoundServer,
    RequestBounds,
)
from callsheet.managers.inference.http_engine.vocabulary import vocabulary_of
from callsheet.managers.inference.vllm_engine.settings import VLLMSettings
from callsheet.managers.inference.weights import DiskWeights, FirstWeights, GroupWeights
from typing_extensions import override

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
