"""An engine for contract servers: batches, pauses, prefixes, versions and deaths, as recorded from real ones.

It knows nothing of HTTP. The dialects of SGLang and vLLM are in contract_sglang.py and contract_vllm.py.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from callsheet.managers.inference import tokenizer

from tests.support.contract_model import Drawn, draw, next_state, read_contract_weights

STEP_S = 0.0005
TOKENS_A_STEP = 4
"""Requests for thousands of tokens last seconds, short ones milliseconds."""


class Standing(Enum):
    """How the engine stands still."""

    NOT = "not"
    KEEP = "keep"
    """Requests stay where they are, with their KV."""
    RETRACT = "retract"
    """Requests gave up their KV and wait."""
    ABORT = "abort"


class DeadError(Exception):
    """The server has died of what it was asked, as the real one does."""


@dataclass(eq=False, slots=True, kw_only=True)
class EngineRequest:
    """One request and what it has come to.

    Attributes:
        drawn: What each new token was drawn as.
        versions: The label of the weights that made each new token.
        finish: Why it ended; empty while it has not.
        ended: Set then.
    """

    request_id: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    namespace: str = ""
    drawn: list[Drawn] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    cached: int = 0
    state: int | None = None
    finish: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    numbers: random.Random = field(default_factory=random.Random)

    @property
    def output(self) -> tuple[int, ...]:
        """The new tokens."""
        return tuple(each.token for each in self.drawn)

    @property
    def text(self) -> str:
        """Their text."""
        return tokenizer.decode(self.output)

    @property
    def spans(self) -> list[tuple[str, int, int]]:
        """Which weights made which tokens, as (label, begin, end)."""
        spans: list[tuple[str, int, int]] = []
        for index, label in enumerate(self.versions):
            if spans and spans[-1][0] == label:
                spans[-1] = (label, spans[-1][1], index + 1)
            else:
                spans.append((label, index, index + 1))
        return spans

    def finish_as(self, reason: str) -> None:
        """Ends it."""
        self.finish = reason
        self.ended.set()


class ContractEngine:
    """The engine of one server.

    Args:
        weights: A directory of `save_contract_weights`.
        label: What it calls those weights.
        context_length: The most tokens of a sequence.
        most_running: The most sequences in the batch.
        most_waiting: The most that wait; None for no bound.
        heeds_seeds: Whether equal seeds give equal tokens.
        joint: Whether top_p is a mass of the whole vocabulary rather than of the top_k tokens.
    """

    def __init__(
        self,
        weights: Path,
        *,
        label: str = "default",
        context_length: int = 16_384,
        most_running: int = 16,
        most_waiting: int | None = None,
        heeds_seeds: bool = False,
        joint: bool = True,
    ) -> None:
        self.model_path = str(weights)
        self.weights_seed = read_contract_weights(weights)
        self.label = label
        self.context_length = context_length
        self.most_running = most_running
        self.most_waiting = most_waiting
        self.heeds_seeds = heeds_seeds
        self.ignores = False
        self.standing = Standing.NOT
        self.asleep: set[str] = set()
        self.running: list[EngineRequest] = []
        self.waiting: list[EngineRequest] = []
        self.startup = os.urandom(8).hex()
        self._joint = joint
        self._prefixes: dict[str, dict[tuple[int, ...], list[int]]] = {}

    @property
    def kv_tokens_used(self) -> int:
        """What requests in the batch hold."""
        return sum(len(each.prompt) + len(each.drawn) for each in self.running)

    async def serve(self) -> None:
        """Makes tokens until it is cancelled."""
        while True:
            if self.standing is Standing.NOT and not self.asleep:
                self._step()
            await asyncio.sleep(STEP_S)

    def submit(self, request: EngineRequest) -> bool:
        """Takes a request in; False if the queue is full."""
        if self.most_waiting is not None and len(self.waiting) >= self.most_waiting:
            return False
        if self.heeds_seeds and request.seed is not None:
            request.numbers.seed(request.seed)
        self.waiting.append(request)
        return True

    def live(self, request_id: str) -> EngineRequest | None:
        """The live request of an id."""
        return next((each for each in [*self.running, *self.waiting] if each.request_id == request_id), None)

    def abort(self, request: EngineRequest) -> None:
        """Ends a request with the tokens it has."""
        if not request.finish:
            request.finish_as("abort")
        self._drop(request)

    def abort_all(self) -> None:
        """Ends all requests with the tokens they have."""
        for request in [*self.running, *self.waiting]:
            self.abort(request)

    def retract(self) -> None:
        """Has all running requests give up their KV and wait."""
        for request in self.running:
            request.state = None
        self.waiting[:0] = self.running
        self.running.clear()

    def forget(self) -> None:
        """Forgets cached prefixes."""
        self._prefixes.clear()

    def load(self, weights: Path, label: str | None = None) -> None:
        """Replaces the weights; ContractWeightsError leaves the old ones."""
        seed = read_contract_weights(weights)
        self.weights_seed = self.weights_seed if self.ignores else seed
        self.model_path = str(weights)
        if label is not None:
            self.label = label

    @property
    def idle(self) -> bool:
        """Whether there is no request."""
        return not self.running and not self.waiting

    def _drop(self, request: EngineRequest) -> None:
        for place in (self.running, self.waiting):
            if request in place:
                place.remove(request)

    def _step(self) -> None:
        while self.waiting and len(self.running) < self.most_running:
            self.running.append(self.waiting.pop(0))
        for request in list(self.running):
            if request.state is None:
                self._prefill(request)
            for _ in range(TOKENS_A_STEP):
                if not request.finish:
                    self._decode(request)
            if request.finish:
                self._drop(request)

    def _prefill(self, request: EngineRequest) -> None:
        tokens = (*request.prompt, *request.output)
        states = self._cached(request.namespace, tokens)
        if not request.drawn:
            request.cached = len(states)
        for token in tokens[len(states) :]:
            states.append(next_state(self.weights_seed, states[-1] if states else 0, token))
        request.state = states[-1]
        self._prefixes.setdefault(request.namespace, {})[tokens] = states

    def _cached(self, namespace: str, tokens: tuple[int, ...]) -> list[int]:
        """States of the longest prefix that is cached; at least one token is always computed."""
        best: list[int] = []
        for known, states in self._prefixes.get(namespace, {}).items():
            common = 0
            for one, other in zip(known, tokens[:-1], strict=False):
                if one != other:
                    break
                common += 1
            if common > len(best):
                best = states[:common]
        return list(best)

    def _decode(self, request: EngineRequest) -> None:
        assert request.state is not None
        drawn = draw(
            self.weights_seed,
            request.state,
            request.numbers.random(),
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
            joint=self._joint,
        )
        request.drawn.append(drawn)
        request.versions.append(self.label)
        request.state = next_state(self.weights_seed, request.state, drawn.token)
        if drawn.token in request.stop_token_ids or any(text in request.text for text in request.stop):
            request.finish_as("stop")
        elif len(request.drawn) >= request.max_new_tokens:
            request.finish_as("length")
