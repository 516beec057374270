"""Hosted models on SGLang and vLLM servers that sleep and wake: right scores, bounded memory, no garbage."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web
from callsheet.managers.executor import AttemptResult, Broken, Completed
from callsheet.managers.reward.hosted.executor import HostedModelsExecutor
from callsheet.managers.reward.hosted.model_spec import ModelSpec, ModelTask, ServerEngine
from callsheet.managers.reward.hosted.residency import ModelStage
from callsheet.managers.reward.hosted.settings import HostedSettings
from callsheet.v1 import action_pb2, outcome_pb2
from structlog.testing import capture_logs

from tests.support.attempts_of_models import attempt_of
from tests.support.contract_engine import ContractEngine
from tests.support.contract_http import ContractServer, Handler, json_of, running
from tests.support.contract_model import VOCABULARY, expected_log_probs, save_contract_weights, state_of
from tests.support.contract_sglang import ContractSGLang
from tests.support.contract_vllm import ContractVLLM
from tests.support.expected import expect
from tests.support.waiting import until

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
        self.asked_to_sleep = anyio.Event()
        self.may_sleep = anyio.Event()
        self.may_sleep.set()
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
        self.asked_to_sleep.set()
        await self.may_sleep.wait()
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
        entries = [[None if entry[1] == UNTOLD else entry[0], *entry[1:]] for entry in entries]
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
        values = [math.nan if token == UNTOLD else value for token, value in zip(tokens[1:], values, strict=True)]
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
    asked = body["messages"][0]["content"]
    text = VERDICT if "rubric" in asked else "I cannot say."
    ended = "length" if "Cut it" in asked else "stop"
    usage = {"prompt_tokens": 50, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 20}}
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": ended}
    return web.json_response({"choices": [choice], "usage": usage})


pytestmark = pytest.mark.anyio
TOKENS = [5, 6, 7, 30]
UNTOLD = 61
"""A token of which servers tell no finite log-probability."""
TEXT = action_pb2.ConversationText(prompt="2 + 2?", response="4")


def model_of(name: str, server: ContractServer, kind: ModelTask = ModelTask.CLASSIFY, **spec: Any) -> ModelSpec:
    """A model that a server has, of which two fit."""
    engine = ServerEngine.VLLM if isinstance(server, ScoringVLLM) else ServerEngine.SGLANG
    return ModelSpec(name=name, url=server.url, engine=engine, kind=kind, memory_mib=400, **spec)


@asynccontextmanager
async def hosting(
    *models: ModelSpec, servers: list[ContractServer], restart_s: float = 0.01
) -> AsyncIterator[HostedModelsExecutor]:
    """An executor of these models, in memory for two."""
    settings = HostedSettings(models=models, memory_budget_mib=900, restart_s=restart_s, prewarm=False)
    executor = HostedModelsExecutor(settings)
    try:
        with anyio.fail_after(60):
            async with AsyncExitStack() as stack:
                for server in servers:
                    await stack.enter_async_context(running(server))
                tasks = await stack.enter_async_context(anyio.create_task_group())
                tasks.start_soon(executor.serve)
                yield executor
                tasks.cancel_scope.cancel()
    finally:
        await executor.close()


async def ask(executor: HostedModelsExecutor, model: ModelSpec, /, **scorer: Any) -> AttemptResult:
    """What becomes of a reward by a model; by default the score of some tokens."""
    given = scorer or {"model": action_pb2.ModelScoreInput(token_ids=TOKENS)}
    action = action_pb2.ActionSpec(reward=action_pb2.RewardInput(**given))
    return await executor.run(attempt_of(1, action, service=model.name))


def scored(result: AttemptResult) -> float:
    """The score of a success."""
    assert isinstance(result, Completed), result
    return result.succeeded.reward.score


def failure(result: AttemptResult) -> tuple[int, str]:
    """Who is at fault, and the reason."""
    assert isinstance(result, Broken), result
    return result.failed.kind, result.failed.reason


async def test_classifiers_teachers_and_judges_take_turns_in_memory_for_two(tmp_path: Path) -> None:
    awake = AwakeServers()
    servers: list[ContractServer] = [
        ScoringSGLang(tmp_path, 1, awake),
        ScoringVLLM(tmp_path, 2, awake),
        ScoringVLLM(tmp_path, 3, awake, knows_activation=False),
        ScoringSGLang(tmp_path, 4, awake, weights_backup=True),
        ScoringVLLM(tmp_path, 5, awake),
        ScoringVLLM(tmp_path, 6, awake),
    ]
    names = ("sglang", "vllm", "vllm-old")
    classifiers = [model_of(name, server, sleep_level=2) for name, server in zip(names, servers, strict=False)]
    teachers = [model_of("teacher", servers[3], ModelTask.TEACHER), model_of("other", servers[4], ModelTask.TEACHER)]
    judge = model_of("judge", servers[5], ModelTask.JUDGE)
    looked_at = action_pb2.TeacherInput(prompt_token_ids=TOKENS[:2], token_ids=TOKENS[2:])
    async with hosting(*classifiers, *teachers, judge, servers=servers) as executor:
        await until(lambda: all(slot.alive is not None for slot in executor.host.workers.values()))
        awake.most = 0
        for _ in range(2):
            for seed, model in enumerate(classifiers, 1):
                assert scored(await ask(executor, model)) == pytest.approx(expected_logit(seed, TOKENS), abs=1e-6)
            for seed, model in enumerate(teachers, 4):
                result = expect(Completed, await ask(executor, model, teacher=looked_at))
                expected = expected_scores(seed, TOKENS[:2], TOKENS[2:])
                assert list(result.succeeded.reward.log_probs) == pytest.approx(expected, abs=1e-6)
                assert list(result.succeeded.reward.token_ids) == TOKENS[2:]
                assert dict(result.usage.cost.used) == {"tokens_in": 4.0}
            judged = await ask(executor, judge, judge=action_pb2.JudgeInput(rubric="By this rubric.", text=TEXT))
            assert scored(judged) == 7
            assert isinstance(judged, Completed)
            assert judged.succeeded.reward.text == VERDICT
            tokens = {"tokens_in": 30.0, "tokens_cached": 20.0, "tokens_out": 7.0}
            assert dict(judged.usage.cost.used) == tokens
        silent = await ask(executor, judge, judge=action_pb2.JudgeInput(rubric="Say it.", text=TEXT))
        cut = await ask(executor, judge, judge=action_pb2.JudgeInput(rubric="Cut it by the rubric.", text=TEXT))
        untold = action_pb2.TeacherInput(prompt_token_ids=[5, 6], token_ids=[7, UNTOLD, 30])
        garbage = {failure(await ask(executor, each, teacher=untold)) for each in teachers}
        wrong = await ask(executor, classifiers[0], model=action_pb2.ModelScoreInput(token_ids=[5, 4000]))
        textual = await ask(executor, classifiers[0], model=action_pb2.ModelScoreInput(text=TEXT))
    assert awake.most <= 2
    assert dict(silent.usage.cost.used) == tokens
    assert failure(silent) == (outcome_pb2.FAILURE_KIND_ENV, "score_missing")
    assert garbage == {(outcome_pb2.FAILURE_KIND_INFRA, "non_finite_score")}
    assert failure(cut) == (outcome_pb2.FAILURE_KIND_INFRA, "no_verdict")
    # A real server may die of such a token.
    assert failure(wrong) == (outcome_pb2.FAILURE_KIND_ENV, "token_out_of_vocabulary")
    assert failure(textual) == (outcome_pb2.FAILURE_KIND_ENV, "no_tokenizer")


async def test_a_wake_that_returns_garbage_is_never_served(tmp_path: Path) -> None:
    awake = AwakeServers()
    strange, broken = (ScoringSGLang(tmp_path, seed, awake, weights_backup=True) for seed in (1, 2))
    other = ScoringVLLM(tmp_path, 3, awake)
    models = [model_of(name, each) for name, each in (("strange", strange), ("broken", broken), ("other", other))]
    async with hosting(*models, servers=[strange, broken, other]) as executor:
        await until(lambda: all(slot.alive is not None for slot in executor.host.workers.values()))
        # What its backup gives back is garbage, and its source is whole.
        strange.forgets = True
        with capture_logs() as logs:
            assert scored(await ask(executor, models[0])) == pytest.approx(expected_logit(1, TOKENS))
        assert [each["event"] for each in logs].count("reward model answers garbage") == 1
        broken.forgets = True
        broken.refuse["/update_weights_from_disk"] = 500
        assert failure(await ask(executor, models[1])) == (outcome_pb2.FAILURE_KIND_INFRA, "reward_model_unavailable")
        assert scored(await ask(executor, models[2])) == pytest.approx(expected_logit(3, TOKENS))
        tenant = executor.host.residency.tenants["broken"]
        assert (tenant.place, tenant.stage) == (None, ModelStage.COLD)
        await until(lambda: bool(broken.engine.asleep))


async def test_a_server_that_dies_and_comes_back_awake_gives_its_memory_back_first(tmp_path: Path) -> None:
    awake = AwakeServers()
    dying, other = ScoringVLLM(tmp_path, 1, awake), ScoringSGLang(tmp_path, 2, awake)
    models = [model_of("dying", dying), model_of("other", other)]
    # It is looked for three times at most before it comes back.
    async with hosting(*models, servers=[dying, other], restart_s=2.0) as executor:
        assert scored(await ask(executor, models[0])) == pytest.approx(expected_logit(1, TOKENS), abs=1e-6)
        await dying.die()
        assert failure(await ask(executor, models[0])) == (outcome_pb2.FAILURE_KIND_INFRA, "reward_worker_died")
        assert scored(await ask(executor, models[1])) == pytest.approx(expected_logit(2, TOKENS))
        await dying.start()
        dying.calls.clear()
        assert scored(await ask(executor, models[0])) == pytest.approx(expected_logit(1, TOKENS), abs=1e-6)
        asked = [call for call in dying.calls if call in ("/sleep", "/wake_up", "/classify")]
        assert asked.index("/sleep") < asked.index("/wake_up")


async def test_a_server_that_is_found_asleep_reads_its_weights_anew(tmp_path: Path) -> None:
    server = ScoringSGLang(tmp_path, 1, AwakeServers(), weights_backup=True)
    model = model_of("model", server)
    async with running(server):
        for _ in range(2):
            server.calls.clear()
            executor = HostedModelsExecutor(HostedSettings(models=(model,), memory_budget_mib=900, park_after_s=0.001))
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(executor.serve)
                    assert scored(await ask(executor, model)) == pytest.approx(expected_logit(1, TOKENS))
                    await until(lambda: bool(server.engine.asleep))
                    tasks.cancel_scope.cancel()
            finally:
                await executor.close()
    assert "/update_weights_from_disk" in server.calls


async def test_a_manager_that_stops_lets_its_server_fall_asleep_whole(tmp_path: Path) -> None:
    server = ScoringSGLang(tmp_path, 1, AwakeServers(), weights_backup=True)
    server.may_sleep = anyio.Event()
    model = model_of("model", server)
    async with running(server):
        async with hosting(model, servers=[]):
            await server.asked_to_sleep.wait()
            assert not server.engine.asleep
            asyncio.get_running_loop().call_later(0.05, server.may_sleep.set)
        assert server.engine.asleep == {"weights", "kv_cache"}
        async with hosting(model, servers=[]) as successor:
            assert scored(await ask(successor, model)) == pytest.approx(expected_logit(1, TOKENS))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"url": "ftp://host"}, "url"),
        ({"url": "http://host:1"}, "memory_mib"),
        ({"url": "http://host:1", "memory_mib": 1, "sleep_level": 3}, "sleep_level"),
        ({}, "directory"),
    ],
)
def test_bad_servers_are_refused_by_name(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        ModelSpec(name="model", **spec)
