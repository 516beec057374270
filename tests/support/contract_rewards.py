"""Contract servers that score: the routes of SGLang and vLLM for rewards, over the engine of contract_engine.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.support.contract_engine import ContractEngine
from tests.support.contract_http import Handler, json_of
from tests.support.contract_model import VOCABULARY, expected_log_probs, save_contract_weights, state_of
from tests.support.contract_sglang import ContractSGLang
from tests.support.contract_vllm import ContractVLLM

GARBAGE = -1
"""The seed of weights that came back as garbage."""
VERDICT = "It is right. Score: 7"


def expected_logit(seed: int, tokens: Sequence[int]) -> float:
    """What a head with one label gives, from -6 to 6."""
    return state_of(seed, tokens) % 12_001 / 1000 - 6


def expected_scores(seed: int, before: Sequence[int], tokens: Sequence[int]) -> list[float]:
    """The log-probability of each token after those before it."""
    return expected_log_probs(seed, before, tokens)


class AwakeServers:
    """Which servers hold their memory, and the most that ever did at once."""

    def __init__(self) -> None:
        self._awake: set[str] = set()
        self.most = 0

    def note(self, url: str, *, awake: bool) -> None:
        """A server holds its memory, or gave it back."""
        (self._awake.add if awake else self._awake.discard)(url)
        self.most = max(self.most, len(self._awake))


class ScoringSGLang(ContractSGLang):
    """SGLang with a classification head, or log-probabilities of prompts.

    Args:
        weights: Where the directory of weights is made.
        seed: Of the weights.
        awake: Told of its memory.
        weights_backup: As --enable-weights-cpu-backup.
    """

    def __init__(self, weights: Path, seed: int, awake: AwakeServers, *, weights_backup: bool = False) -> None:
        super().__init__(_engine(weights, seed), weights_backup=weights_backup)
        self.awake = awake
        self.forgets = False
        self._seed = seed

    def routes(self) -> dict[str, Handler]:
        """See `ContractServer`."""
        return {
            **super().routes(),
            "POST /classify": self._classify,
            "POST /generate": self._look,
            "POST /release_memory_occupation": self._give_back,
            "POST /resume_memory_occupation": self._take_again,
            "GET /v1/models": _models,
            "POST /v1/chat/completions": _judge,
        }

    async def _give_back(self, request: web.Request) -> web.Response:
        answer = await self._release(request)
        if {"weights", "kv_cache"} <= self.engine.asleep:
            self.awake.note(self.url, awake=False)
        return answer

    async def _take_again(self, request: web.Request) -> web.Response:
        self.awake.note(self.url, awake=True)
        answer = await self._resume_memory(request)
        if "weights" not in self.engine.asleep and self.forgets:
            self.engine.weights_seed = GARBAGE
        return answer

    async def _classify(self, request: web.Request) -> web.Response:
        sequences = (await json_of(request))["input_ids"]
        if self.engine.asleep or any(max(tokens) >= VOCABULARY for tokens in sequences):
            return web.json_response({"error": {"message": "token out of range or memory gone"}}, status=400)
        logits = [expected_logit(self.engine.weights_seed, tokens) for tokens in sequences]
        return web.json_response([{"embedding": [logit], "meta_info": {}} for logit in logits])

    async def _look(self, request: web.Request) -> web.Response:
        body = await json_of(request)
        tokens, begin = body["input_ids"], body["logprob_start_len"]
        told = [None, *expected_log_probs(self.engine.weights_seed, tokens[:1], tokens[1:])]
        entries: list[list[Any]] = [[value, token, None] for value, token in zip(told, tokens, strict=True)]
        entries[begin][0] = None
        return web.json_response({"meta_info": {"input_token_logprobs": entries[begin:]}, "output_ids": [1]})


class ScoringVLLM(ContractVLLM):
    """vLLM with a pooling runner, or log-probabilities of prompts.

    Args:
        weights: Where the directory of weights is made.
        seed: Of the weights.
        awake: Told of its memory.
        knows_activation: Whether it heeds `use_activation`, which older releases do not.
    """

    def __init__(self, weights: Path, seed: int, awake: AwakeServers, *, knows_activation: bool = True) -> None:
        super().__init__(_engine(weights, seed))
        self.awake = awake
        self._knows_activation = knows_activation

    def routes(self) -> dict[str, Handler]:
        """See `ContractServer`."""
        return {
            **super().routes(),
            "GET /is_sleeping": self._is_sleeping,
            "POST /classify": self._classify,
            "POST /v1/completions": self._look,
            "POST /sleep": self._give_back,
            "POST /wake_up": self._take_again,
            "GET /v1/models": _models,
            "POST /v1/chat/completions": _judge,
        }

    async def _is_sleeping(self, request: web.Request) -> web.Response:
        return web.json_response({"is_sleeping": bool(self.engine.asleep)})

    async def _give_back(self, request: web.Request) -> web.Response:
        self.awake.note(self.url, awake=False)
        return await self._sleep(request)

    async def _take_again(self, request: web.Request) -> web.Response:
        self.awake.note(self.url, awake=True)
        return await self._wake(request)

    async def _classify(self, request: web.Request) -> web.Response:
        body = await json_of(request)
        logit = expected_logit(self.engine.weights_seed, body["input"])
        raw = self._knows_activation and not body.get("use_activation", True)
        return web.json_response({"data": [{"index": 0, "probs": [logit if raw else 1 / (1 + math.exp(-logit))]}]})

    async def _look(self, request: web.Request) -> web.Response:
        tokens = (await json_of(request))["prompt"]
        values = expected_log_probs(self.engine.weights_seed, tokens[:1], tokens[1:])
        told = [None, *({str(token): {"logprob": value}} for token, value in zip(tokens[1:], values, strict=True))]
        return web.json_response({"choices": [{"text": "", "prompt_logprobs": told}]})


def _engine(weights: Path, seed: int) -> Callable[[], ContractEngine]:
    directory = save_contract_weights(weights / f"weights-{seed}", seed)
    return lambda: ContractEngine(directory)


async def _models(request: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "judge"}]})


async def _judge(request: web.Request) -> web.Response:
    body = await json_of(request)
    if body["model"] != "judge":
        return web.json_response({"error": {"message": "no such model"}}, status=404)
    text = VERDICT if "rubric" in body["messages"][0]["content"] else "I cannot say."
    return web.json_response({"choices": [{"message": {"role": "assistant", "content": text}}]})
