"""A scripted engine behind the `EngineDriver` protocol. It computes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
from callsheet.managers.inference.driver import (
    EngineBusyError,
    EngineCapabilities,
    EngineDriver,
    EngineFailedError,
    EngineHealth,
    EngineLimits,
    EngineLoad,
    FinishReason,
    GenerateRequest,
    Generation,
    RequestRefusedError,
    VersionSpan,
)
from callsheet.managers.inference.scripted_engine.answer import ScriptedToken, answer
from callsheet.managers.inference.scripted_engine.record import RecordGeneration
from callsheet.managers.inference.scripted_engine.script import EngineScript, ScriptedReply, ScriptPlayer
from callsheet.managers.inference.scripted_engine.vocabulary import ScriptVocabulary

SCRIPTED_ABILITIES = EngineCapabilities(
    update_modes=frozenset(),
    version_spans=True,
    prefix_cache=False,
    batch_invariant=True,
    stop_texts=True,
)
"""Abilities of the scripted engine. It has no weights to change, and no cache."""


@dataclass(eq=False)
class _Live:
    """One request."""

    request: GenerateRequest
    seed: int
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    aborted: anyio.Event = field(default_factory=anyio.Event)

    def append(self, token: ScriptedToken, version: int) -> None:
        """Adds a token."""
        place = len(self.token_ids)
        self.token_ids.append(token.token_id)
        self.log_probs.append(token.log_prob)
        begin = self.spans.pop().begin if self.spans and self.spans[-1].version == version else place
        self.spans.append(VersionSpan(version, begin, place + 1))


class ScriptedEngineDriver(EngineDriver):
    """Answers prompts by a script. Must be used from one event loop.

    Args:
        script: What to answer.
        vocabulary: The tokens of the model that it stands for.
        policy_version: Of tokens for which the script names none.
        max_requests: The most live requests; more are refused as busy.
        record: Is told of each generation.
        new_seed: Draws the seed of a request that has none.
    """

    def __init__(
        self,
        script: EngineScript,
        vocabulary: ScriptVocabulary,
        *,
        policy_version: int = 0,
        max_requests: int = 4096,
        record: RecordGeneration | None = None,
        new_seed: Callable[[], int] = lambda: random.SystemRandom().getrandbits(63),
    ) -> None:
        self._player = ScriptPlayer(script)
        self._context_length = script.context_length
        self._vocabulary = vocabulary
        self._policy_version = policy_version
        self._max_requests = max_requests
        self._record = record
        self._new_seed = new_seed
        self._live: dict[str, _Live] = {}
        self._closed = False

    @property
    def capabilities(self) -> EngineCapabilities:
        """See `EngineDriver`."""
        return SCRIPTED_ABILITIES

    @property
    def policy_version(self) -> int:
        """See `EngineDriver`."""
        return self._policy_version

    @property
    def load(self) -> EngineLoad:
        """See `EngineDriver`."""
        tokens = sum(len(live.request.prompt_token_ids) + len(live.token_ids) for live in self._live.values())
        return EngineLoad(
            running=len(self._live),
            waiting=0,
            kv_tokens_used=tokens,
            kv_tokens_total=self._context_length * self._max_requests,
        )

    @property
    def health(self) -> EngineHealth:
        """See `EngineDriver`."""
        reason = "the engine is closed" if self._closed else ""
        return EngineHealth(alive=not self._closed, reason=reason)

    @property
    def limits(self) -> EngineLimits:
        """See `EngineDriver`."""
        return EngineLimits(context_length=self._context_length)

    async def generate(self, request: GenerateRequest) -> Generation:
        """See `EngineDriver`."""
        self._check(request)
        seed = request.sampling.seed
        live = self._live[request.request_id] = _Live(request, self._new_seed() if seed is None else seed)
        try:
            reason = await self._run(live)
        finally:
            del self._live[request.request_id]
        generation = Generation(
            token_ids=tuple(live.token_ids),
            log_probs=tuple(live.log_probs),
            finish_reason=reason,
            version_spans=tuple(live.spans),
            seed=live.seed,
            text=self._vocabulary.decode(live.token_ids),
        )
        if self._record is not None:
            self._record(request, generation)
        return generation

    async def abort(self, request_id: str) -> None:
        """See `EngineDriver`."""
        if live := self._live.get(request_id):
            live.aborted.set()

    async def close(self) -> None:
        """See `EngineDriver`."""
        self._closed = True
        for live in self._live.values():
            live.aborted.set()

    async def _run(self, live: _Live) -> FinishReason:
        """Makes the tokens of one request; returns why it ended."""
        reply = self._reply_to(live.request)
        tokens = answer(reply, self._vocabulary, live.request.sampling, live.seed)
        wait_s = reply.delay_s
        for token in tokens:
            await _pass(wait_s, live.aborted)
            if live.aborted.is_set():
                return FinishReason.ABORT
            live.append(token, self._policy_version if token.version is None else token.version)
            if token.end is not None:
                return token.end
            wait_s = reply.token_s
            if len(live.request.prompt_token_ids) + len(live.token_ids) >= self._context_length:
                break
        return FinishReason.LENGTH

    def _reply_to(self, request: GenerateRequest) -> ScriptedReply:
        reply = self._player.reply_to(self._vocabulary.decode(request.prompt_token_ids))
        if reply is None:
            raise RequestRefusedError("script_exhausted", "the script has no reply left for this prompt")
        return reply

    def _check(self, request: GenerateRequest) -> None:
        self._check_alive()
        prompt = request.prompt_token_ids
        if not prompt:
            raise RequestRefusedError("no_tokens", "prompt_token_ids is empty; it must have at least one token")
        wrong = next((token for token in prompt if not 0 <= token < self._vocabulary.size), None)
        if wrong is not None:
            rule = f"it must be 0 to {self._vocabulary.size - 1}"
            raise RequestRefusedError("token_out_of_vocabulary", f"prompt_token_ids has {wrong}; {rule}")
        if len(prompt) >= self._context_length:
            rule = f"it must have fewer than {self._context_length}"
            raise RequestRefusedError("prompt_too_long", f"prompt_token_ids has {len(prompt)} tokens; {rule}")
        if request.request_id in self._live:
            raise RequestRefusedError("duplicate_request", f"request_id {request.request_id!r} is live already")
        if len(self._live) >= self._max_requests:
            raise EngineBusyError(f"{len(self._live)} requests are live; the bound is {self._max_requests}")

    def _check_alive(self) -> None:
        if self._closed:
            raise EngineFailedError("the engine is closed")


async def _pass(seconds: float, aborted: anyio.Event) -> None:
    """Lets time pass, or at least others run; an abort ends it."""
    if seconds <= 0:
        await anyio.lowlevel.checkpoint()
        return
    with anyio.move_on_after(seconds):
        await aborted.wait()
