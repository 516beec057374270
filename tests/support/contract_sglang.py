"""SGLang's HTTP contract over a contract engine, as recorded from release 0.5.23 and, where told, from 0.5.15."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.support.contract_engine import ContractEngine, DeadError, EngineRequest, Standing
from tests.support.contract_http import ContractServer, Handler, json_of, until
from tests.support.contract_model import VOCABULARY, ContractWeightsError

NEWEST = "0.5.23"
TAGS = ("weights", "kv_cache", "cuda_graph")


class ContractSGLang(ContractServer):
    """A server that behaves like SGLang.

    Args:
        new_engine: Makes the engine of each start.
        version: "0.5.23", or "0.5.15".
        memory_saver: Whether it was started with --enable-memory-saver.
        weights_backup: Whether with --enable-weights-cpu-backup.
        api_key: What callers must show.
        starting_answers: How many calls it answers with 503 before it is ready.
        half: "prefill" or "decode" for one half of a pair. It dies of pauses that keep requests, and keeps requests
            without a word while `partner` is False.
    """

    def __init__(
        self,
        new_engine: Callable[[], ContractEngine],
        *,
        version: str = NEWEST,
        memory_saver: bool = True,
        weights_backup: bool = False,
        api_key: str | None = None,
        starting_answers: int = 0,
        half: str = "null",
    ) -> None:
        super().__init__(new_engine, api_key=api_key)
        self._version = version
        self._modern = version == NEWEST
        self._memory_saver = memory_saver
        self._weights_backup = weights_backup
        self._starting = starting_answers
        self._half = half
        self.partner = True
        self.gpu = True
        self.updating = False
        self.groups: set[str] = set()
        self.received: list[list[str]] = []
        self.counted: Counter[str] = Counter()
        self._old_loads = {"num_running_reqs": 0, "num_waiting_reqs": 0, "num_used_tokens": 0}

    def reset(self) -> None:
        """See `ContractServer`."""
        self.updating = False
        self.groups.clear()
        self.received.clear()

    def routes(self) -> dict[str, Handler]:
        """See `ContractServer`."""
        routes: dict[str, Handler] = {
            "GET /get_server_info": self._server_info,
            "GET /get_model_info": self._model_info,
            "POST /generate": self._generate,
            "POST /abort_request": self._abort,
            "POST /pause_generation": self._pause,
            "POST /continue_generation": self._continue,
            "GET /v1/loads": self._loads,
            "GET /metrics": self._metrics,
            "POST /update_weights_from_disk": self._from_disk,
            "POST /update_weights_from_tensor": self._from_tensor,
            "POST /init_weights_update_group": self._init_group,
            "POST /update_weights_from_distributed": self._from_group,
            "POST /update_weight_version": self._relabel,
            "POST /release_memory_occupation": self._release,
            "POST /resume_memory_occupation": self._resume_memory,
        }
        if self._modern:
            routes |= {
                "GET /ready": self._ready,
                "GET /server_info": self._server_info,
                "GET /model_info": self._model_info,
                "POST /begin_weight_update": self._begin,
                "POST /end_weight_update": self._end,
                "POST /weights_checker": self._check_weights,
            }
        return routes

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.engine.standing is Standing.NOT else 503)

    async def _server_info(self, request: web.Request) -> web.Response:
        if self._starting > 0:
            self._starting -= 1
            return web.json_response({"error": "starting"}, status=503)
        told = {
            "version": self._version,
            "model_path": self.engine.model_path,
            "context_length": self.engine.context_length,
            "max_running_requests": self.engine.most_running,
            "max_total_num_tokens": 4 * self.engine.context_length,
            "max_req_input_len": self.engine.context_length - 6,
            "device": "cpu",
            "tp_size": 1,
            "pp_size": 1,
            "dp_size": 1,
            "enable_dp_attention": False,
            "startup_time": {"tokenizer_e2e": self.engine.startup},
            "enable_memory_saver": self._memory_saver,
            "enable_weights_cpu_backup": self._weights_backup,
            "enable_deterministic_inference": self.engine.heeds_seeds,
            "disable_radix_cache": False,
            "disaggregation_mode": self._half,
            "internal_states": [{"effective_max_running_requests_per_dp": self.engine.most_running}],
        }
        return web.json_response(told)

    async def _model_info(self, request: web.Request) -> web.Response:
        told = {"model_path": self.engine.model_path, "is_generation": True, "weight_version": self.engine.label}
        return web.json_response(told)

    async def _loads(self, request: web.Request) -> web.Response:
        # What it tells is always that of the call before, and stands still under a pause.
        told = self._old_loads
        if self.engine.standing is Standing.NOT:
            self._old_loads = {
                "num_running_reqs": len(self.engine.running),
                "num_waiting_reqs": len(self.engine.waiting),
                "num_used_tokens": self.engine.kv_tokens_used,
            }
        return web.json_response({"version": self._version, "loads": [{"dp_rank": 0, **told}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        # Prompts are counted whole, with what was cached, once their requests have ended.
        return web.Response(text="".join(f"sglang:{name}_total {count}\n" for name, count in self.counted.items()))

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await json_of(request)
        await until(lambda: self.engine.standing is Standing.NOT)
        problem = self._problem(body)
        if problem:
            return web.json_response({"error": {"message": problem}}, status=400)
        if any(token >= VOCABULARY for token in body["input_ids"]):
            raise DeadError
        live = _request_of(body)
        await until(lambda: self.partner)
        if not self.engine.submit(live):
            return web.json_response({"error": {"message": "The request queue is full."}}, status=503)
        try:
            await live.ended.wait()
            self.counted.update(
                prompt_tokens=len(live.prompt),
                cached_tokens=live.cached,
                generation_tokens=len(live.drawn),
                num_requests=1,
            )
            return web.json_response(self._told(live, body))
        finally:
            # A connection that ends takes its request with it.
            if not live.finish:
                self.engine.abort(live)

    def _problem(self, body: dict[str, Any]) -> str:
        tokens, new = body["input_ids"], body["sampling_params"]["max_new_tokens"]
        context = self.engine.context_length
        if not tokens:
            return "input_ids cannot be empty."
        if len(tokens) >= context:
            return f"The input ({len(tokens)} tokens) is longer than the model's context length ({context} tokens)."
        if len(tokens) + new > context:
            return f"Requested token count exceeds the model's maximum context length of {context} tokens."
        if len(tokens) >= context - 6:
            return f"Input length ({len(tokens)} tokens) exceeds the maximum allowed length ({context - 6} tokens)."
        if self.engine.live(body["rid"]) is not None:
            return f"Duplicate request ID detected: {body['rid']}"
        return ""

    def _told(self, live: EngineRequest, body: dict[str, Any]) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": live.request_id,
            "finish_reason": {"type": live.finish} if live.finish else None,
            "prompt_tokens": len(live.prompt),
            "completion_tokens": len(live.drawn),
            "cached_tokens": live.cached,
            "weight_version": self.engine.label,
        }
        if self._modern and live.finish:
            meta["weight_versions"] = [{"version": v, "start": b, "end": e} for v, b, e in live.spans]
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [[float(each.scaled[each.token]), each.token, None] for each in live.drawn]
        if most := body.get("top_logprobs_num"):
            tops = [sorted(each.scaled.tolist(), reverse=True)[:most] for each in live.drawn]
            meta["output_top_logprobs"] = [[[told, -1, None] for told in top] for top in tops]
        return {"text": live.text, "output_ids": list(live.output), "meta_info": meta}

    async def _abort(self, request: web.Request) -> web.Response:
        body = await json_of(request)
        everything = body.get("abort_all")
        for live in [*self.engine.running, *self.engine.waiting]:
            if everything or live.request_id.startswith(body["rid"]):
                await self._abort_one(live)
        return web.Response()

    async def _abort_one(self, live: EngineRequest) -> None:
        if live in self.engine.waiting:
            # Of a request that was retracted the tokens are gone.
            live.drawn.clear()
            live.versions.clear()
        elif self.engine.standing is Standing.KEEP:
            # It ends with its next token, and so not before the pause does.
            live.max_new_tokens = 0
            return
        self.engine.abort(live)

    async def _pause(self, request: web.Request) -> web.Response:
        mode = (await json_of(request)).get("mode", "abort")
        words = {"abort": Standing.ABORT, "retract": Standing.RETRACT, "in_place": Standing.KEEP}
        if self._half != "null" and mode != "abort":
            raise DeadError
        self.engine.standing = words[mode]
        if mode == "abort":
            self.engine.abort_all()
        if mode == "retract":
            self.engine.retract()
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, request: web.Request) -> web.Response:
        for live in list(self.engine.running):
            if not live.max_new_tokens:
                self.engine.abort(live)
        self.engine.standing = Standing.NOT
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    def _forget(self) -> bool:
        if self.engine.running or (self.engine.waiting and self.engine.standing is not Standing.RETRACT):
            return False
        if self.engine.waiting and not self._modern:
            raise DeadError
        self.engine.forget()
        return True

    async def _drained(self) -> None:
        """Without a pause an update waits for all requests."""
        await until(lambda: self.engine.standing is not Standing.NOT or self.engine.idle)

    async def _from_disk(self, request: web.Request) -> web.Response:
        body = await json_of(request)
        await self._drained()
        place = Path(body["model_path"])
        if not (place / "config.json").exists():
            return _failed(f"Failed to get weights iterator: Repo id must use alphanumeric chars: '{place}'.")
        try:
            self.engine.load(place, body.get("weight_version"))
        except ContractWeightsError as error:
            return _failed(f"Failed to update weights: {error}. Rolling back to original weights.")
        return self._flushed(body)

    def _flushed(self, body: dict[str, Any]) -> web.Response:
        if body.get("flush_cache", True) and not self._forget():
            return _failed("Weights were updated, but the cache was not flushed because requests are still running.")
        return web.json_response({"success": True, "message": "Succeeded.", "num_paused_requests": 0})

    async def _check_weights(self, request: web.Request) -> web.Response:
        action = (await json_of(request)).get("action")
        if action != "checksum" or not self.gpu:
            return web.json_response({"success": False, "message": "Torch not compiled with CUDA enabled"}, status=400)
        checksum = hashlib.sha256(str(self.engine.weights_seed).encode()).hexdigest()
        told = {"success": True, "message": "Success.", "ranks": [], "per_engine_checksum": checksum}
        return web.json_response(told)

    async def _from_tensor(self, request: web.Request) -> web.Response:
        # Tensors come by shared memory, and so from the server's own family of processes alone.
        raise DeadError

    async def _init_group(self, request: web.Request) -> web.Response:
        body = await json_of(request)
        if body["group_name"] in self.groups:
            return _failed(f"group {body['group_name']} exists")
        self.groups.add(body["group_name"])
        return web.json_response({"success": True, "message": "ok"})

    async def _begin(self, request: web.Request) -> web.Response:
        if self.updating:
            return _failed("a weight-update session is already open; call end_weight_update() first")
        self.updating = True
        return web.json_response({"success": True, "message": "Success"})

    async def _end(self, request: web.Request) -> web.Response:
        if not self.updating:
            return _failed("no weight-update session is open; call begin_weight_update() first")
        self.updating = False
        return web.json_response({"success": True, "message": "Success"})

    async def _from_group(self, request: web.Request) -> web.Response:
        body = await json_of(request)
        await self._drained()
        if self._modern and not self.updating:
            return _failed("update_weights_from_distributed must run between begin and end_weight_update()")
        if body["group_name"] not in self.groups:
            return _failed(f"Failed to receive weights: no group {body['group_name']}")
        self.received.append(body["names"])
        # A tensor's name is the path of its weights: a group of torch.distributed there is none here.
        self.engine.load(Path(body["names"][-1]), body.get("weight_version"))
        return self._flushed(body)

    async def _relabel(self, request: web.Request) -> web.Response:
        body = await json_of(request)
        if body.get("abort_all_requests", True):
            self.engine.abort_all()
        self.engine.label = body["new_version"]
        return web.json_response({"success": True, "new_version": body["new_version"]})

    async def _release(self, request: web.Request) -> web.Response:
        body = await json_of(request)
        paused = self.engine.standing is not Standing.NOT
        if self.engine.running or (self.engine.waiting and not paused):
            raise DeadError
        tags = body.get("tags") or TAGS
        self.engine.asleep.update(tags)
        if "weights" in tags and not self._weights_backup:
            self.engine.weights_seed = -1  # What comes back is garbage.
        if "kv_cache" in tags:
            self.engine.forget()
        return web.json_response(None)

    async def _resume_memory(self, request: web.Request) -> web.Response:
        for tag in (await json_of(request)).get("tags") or TAGS:
            if tag not in self.engine.asleep:
                raise DeadError
            self.engine.asleep.remove(tag)
        return web.json_response(None)


def _failed(message: str) -> web.Response:
    return web.json_response({"success": False, "message": message, "num_paused_requests": 0}, status=400)


def _request_of(body: dict[str, Any]) -> EngineRequest:
    params = body["sampling_params"]
    ignore = params.get("ignore_eos", False)
    return EngineRequest(
        request_id=body["rid"],
        prompt=tuple(body["input_ids"]),
        max_new_tokens=params.get("max_new_tokens", 128),
        temperature=params.get("temperature", 1.0),
        top_k=max(params.get("top_k", -1), 0),
        top_p=params.get("top_p", 1.0),
        seed=params.get("sampling_seed"),
        stop_token_ids=frozenset(() if ignore else params.get("stop_token_ids") or ()),
        stop=tuple(params.get("stop") or ()),
        namespace=body.get("extra_key") or "",
    )
