"""A server as the host of models sees it: asked like a worker process, and lost at some time."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import anyio
import structlog
from callsheet.managers.inference.engine_errors import EngineError, EngineFailedError, RequestRefusedError
from callsheet.managers.inference.http_engine.client import EngineHttp, EngineUnreachableError
from callsheet.managers.inference.http_engine.looks import Look, ServerState, after_look
from callsheet.managers.inference.http_engine.vocabulary import vocabulary_of
from callsheet.managers.reward.hosted.model_spec import ModelSpec, ModelTask, ServerEngine
from callsheet.managers.reward.hosted.questions import (
    QuestionError,
    check_tokens,
    continued_tokens,
    judged_text,
    read_judgement,
    scored_tokens,
)
from callsheet.managers.reward.hosted.servers.server import RewardServer
from callsheet.managers.reward.hosted.servers.sglang import SGLangRewardServer
from callsheet.managers.reward.hosted.servers.vllm import VLLMRewardServer
from callsheet.managers.reward.hosted.settings import HostedSettings
from callsheet.managers.reward.hosted.worker import WorkerDiedError, WorkerRefusedError

log = structlog.get_logger(__name__)

LOOK_EVERY_S = 2.0
_CLOSE_S = 5.0
_ATTACH_S = 600.0

Answer = dict[str, Any]
Step = Callable[..., Awaitable[Answer]]


class ServerWorker:
    """One server with one model. It is put to sleep when it is found, but for a pinned one, and wakes as it is told.

    Its answer to the canary is taken before the first sleep. A server that is found asleep has none that could be
    trusted: its weights are read from their source at its first wake.
    """

    def __init__(self, spec: ModelSpec, server: RewardServer, memory: anyio.Lock) -> None:
        """Takes the server.

        Args:
            spec: Its model.
            server: The server, which is closed in the end.
            memory: Held while memory changes hands: one server must be asleep before another one wakes.
        """
        self.name = spec.worker
        self.pid: int | None = None
        self._spec = spec
        self._server = server
        self._memory = memory
        self._identity = ""
        self._asleep = False
        self._reload = False
        self._canary: list[float] | None = None
        self._tokenizer: Any = None
        self._vocabulary: int | None = None
        self._lost = anyio.Event()
        self._attached = False
        self._steps: dict[str, Step] = {
            "open": self._open,
            "restore": self._restore,
            "evict": self._evict,
            "close": self._nothing,
            "answer": self._answer,
        }

    @property
    def alive(self) -> bool:
        """Returns whether the server can be asked."""
        return self._attached and not self._lost.is_set()

    async def serve(self, ready: anyio.Event) -> int:
        """Finds the server and watches it until it is lost, or another one than before; returns 1.

        Args:
            ready: Set once it can be asked.
        """
        try:
            await self._attach()
            self._attached = True
            ready.set()
            await self._watch()
        except (EngineError, TimeoutError, OSError) as error:
            log.warning("model server is not there", model=self._spec.name, reason=str(error))
        finally:
            self._lost.set()
            with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_S):
                await self._server.http.close()
        return 1

    async def ask(self, do: str, timeout_s: float, **values: Any) -> Answer:
        """Has it do something; see `WorkerProcess.ask`.

        Raises:
            WorkerDiedError: It is gone, or silent for too long.
            WorkerRefusedError: It could not do it.
        """
        if not self.alive:
            raise WorkerDiedError(f"server {self._server.http.url} is not there")
        try:
            with anyio.fail_after(timeout_s):
                return await self._steps[do](**values)
        except TimeoutError as error:
            self._lost.set()
            raise WorkerDiedError(f"server {self._server.http.url} was silent for {timeout_s:g} s") from error
        except EngineFailedError as error:
            self._lost.set()
            raise WorkerDiedError(str(error)) from error
        except (EngineError, LookupError, TypeError, ValueError) as error:
            # The latter three: an answer in another shape than such servers give.
            raise WorkerRefusedError("failed", f"{type(error).__name__}: {error}") from error

    def kill(self) -> None:
        """Counts it as lost: it is somebody else's process."""
        self._lost.set()

    async def _attach(self) -> None:
        with anyio.fail_after(_ATTACH_S):
            self._identity = await self._server.identity()
            self._asleep = await self._server.asleep()
            where = str(self._spec.directory) if self._spec.has_directory else await self._server.model_path()
            self._vocabulary = await anyio.to_thread.run_sync(vocabulary_of, where)
            if self._asleep:
                self._reload = True
                return
            self._canary = await self._server.canary(self._spec.kind)
            if not self._spec.pinned:
                await self._evict()
        log.info("model server found", model=self._spec.name, url=self._server.http.url, asleep=self._asleep)

    async def _watch(self) -> None:
        state = ServerState(identity=self._identity)
        while not self._lost.is_set():
            with anyio.move_on_after(LOOK_EVERY_S):
                await self._lost.wait()
            state = after_look(state, await self._look())
            if not state.alive:
                raise EngineFailedError(state.problem)
            if state.losses:
                raise EngineFailedError(f"{self._server.http.url}: was started again, and is awake")

    async def _look(self) -> Look:
        try:
            return Look(identity=await self._server.identity())
        except EngineUnreachableError as error:
            return Look(answered=False, refused=error.refused, problem=str(error))

    @asynccontextmanager
    async def _settled_memory(self) -> AsyncIterator[None]:
        """Lets a sleep or a wake end, even one that is cancelled: the next manager would kill a server half asleep.

        Each of its calls has a deadline.
        """
        async with self._memory:
            with anyio.CancelScope(shield=True):
                yield

    async def _open(self, fresh: bool, **_: Any) -> Answer:
        self._reload = self._reload or fresh
        return {"size": 0, "canary": self._canary}

    async def _restore(self, **_: Any) -> Answer:
        began = monotonic()
        async with self._settled_memory():
            if self._asleep:
                await self._server.wake(reload=self._reload)
                self._asleep = False
            elif self._reload:
                await self._server.reload()
            self._reload = False
        return {"canary": await self._server.canary(self._spec.kind), "seconds": monotonic() - began}

    async def _evict(self, **_: Any) -> Answer:
        async with self._settled_memory():
            if not self._asleep:
                await self._server.sleep()
                self._asleep = True
        return {}

    async def _nothing(self, **_: Any) -> Answer:
        return {}

    async def _answer(self, questions: Sequence[Answer], **_: Any) -> Answer:
        if self._tokenizer is None and self._spec.has_directory:
            self._tokenizer = await anyio.to_thread.run_sync(_load_tokenizer, self._spec)
        answers: list[Answer] = [{}] * len(questions)
        lost: list[EngineFailedError] = []

        async def run(index: int) -> None:
            try:
                answers[index] = await self._one(questions[index])
            except EngineFailedError as error:
                lost.append(error)

        async with anyio.create_task_group() as tasks:
            for index in range(len(questions)):
                tasks.start_soon(run, index)
        if lost:
            raise lost[0]
        return {"answers": answers, "cpu_s": 0.0}

    async def _one(self, question: Answer) -> Answer:
        asking = {ModelTask.CLASSIFY: self._score, ModelTask.TEACHER: self._looked_at, ModelTask.JUDGE: self._judged}
        try:
            return await asking[self._spec.kind](question)
        except (QuestionError, RequestRefusedError) as error:
            return {"problem": error.reason, "message": str(error)}
        except EngineFailedError:
            raise
        except (EngineError, LookupError, TypeError, ValueError) as error:
            return {"failed": f"{type(error).__name__}: {error}"}

    async def _score(self, question: Answer) -> Answer:
        tokens = scored_tokens(question, self._tokenizer)
        check_tokens(tokens, self._vocabulary, None)
        logits = await self._server.logits(tokens)
        if self._spec.label is None and len(logits) > 1:
            return {"failed": f"the model has {len(logits)} labels: the option label must be given"}
        score = logits[self._spec.label or 0]
        answer = {"score": score} if math.isfinite(score) else {"garbage": f"the model's score is {score}"}
        return {**answer, "tokens": {"tokens_in": len(tokens)}}

    async def _looked_at(self, question: Answer) -> Answer:
        before, tokens = continued_tokens(question, self._tokenizer)
        check_tokens(tokens, self._vocabulary, None)
        if before:
            check_tokens(before, self._vocabulary, None)
        told = await self._server.log_probs(before, tokens)
        # Nothing is before the first token of all, so that it has none; elsewhere a server tells none of garbage.
        told = told[1:] if not before and told[0] is None else told
        values = [value for value in told if value is not None and math.isfinite(value)]
        computed = {"tokens_in": len(before) + len(tokens)}
        if len(values) < len(told):
            return {"garbage": "a log-probability is not finite", "tokens": computed}
        looked_at = tokens[len(tokens) - len(values) :]
        return {"score": math.fsum(values), "log_probs": values, "token_ids": looked_at, "tokens": computed}

    async def _judged(self, question: Answer) -> Answer:
        text, unfinished, tokens = await self._server.text(judged_text(question), self._spec.max_new_tokens)
        return read_judgement(text, self._spec.score_pattern, unfinished) | {"tokens": tokens}


def _load_tokenizer(spec: ModelSpec) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(spec.directory, local_files_only=True)


def server_worker(spec: ModelSpec, settings: HostedSettings, memory: anyio.Lock) -> ServerWorker:
    """Returns a worker that is not connected yet.

    Args:
        spec: The model, with the url of its server.
        settings: What that server asks for.
        memory: Held while memory changes hands.
    """
    http = EngineHttp(spec.url, settings.server_api_key)
    server: RewardServer
    if spec.engine is ServerEngine.VLLM:
        server = VLLMRewardServer(http, sleep_level=spec.sleep_level, can_sleep=not spec.pinned)
    else:
        server = SGLangRewardServer(http, can_sleep=not spec.pinned)
    return ServerWorker(spec, server, memory)
