"""Requests of the reward manager to an inference server: sleep and wake, scores, log-probabilities and texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from callsheet.managers.inference.engine_errors import EngineError
from callsheet.managers.inference.http_engine.client import (
    EngineHttp,
    HttpAnswer,
)
from callsheet.managers.inference.http_engine.requests import error_of
from callsheet.managers.models.completions import text_of, told_tokens
from callsheet.managers.reward.hosted.model_spec import ModelTask

# Ids that every vocabulary has.
_CANARIES = ((7, 11, 23, 5, 42, 31), (60, 9, 14, 37), (20, 45, 8, 52, 19, 33, 12))

MEMORY_TIMEOUT_S = 300.0
"""The longest that a sleep, a wake or a reload may take."""


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
        """Returns a text that differs between starts of the server.

        Raises:
            EngineError: It does not answer, or is no such server.
        """

    @abstractmethod
    async def asleep(self) -> bool:
        """Returns whether it was found asleep. Asked once, after `identity` and before everything else.

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
        """Returns the path of the server's model, as the server sees it; empty if it does not report one.

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
        """Returns the server's name for its model.

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
        """Returns the answers to fixed inputs: any change of the weights shows in them.

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
