"""What the reward manager asks of an inference server: sleep and wake, scores, log-probabilities and texts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from callsheet.managers.inference.engine_errors import EngineError
from callsheet.managers.inference.http_engine.client import (
    LOOK_TIMEOUT_S,
    EngineHttp,
    EngineUnreachableError,
    HttpAnswer,
)
from callsheet.managers.inference.http_engine.requests import error_of
from callsheet.managers.inference.sglang_engine.server import identity_of as sglang_identity_of
from callsheet.managers.inference.vllm_engine.server import identity_of as vllm_identity_of
from callsheet.managers.models.completions import text_of, told_tokens
from callsheet.managers.reward.hosted.model_spec import ModelTask
from typing_extensions import override

MEMORY_TIMEOUT_S = 300.0
"""The longest that a sleep, a wake or a reload may take."""
# Ids that every vocabulary has.
_CANARIES = ((7, 11, 23, 5, 42, 31), (60, 9, 14, 37), (20, 45, 8, 52, 19, 33, 12))


class RewardServer(ABC):
    """One server with one model. Must be used from one event loop.

    Args:
        http: Calls to it; belongs to this object from now on.
    """

    def __init__(self, http: EngineHttp) -> None:
        self.http = http
        self._served_name = ""

    @abstractmethod
    async def identity(self) -> str:
        """Tells one start of the server from another.

        Raises:
            EngineError: It does not answer, or is no such server.
        """

    @abstractmethod
    async def asleep(self) -> bool:
        """Whether it was found asleep. Asked once, after `identity` and before everything else.

        Raises:
            EngineError: It does not answer, or was not started so that it can sleep.
        """

    @abstractmethod
    async def sleep(self) -> None:
        """Gives the memory of the weights and the KV cache back; the server must have no requests.

        Raises:
            EngineError: It failed.
        """

    @abstractmethod
    async def wake(self, *, reload: bool) -> None:
        """Takes the memory again.

        Args:
            reload: Whether to read the weights from their source, although the server may have kept them.

        Raises:
            EngineError: It failed.
        """

    @abstractmethod
    async def reload(self) -> None:
        """Reads the weights from their source; the server is awake.

        Raises:
            EngineError: It failed.
        """

    @abstractmethod
    async def model_path(self) -> str:
        """Where its model lies, as it sees it; empty if it does not tell.

        Raises:
            EngineError: It does not answer.
        """

    @abstractmethod
    async def logits(self, tokens: Sequence[int]) -> list[float]:
        """The raw logits of a sequence classification head, one for each label.

        Raises:
            RequestRefusedError: The tokens can never be scored.
            EngineError: It failed.
        """

    @abstractmethod
    async def log_probs(self, before: Sequence[int], tokens: Sequence[int]) -> list[float | None]:
        """The log-probability of each token after those before it; none of the first where nothing is before it.

        Raises:
            RequestRefusedError: The tokens can never be looked at.
            EngineError: It failed.
        """

    async def text(self, asked: str, max_new_tokens: int) -> tuple[str, str, dict[str, int]]:
        """The greedy answer to a message, by the server's own chat template.

        Returns:
            The text, why it is not the whole answer (empty if it is), and its tokens as far as they are told.

        Raises:
            RequestRefusedError: The message can never be answered.
            EngineError: It failed.
        """
        body = {
            "model": await self.served_name(),
            "messages": [{"role": "user", "content": asked}],
            "temperature": 0,
            "max_tokens": max_new_tokens,
        }
        answer = succeeded(await self.http.post("/v1/chat/completions", body, timeout_s=None))
        return *text_of(answer.content), told_tokens(answer.content)

    async def served_name(self) -> str:
        """What the server calls its model.

        Raises:
            EngineError: It does not tell.
        """
        if not self._served_name:
            models = succeeded(await self.http.get("/v1/models")).field("data") or []
            if not models:
                raise EngineError(f"{self.http.url}/v1/models: names no model")
            self._served_name = str(models[0]["id"])
        return self._served_name

    async def canary(self, task: ModelTask) -> list[float]:
        """What fixed inputs give: any change of the weights shows in it.

        Raises:
            EngineError: It failed.
        """
        if task is ModelTask.CLASSIFY:
            return [value for tokens in _CANARIES for value in await self.logits(tokens)]
        told = [value for tokens in _CANARIES for value in await self.log_probs(tokens[:2], tokens[2:])]
        return [value for value in told if value is not None]


def succeeded(answer: HttpAnswer) -> HttpAnswer:
    """Returns an answer that tells of success.

    Raises:
        EngineError: It does not: as `error_of` has it.
    """
    if not answer.ok:
        raise error_of(answer)
    return answer


def obeyed(answer: HttpAnswer) -> None:
    """Checks the answer to an order.

    Raises:
        EngineError: It was not carried out.
    """
    if not answer.ok or answer.field("success") is False:
        raise EngineError(answer.message)


# vLLM as a server of hosted models.

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
    """What a sigmoid made a probability of; infinite where it is 0 or 1, as large logits round to."""
    if not 0.0 < probability < 1.0:
        return math.inf if probability >= 1.0 else -math.inf
    return math.log(probability) - math.log1p(-probability)


# SGLang as a server of hosted models.

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
