"""vLLM's HTTP contract over a contract engine: release 0.32 with VLLM_SERVER_DEV_MODE=1 and --enable-scale-out.

Its distributed update is written from vLLM's source: the build for CPUs has no back end for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

from tests.support.contract_engine import ContractEngine, EngineRequest, Standing
from tests.support.contract_http import ContractServer, Handler, json_of, until
from tests.support.contract_model import VOCABULARY, ContractWeightsError

PREFIX = "generate-tokens-"
BLOCK = 16
_WORDS = {"abort": Standing.ABORT, "wait": Standing.KEEP, "keep": Standing.KEEP}


class ContractVLLM(ContractServer):
    """A server that behaves like vLLM.

    Args:
        new_engine: Makes the engine of each start.
        log_probs_mode: As --logprobs-mode.
        api_key: What callers must show.
    """

    def __init__(
        self,
        new_engine: Callable[[], ContractEngine],
        *,
        log_probs_mode: str = "raw_logprobs",
        api_key: str | None = None,
    ) -> None:
        super().__init__(new_engine, api_key=api_key)
        self._mode = log_probs_mode
        self.updating = False
        self.group: dict[str, Any] | None = None
        self.level = 0
        self.started = 0.0

    def reset(self) -> None:
        """See `ContractServer`."""
        self.updating, self.group, self.level, self.started = False, None, 0, time.time()

    def routes(self) -> dict[str, Handler]:
        """See `ContractServer`."""
        return {
            "GET /health": self._health,
            "GET /metrics": self._metrics,
            "GET /server_info": self._server_info,
            "GET /weight_info": self._weight_info,
            "GET /is_paused": self._is_paused,
            "POST /inference/v1/generate": self._generate,
            "POST /abort_requests": self._abort,
            "POST /pause": self._pause,
            "POST /resume": self._resume,
            "POST /reset_prefix_cache": self._reset,
            "POST /collective_rpc": self._rpc,
            "POST /update_weight_version": self._relabel,
            "POST /init_weight_transfer_engine": self._init_transfer,
            "POST /start_weight_update": self._start_update,
            "POST /update_weights": self._update,
            "POST /finish_weight_update": self._finish_update,
            "POST /sleep": self._sleep,
            "POST /wake_up": self._wake,
        }

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()  # Also of a paused one.

    async def _metrics(self, request: web.Request) -> web.Response:
        engine, labels = self.engine, '{engine="0",model_name="contract"}'
        share = engine.kv_tokens_used / (4 * engine.context_length)
        lines = (
            "# TYPE process_start_time_seconds gauge",
            f"process_start_time_seconds {self.started}",
            f"vllm:num_requests_running{labels} {float(len(engine.running))}",
            f"vllm:num_requests_waiting{labels} {float(len(engine.waiting))}",
            f"vllm:kv_cache_usage_perc{labels} {share}",
        )
        return web.Response(text="\n".join(lines) + "\n")

    async def _server_info(self, request: web.Request) -> web.Response:
        config = {
            "model_config": {
                "model": self.engine.model_path,
                "max_model_len": self.engine.context_length,
                "logprobs_mode": self._mode,
                "skip_tokenizer_init": False,
                "enable_sleep_mode": True,
            },
            "cache_config": {
                "num_gpu_blocks": 4 * self.engine.context_length // BLOCK,
                "block_size": BLOCK,
                "enable_prefix_caching": True,
            },
            "scheduler_config": {"max_num_seqs": self.engine.most_running},
        }
        return web.json_response({"vllm_config": config, "vllm_env": {}, "system_env": {}})

    async def _weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.engine.label})

    async def _is_paused(self, request: web.Request) -> web.Response:
        return web.json_response({"is_paused": self.engine.standing is not Standing.NOT})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await json_of(request)
        tokens, context = body["token_ids"], self.engine.context_length
        if len(tokens) + body["sampling_params"]["max_tokens"] > context:
            return _problem(f"This model's maximum context length is {context} tokens.")
        if any(token >= VOCABULARY for token in tokens):
            return _problem("Token id is out of vocabulary")
        live = _request_of(body)
        if not self.engine.submit(live):
            return _problem("The request queue is full.", 503)
        try:
            await live.ended.wait()
            return web.json_response({"choices": [self._choice(live, body)], "usage": _usage(live)})
        finally:
            if not live.finish:
                self.engine.abort(live)

    def _choice(self, live: EngineRequest, body: dict[str, Any]) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "token_ids": list(live.output),
            "finish_reason": live.finish or None,
        }
        if live.finish:
            choice["weight_versions"] = [{"version": v, "start": b, "end": e} for v, b, e in live.spans]
        most = body["sampling_params"].get("logprobs")
        if most is not None:
            processed = self._mode == "processed_logprobs"
            content = []
            for each in live.drawn:
                tops = np.sort(each.raw)[::-1][: max(most, 0)].tolist()
                own = each.sampled if processed else float(each.raw[each.token])
                content.append({"logprob": own, "top_logprobs": [{"logprob": top} for top in tops]})
            choice["logprobs"] = {"content": content}
        return choice

    async def _abort(self, request: web.Request) -> web.Response:
        ids = (await json_of(request)).get("request_ids") or []
        for request_id in ids:
            if (live := self.engine.live(request_id)) is not None:
                self.engine.abort(live)
        return web.json_response({"status": "aborted", "aborted": len(ids)})

    async def _pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort")
        if mode == "wait":
            await until(lambda: self.engine.idle)
        if mode == "abort":
            self.engine.abort_all()
        self.engine.standing = _WORDS[mode]
        return web.json_response({"status": "paused"})

    async def _resume(self, request: web.Request) -> web.Response:
        self.engine.standing = Standing.NOT
        return web.json_response({"status": "resumed"})

    async def _reset(self, request: web.Request) -> web.Response:
        if request.query.get("reset_running_requests") == "true":
            self.engine.retract()
        success = not self.engine.running
        if success:
            self.engine.forget()
        return web.json_response({"success": success})

    async def _rpc(self, request: web.Request) -> web.Response:
        body = await json_of(request)
        if body["method"] != "reload_weights":
            return _problem("no such method", 500)
        try:
            self.engine.load(Path(body["kwargs"]["weights_path"]))
        except ContractWeightsError as error:
            return _problem(str(error), 500)
        return web.json_response({"results": [None]})

    async def _relabel(self, request: web.Request) -> web.Response:
        self.engine.label = (await json_of(request))["new_version"]
        return web.json_response({"success": True, "new_version": self.engine.label})

    async def _init_transfer(self, request: web.Request) -> web.Response:
        if self.group is not None:
            return _problem("weight transfer engine is initialized already", 500)
        self.group = (await json_of(request))["init_info"]
        return web.json_response({"message": "Weight transfer initialized"})

    async def _start_update(self, request: web.Request) -> web.Response:
        self.updating = True
        return web.json_response({"message": "Weight update started"})

    async def _update(self, request: web.Request) -> web.Response:
        if not self.updating or self.group is None:
            return _problem("no weight update was started", 500)
        # A tensor's name is the path of its weights: a group of torch.distributed there is none here.
        info = (await json_of(request))["update_info"]
        if len(info["names"]) != len(info["dtype_names"]) or len(info["names"]) != len(info["shapes"]):
            return _problem("names, dtype_names and shapes differ in length", 500)
        self.engine.load(Path(info["names"][-1]))
        return web.json_response({"message": "Weights updated"})

    async def _finish_update(self, request: web.Request) -> web.Response:
        self.updating = False
        self.engine.label = (await json_of(request))["weight_version"] or self.engine.label
        return web.json_response({"message": "Weight update finished"})

    async def _sleep(self, request: web.Request) -> web.Response:
        self.level = int(request.query.get("level", "1"))
        self.engine.asleep = {"weights", "kv_cache"}
        self.engine.forget()
        if self.level > 1:
            self.engine.weights_seed = -1  # Without a reload it answers garbage, with HTTP 200.
        return web.json_response({"status": "sleeping", "level": self.level})

    async def _wake(self, request: web.Request) -> web.Response:
        self.engine.asleep -= set(request.query.getall("tags", ["weights", "kv_cache"]))
        return web.json_response({"status": "sleeping" if self.engine.asleep else "awake"})


def _problem(message: str, status: int = 400) -> web.Response:
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


def _usage(live: EngineRequest) -> dict[str, Any]:
    return {"prompt_tokens": len(live.prompt), "prompt_tokens_details": {"cached_tokens": live.cached}}


def _request_of(body: dict[str, Any]) -> EngineRequest:
    params = body["sampling_params"]
    return EngineRequest(
        request_id=PREFIX + body["request_id"],
        prompt=tuple(body["token_ids"]),
        max_new_tokens=params["max_tokens"],
        temperature=params.get("temperature", 1.0),
        top_k=max(params.get("top_k", 0), 0),
        top_p=params.get("top_p", 1.0),
        seed=params.get("seed"),
        stop_token_ids=frozenset(params.get("stop_token_ids") or ()),
        stop=tuple(params.get("stop") or ()),
        namespace=body.get("cache_salt") or "",
    )
