"""SGLang as a server of hosted models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from callsheet.managers.inference.engine_errors import EngineError
from callsheet.managers.inference.http_engine.client import EngineHttp, HttpAnswer
from callsheet.managers.inference.sglang_engine.server import identity_of as sglang_identity_of
from callsheet.managers.reward.hosted.servers.server import MEMORY_TIMEOUT_S, RewardServer, obeyed, succeeded
from typing_extensions import override

# In one call: a manager that died between two would leave a server half asleep, which its successor would kill.
_MEMORY = {"tags": ["kv_cache", "weights"]}


class SGLangRewardServer(RewardServer):
    """Drives a server that was started with --enable-memory-saver, and best with --enable-weights-cpu-backup.

    A server dies when it is asked for memory that it never gave back, or gives memory back while requests run. So
    its state is kept here, and it stands still before it gives anything back.

    Args:
        http: Calls to the server.
        can_sleep: Whether it must be able to.
    """

    def __init__(self, http: EngineHttp, *, can_sleep: bool = True) -> None:
        super().__init__(http)
        self._can_sleep = can_sleep
        self._info: dict[str, Any] = {}
        self._released = False

    @override
    async def identity(self) -> str:
        self._info = (await self._either("/server_info", "/get_server_info")).content
        return sglang_identity_of(self._info)

    @override
    async def asleep(self) -> bool:
        if self._can_sleep and not self._info.get("enable_memory_saver"):
            raise EngineError(f"{self.http.url}: must be started with --enable-memory-saver, or be pinned")
        ready = await self.http.get("/ready")
        # It does not tell what it gave back. Whoever manages its sleep leaves it paused only then.
        self._released = self._can_sleep and ready.status == 503
        return self._released

    @override
    async def sleep(self) -> None:
        # Requests of others that wait are kept that way; those of this manager have all ended.
        obeyed(await self.http.post("/pause_generation", {"mode": "retract"}, timeout_s=MEMORY_TIMEOUT_S))
        if not self._released:
            obeyed(await self.http.post("/release_memory_occupation", _MEMORY, timeout_s=MEMORY_TIMEOUT_S))
            self._released = True

    @override
    async def wake(self, *, reload: bool) -> None:
        if self._released:
            obeyed(await self.http.post("/resume_memory_occupation", _MEMORY, timeout_s=MEMORY_TIMEOUT_S))
            self._released = False
        if reload or not self._info.get("enable_weights_cpu_backup"):
            await self.reload()
        obeyed(await self.http.post("/continue_generation"))

    @override
    async def reload(self) -> None:
        # The cache is empty after a sleep, and older servers die of a flush while they are paused.
        body = {"model_path": await self.model_path(), "flush_cache": False, "abort_all_requests": False}
        obeyed(await self.http.post("/update_weights_from_disk", body, timeout_s=MEMORY_TIMEOUT_S))

    @override
    async def model_path(self) -> str:
        return str((await self._either("/model_info", "/get_model_info")).field("model_path") or "")

    @override
    async def logits(self, tokens: Sequence[int]) -> list[float]:
        # /v1/classify would give softmax values, which are always 1 for a head with one label.
        answer = succeeded(await self.http.post("/classify", {"input_ids": [list(tokens)]}, timeout_s=None))
        told = answer.content[0] if isinstance(answer.content, list) else answer.content
        return [float(value) for value in told["embedding"]]

    @override
    async def log_probs(self, before: Sequence[int], tokens: Sequence[int]) -> list[float | None]:
        body = {
            "input_ids": [*before, *tokens],
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            "return_logprob": True,
            "logprob_start_len": max(len(before) - 1, 0),
        }
        answer = succeeded(await self.http.post("/generate", body, timeout_s=None))
        told = (answer.content.get("meta_info") or {}).get("input_token_logprobs") or []
        looked_at = told[-len(tokens) :]
        if [entry[1] for entry in looked_at] != list(tokens):
            raise EngineError(
                f"input_token_logprobs are of {[entry[1] for entry in told]}: must end with the tokens asked"
            )
        return [None if entry[0] is None else float(entry[0]) for entry in looked_at]

    async def _either(self, path: str, former: str) -> HttpAnswer:
        answer = await self.http.get(path)
        if answer.status == 404:
            answer = await self.http.get(former)
        if not answer.ok or not isinstance(answer.content, dict):
            raise EngineError(f"{self.http.url}{path}: {answer.message}")
        return answer
