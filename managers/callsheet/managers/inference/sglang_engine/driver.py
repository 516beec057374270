"""SGLang behind the `EngineDriver` protocol."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import structlog
from callsheet.managers.inference.driver import (
    EngineError,
    EngineFailedError,
    GenerateRequest,
    OthersLoad,
    RequestRefusedError,
    Sampling,
    UpdateMode,
    WeightUpdate,
    WeightUpdateError,
)
from callsheet.managers.inference.http_engine.client import (
    LOOK_TIMEOUT_S,
    EngineHttp,
    EngineUnreachableError,
    HttpAnswer,
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
from callsheet.managers.inference.sglang_engine.server import SGLangServer, identity_of, read_server
from callsheet.managers.inference.sglang_engine.settings import SGLangSettings
from callsheet.managers.inference.weights import DiskWeights, GroupWeights, TensorSpec

# Requests and answers of SGLang's /generate.


def check_stops(sampling: Sampling) -> None:
    """Refuses what the server would do otherwise than asked.

    Raises:
        RequestRefusedError: It would go on beyond the stop tokens too.
    """
    if sampling.ignore_eos and sampling.stop_token_ids:
        message = "ignore_eos: with it SGLang ignores stop_token_ids as well; give only one of the two"
        raise RequestRefusedError("invalid_sampling", message)


def generate_body(live: LiveRequest, server: SGLangServer, how: Derivation, seed: int) -> dict[str, Any]:
    """The body of a request."""
    request = live.request
    body: dict[str, Any] = {
        "rid": live.server_id,
        "input_ids": list(request.prompt_token_ids),
        "sampling_params": _sampling(request, request.sampling, server, seed),
        "return_logprob": how in (Derivation.AS_TOLD, Derivation.OVER_TOP_K),
        "stream": False,
    }
    if how is Derivation.OVER_TOP_K:
        body["top_logprobs_num"] = request.sampling.top_k
    if request.kv_namespace:
        body["extra_key"] = request.kv_namespace
    return body


def _sampling(request: GenerateRequest, sampling: Sampling, server: SGLangServer, seed: int) -> dict[str, Any]:
    params = sampling_parameters(sampling) | {
        "max_new_tokens": new_tokens(request, server.bounds.limits),
        "top_k": sampling.top_k or -1,
        "skip_special_tokens": True,
        "no_stop_trim": True,
    }
    if server.deterministic:
        params["sampling_seed"] = seed
    return params


def reply_of(content: Any) -> Reply:
    """Reads an answer."""
    meta = content.get("meta_info") or {}
    return Reply(
        token_ids=tuple(int(token) for token in content.get("output_ids") or ()),
        finish_reason=(meta.get("finish_reason") or {}).get("type"),
        own=[entry[0] for entry in meta.get("output_token_logprobs") or ()],
        likeliest=[[entry[0] for entry in top or ()] for top in meta.get("output_top_logprobs") or ()],
        versions=meta.get("weight_versions"),
        cached_tokens=int(meta.get("cached_tokens") or 0),
        text=content.get("text"),
    )


def load_of(answer: Any) -> OthersLoad | None:
    """All that a server has, by the answer of /v1/loads, or of /get_load of older ones; None where it is neither."""
    ranks = answer.get("loads") if isinstance(answer, dict) else answer
    if not isinstance(ranks, list) or not all(isinstance(rank, dict) for rank in ranks):
        return None
    running = sum(_count(rank, "num_running_reqs") for rank in ranks)
    # The older call counts those that wait among all.
    waiting = sum(_count(rank, "num_waiting_reqs") for rank in ranks if "num_reqs" not in rank)
    everything = sum(_count(rank, "num_reqs") for rank in ranks)
    tokens = sum(_count(rank, "num_used_tokens") or _count(rank, "num_tokens") for rank in ranks)
    return OthersLoad(running + waiting + everything, tokens)


def _count(told: Mapping[str, Any], name: str) -> int:
    value = told.get(name)
    return value if isinstance(value, int) and value > 0 else 0


BUCKET_BYTES = 1 << 30
"""The most that a server is to receive before it loads it: it needs that much memory beside the model."""
_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "int8": 1, "uint8": 1}
END_TIMEOUT_S = 60.0


async def update_from_group(
    http: EngineHttp, source: GroupWeights, update: WeightUpdate, *, joined: set[str], flush: bool
) -> None:
    """Joins the group unless the server is in it, and takes all tensors in the order of the trainer's broadcasts.

    Args:
        http: Calls to the server.
        source: The group and what comes through it.
        update: The update.
        joined: Names of groups that the server is in; this one is added.
        flush: Whether the server is to forget its KV at the end; it must have no requests then.

    Raises:
        WeightUpdateError: A step failed.
        EngineUnreachableError: The server does not answer in time: a member of the group may be missing.
    """
    if source.group_name not in joined:
        await _join(http, source, update)
        joined.add(source.group_name)
    begun = await http.post("/begin_weight_update", {"selector": "all"}, timeout_s=update.timeout_s)
    sessions = begun.status != 404  # Older servers have none.
    if sessions and not _succeeded(begun):
        raise WeightUpdateError(f"begin: {begun.message}", intact=True)
    try:
        await _receive(http, source, update, flush=flush)
    except EngineError:
        # Who failed in the middle of it is no reliable member any longer.
        joined.discard(source.group_name)
        raise
    finally:
        if sessions:
            ended = await http.post("/end_weight_update", {}, timeout_s=END_TIMEOUT_S)
            if not _succeeded(ended):
                log.warning("weight update did not end", reason=ended.message)
    if sessions and not _succeeded(ended):
        raise WeightUpdateError(f"end: {ended.message}")


async def _join(http: EngineHttp, source: GroupWeights, update: WeightUpdate) -> None:
    body = {
        "master_address": source.address,
        "master_port": source.port,
        "rank_offset": source.rank,
        "world_size": source.world_size,
        "group_name": source.group_name,
        "backend": source.backend,
    }
    answer = await http.post("/init_weights_update_group", body, timeout_s=update.timeout_s)
    if not _succeeded(answer):
        raise WeightUpdateError(f"group {source.group_name!r}: {answer.message}", intact=True)


async def _receive(http: EngineHttp, source: GroupWeights, update: WeightUpdate, *, flush: bool) -> None:
    buckets = list(buckets_of(source.tensors))
    for number, bucket in enumerate(buckets, 1):
        last = number == len(buckets)
        body = {
            "names": [tensor.name for tensor in bucket],
            "dtypes": [tensor.dtype for tensor in bucket],
            "shapes": [list(tensor.shape) for tensor in bucket],
            "group_name": source.group_name,
            "flush_cache": flush and last,
            "abort_all_requests": False,
        }
        if last:
            # Before the last tensor the weights are of no version.
            body["weight_version"] = label_of(update.version)
        answer = await http.post("/update_weights_from_distributed", body, timeout_s=update.timeout_s)
        if not _succeeded(answer):
            raise WeightUpdateError(f"bucket {number} of {len(buckets)}: {answer.message}")


def buckets_of(tensors: Sequence[TensorSpec], most_bytes: int = BUCKET_BYTES) -> Iterator[list[TensorSpec]]:
    """Splits tensors into runs of at most so many bytes, in their order; a larger one is a run of its own."""
    bucket: list[TensorSpec] = []
    size = 0
    for tensor in tensors:
        own = math.prod(tensor.shape) * _BYTES.get(tensor.dtype, 2)
        if bucket and size + own > most_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += own
    if bucket:
        yield bucket


def _succeeded(answer: HttpAnswer) -> bool:
    return answer.ok and answer.field("success") is not False


log = structlog.get_logger(__name__)

PAUSE_TIMEOUT_S = 60.0
CHECKSUM_TIMEOUT_S = 120.0
PAIR_REQUEST_TIMEOUT_S = 600.0
"""Of a pair for prefill and decode of which one half is gone, the other keeps requests without a word."""


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
        """What the server tells of its load, if it does; it lives even where it does not."""
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
