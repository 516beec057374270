"""vLLM as a server of hosted models."""

from __future__ import annotations

import math
from collections.abc import Sequence

from callsheet.managers.inference.engine_errors import EngineError
from callsheet.managers.inference.http_engine.client import LOOK_TIMEOUT_S, EngineHttp, EngineUnreachableError
from callsheet.managers.inference.vllm_engine.server import identity_of as vllm_identity_of
from callsheet.managers.reward.hosted.servers.server import MEMORY_TIMEOUT_S, RewardServer, obeyed, succeeded
from typing_extensions import override

# Values that differ by more are not the same value.
_SAME = 1e-6


class VLLMRewardServer(RewardServer):
    """Drives a server that was started with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode.

    Level 1 keeps the weights in host memory. Level 2 drops them, and the server would answer garbage with HTTP 200
    unless they are read anew before the KV cache comes back.

    Args:
        http: Calls to the server.
        sleep_level: 1 or 2.
        can_sleep: Whether it must be able to.
    """

    def __init__(self, http: EngineHttp, *, sleep_level: int = 1, can_sleep: bool = True) -> None:
        super().__init__(http)
        self._level = sleep_level
        self._can_sleep = can_sleep
        self._tells_logits: bool | None = None

    @override
    async def identity(self) -> str:
        health = await self.http.get("/health", timeout_s=LOOK_TIMEOUT_S)
        if not health.ok:
            # The API answers for an engine that has died.
            raise EngineUnreachableError(f"{self.http.url}/health: {health.message}", refused=True)
        return await vllm_identity_of(self.http)

    @override
    async def asleep(self) -> bool:
        answer = await self.http.get("/is_sleeping")
        if not answer.ok:
            if not self._can_sleep:
                return False
            rule = "must be started with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode, or be pinned"
            raise EngineError(f"{self.http.url}/is_sleeping: {answer.message}: {rule}")
        return bool(answer.field("is_sleeping"))

    @override
    async def sleep(self) -> None:
        params = {"level": str(self._level)}
        obeyed(await self.http.post("/sleep", params=params, timeout_s=MEMORY_TIMEOUT_S))

    @override
    async def wake(self, *, reload: bool) -> None:
        if not reload and self._level == 1:
            await self._wake()
            return
        await self._wake("weights")
        await self.reload()
        await self._wake("kv_cache")

    @override
    async def reload(self) -> None:
        path = await self.model_path()
        body = {"method": "reload_weights", "kwargs": {"weights_path": path} if path else {}}
        obeyed(await self.http.post("/collective_rpc", body, timeout_s=MEMORY_TIMEOUT_S))

    @override
    async def model_path(self) -> str:
        info = await self.http.get("/server_info", {"config_format": "json"})
        config = (info.field("vllm_config") or {}).get("model_config") or {}
        return str(config.get("model") or "")

    @override
    async def logits(self, tokens: Sequence[int]) -> list[float]:
        if self._tells_logits is None:
            # Older servers pass over what they do not know, and so give the same twice.
            bent, straight = await self._classes(tokens, bend=True), await self._classes(tokens, bend=False)
            self._tells_logits = any(abs(one - other) > _SAME for one, other in zip(bent, straight, strict=True))
        values = await self._classes(tokens, bend=not self._tells_logits)
        if self._tells_logits:
            return values
        if len(values) > 1:
            raise EngineError(f"{self.http.url}: gives only probabilities of {len(values)} labels: no logit is known")
        return [_logit(value) for value in values]

    @override
    async def log_probs(self, before: Sequence[int], tokens: Sequence[int]) -> list[float | None]:
        body = {
            "model": await self.served_name(),
            "prompt": [*before, *tokens],
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": 0,
        }
        answer = succeeded(await self.http.post("/v1/completions", body, timeout_s=None))
        told = answer.content["choices"][0].get("prompt_logprobs") or []
        if len(told) != len(before) + len(tokens):
            raise EngineError(f"prompt_logprobs are of {len(told)} tokens: must be of {len(before) + len(tokens)}")
        looked_at = zip(tokens, told[len(before) :], strict=True)
        return [None if each is None else float(each[str(token)]["logprob"]) for token, each in looked_at]

    async def _wake(self, tag: str = "") -> None:
        obeyed(await self.http.post("/wake_up", params={"tags": tag} if tag else None, timeout_s=MEMORY_TIMEOUT_S))

    async def _classes(self, tokens: Sequence[int], *, bend: bool) -> list[float]:
        body = {"model": await self.served_name(), "input": list(tokens), "use_activation": bend}
        answer = succeeded(await self.http.post("/classify", body, timeout_s=None))
        return [float(value) for value in answer.content["data"][0]["probs"]]


def _logit(probability: float) -> float:
    """Inverts a sigmoid; infinite for 0 and 1, to which large logits round."""
    if not 0.0 < probability < 1.0:
        return math.inf if probability >= 1.0 else -math.inf
    return math.log(probability) - math.log1p(-probability)
