"""Facts that an SGLang server reports about itself."""

from __future__ import annotations

import hashlib
import json
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
from callsheet.managers.inference.http_engine.client import EngineHttp, EngineUnreachableError, HttpAnswer
from callsheet.managers.inference.http_engine.requests import FoundServer, RequestBounds
from callsheet.managers.inference.http_engine.vocabulary import vocabulary_of
from callsheet.managers.inference.sglang_engine.settings import SGLangSettings
from callsheet.managers.inference.weights import DiskWeights, FirstWeights, GroupWeights
from typing_extensions import override

_WITH_SPANS = (0, 5, 23)
"""The version that tells which weights made which tokens, has /ready, and survives a flush under a retracting pause."""
MAX_STOP_TEXTS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SGLangServer(FoundServer):
    """A server as it was found.

    Attributes:
        version: Its release, such as (0, 5, 23).
        deterministic: Whether it heeds seeds.
        prefix_cache: Whether it reuses KV.
        split: Whether it is one half of a pair for prefill and decode.
    """

    version: tuple[int, ...]
    deterministic: bool = False
    prefix_cache: bool = True
    split: bool = False
    gpus: int = 0

    @property
    def modern(self) -> bool:
        """Returns whether the server is of the release that this driver is made for, or a later one."""
        return self.version >= _WITH_SPANS

    @property
    @override
    def abilities(self) -> EngineCapabilities:
        # Pairs for prefill and decode neither retract nor stand still; without spans nobody knows which weights made
        # which tokens of a request that was kept.
        keeps = not self.split
        return EngineCapabilities(
            update_modes=frozenset(
                mode for mode in UpdateMode if mode is not UpdateMode.KEEP or (keeps and self.modern)
            ),
            version_spans=self.modern,
            prefix_cache=self.prefix_cache,
            batch_invariant=False,
            stop_texts=self.bounds.stop_texts > 0,
            weight_sources=frozenset({DiskWeights, GroupWeights, FirstWeights}),
            kv_namespaces=True,
            seeds=self.deterministic,
            gpus=self.gpus,
        )


async def read_server(http: EngineHttp, settings: SGLangSettings) -> SGLangServer:
    """Asks a server what it is.

    Raises:
        EngineUnreachableError: It does not answer.
        EngineStartingError: It is not ready.
        EngineError: It is no SGLang server that generates.
    """
    info = await _either(http, "/server_info", "/get_server_info")
    model = await _either(http, "/model_info", "/get_model_info")
    if not model.field("is_generation"):
        raise EngineError(f"{http.url}: {model.field('model_path')!r} is not served for generation")
    return server_of(info.content, model.content, settings)


def server_of(info: Mapping[str, Any], model: Mapping[str, Any], settings: SGLangSettings) -> SGLangServer:
    """Reads the answers of /server_info and /model_info."""
    states = info.get("internal_states") or [{}]
    per_rank = states[0].get("effective_max_running_requests_per_dp") or info.get("max_running_requests")
    limits = EngineLimits(
        sequences=_number(per_rank, times=info.get("dp_size")),
        kv_tokens=_number(info.get("max_total_num_tokens"), times=info.get("dp_size")),
        context_length=_number(info.get("context_length")),
    )
    bounds = RequestBounds(
        limits=limits,
        longest_prompt=_number(info.get("max_req_input_len")),
        vocabulary=settings.vocabulary_size or vocabulary_of(str(info.get("model_path", ""))),
        stop_texts=0 if info.get("skip_tokenizer_init") else MAX_STOP_TEXTS,
    )
    return SGLangServer(
        version=tuple(int(part) for part in re.findall(r"\d+", str(info.get("version", "")))[:3]),
        bounds=bounds,
        label=str(model.get("weight_version")),
        model=str(model.get("model_path") or ""),
        identity=identity_of(info),
        deterministic=bool(info.get("enable_deterministic_inference")),
        prefix_cache=not info.get("disable_radix_cache"),
        split=str(info.get("disaggregation_mode") or "null") != "null",
        gpus=_gpus(info),
    )


def _gpus(info: Mapping[str, Any]) -> int:
    """Ranks of data parallel attention are among those of tensors; otherwise each has GPUs of its own."""
    copies = 1 if info.get("enable_dp_attention") else info.get("dp_size")
    ranks = _number(info.get("tp_size"), times=info.get("pp_size"))
    return 0 if str(info.get("device") or "cpu") == "cpu" else (_number(ranks, times=copies) or 0)


def identity_of(info: Mapping[str, Any]) -> str:
    """Returns a text that differs between starts of a server: how long its parts took to start is never the same."""
    told = [info.get(name) for name in ("startup_time", "random_seed", "launch_command", "pid")]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def _number(value: object, times: object = 1) -> int | None:
    factor = times if isinstance(times, int) and times > 0 else 1
    return value * factor if isinstance(value, int) and value > 0 else None


async def _either(http: EngineHttp, path: str, former: str) -> HttpAnswer:
    answer = await http.get(path)
    if answer.status == 404:
        answer = await http.get(former)
    if answer.status == 503:
        raise EngineStartingError(answer.message)
    if answer.status >= 500:
        raise EngineUnreachableError(f"{http.url}{path}: {answer.message}", refused=False)
    if not answer.ok or not isinstance(answer.content, dict):
        raise EngineError(f"{http.url}{path}: {answer.message}")
    return answer
