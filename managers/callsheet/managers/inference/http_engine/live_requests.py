"""The requests of a driver on their way through a server: its gate, versions, log-probabilities and looks."""

from __future__ import annotations

import math
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import anyio
from callsheet.managers.inference.driver import (
    EngineBusyError,
    EngineError,
    GenerateRequest,
    Generation,
    LogProbsMode,
    OthersLoad,
    RequestRefusedError,
    Sampling,
    VersionSpan,
)
from callsheet.managers.inference.http_engine.client import finish_reason_of, finite


@dataclass(eq=False, slots=True)
class LiveRequest:
    """A request that has not ended.

    Attributes:
        request: The request.
        server_id: Its id on the server: of a fixed width, never used twice, and no other id begins with it.
        begun_version: The policy version that the server had when it was sent.
        scope: Around all that is done for it; cancelled where the server is not waited for any longer.
        ended: Set once its `generate` is about to return.
        sent: Whether it was sent to the server.
        aborted: Whether somebody wants it to end.
        failure: Why it fails, where `scope` was cancelled for that.
    """

    request: GenerateRequest
    server_id: str
    begun_version: int = 0
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    sent: bool = False
    aborted: bool = False
    failure: str = ""


class LiveRequests:
    """All of them. Must be used from one event loop.

    Args:
        most: The most at once; more are refused as busy.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_id: dict[str, LiveRequest] = {}
        self._prefix = uuid.uuid4().hex[:12]
        self._count = 0
        self._open = anyio.Event()
        self._open.set()
        self._changed = anyio.Event()

    def begin(self, request: GenerateRequest) -> LiveRequest:
        """Takes a request in.

        Raises:
            RequestRefusedError: One of its id is live.
            EngineBusyError: There are too many.
        """
        if request.request_id in self._by_id:
            raise RequestRefusedError("duplicate_request", f"request_id {request.request_id!r} is live already")
        if len(self._by_id) >= self._most:
            raise EngineBusyError(f"{len(self._by_id)} requests are live; the bound is {self._most}")
        self._count += 1
        live = LiveRequest(request, f"{self._prefix}-{self._count:016x}-{request.request_id}")
        self._by_id[request.request_id] = live
        return live

    def end(self, live: LiveRequest) -> None:
        """Forgets a request."""
        live.ended.set()
        del self._by_id[live.request.request_id]
        self._changed.set()

    def find(self, request_id: str) -> LiveRequest | None:
        """The live request of an id."""
        return self._by_id.get(request_id)

    def hold(self) -> None:
        """Holds back what is not sent yet."""
        if self._open.is_set():
            self._open = anyio.Event()

    def release(self) -> None:
        """Undoes `hold`."""
        self._open.set()

    async def released(self) -> None:
        """Waits until nothing is held back. Something else must bound the wait."""
        while not self._open.is_set():
            await self._open.wait()

    async def drained(self) -> None:
        """Waits until none that was sent is live. Something else must bound the wait."""
        while any(live.sent for live in self._by_id.values()):
            self._changed = anyio.Event()
            await self._changed.wait()

    def cut(self, failure: str = "", *, held: bool = False) -> None:
        """Gives up those that were sent, and those held back as well if asked for.

        They fail, or without a failure end without tokens.
        """
        for live in self._by_id.values():
            if live.sent or held:
                live.failure = failure
                live.scope.cancel()

    @property
    def all(self) -> tuple[LiveRequest, ...]:
        """All that are live."""
        return tuple(self._by_id.values())

    @property
    def sent(self) -> int:
        """How many were sent."""
        return sum(live.sent for live in self._by_id.values())

    @property
    def held(self) -> int:
        """How many were not."""
        return len(self._by_id) - self.sent

    @property
    def tokens(self) -> int:
        """Prompt tokens of those sent."""
        return sum(len(live.request.prompt_token_ids) for live in self._by_id.values() if live.sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A server's answer to a request, in the words of the server.

    Attributes:
        token_ids: The new tokens.
        finish_reason: Why there are no more.
        own: The log-probability of each token.
        likeliest: Log-probabilities of the most likely tokens at each place.
        versions: Spans of weights, as `spans_of` reads them; None if the server tells none.
        cached_tokens: Tokens of the prompt whose KV was there.
        text: The tokens as text; None if the server tells none.
    """

    token_ids: tuple[int, ...]
    finish_reason: object
    own: Sequence[float | None] = ()
    likeliest: Sequence[Sequence[float | None]] = ()
    versions: Sequence[Mapping[str, Any]] | None = None
    cached_tokens: int = 0
    text: str | None = None

    def generation(
        self, live: LiveRequest, how: Derivation, seed: int, start_version: int, *, joint: bool
    ) -> Generation:
        """Returns what came of a request.

        Args:
            live: The request.
            how: How the log-probabilities that it wants follow from those told.
            seed: Its seed.
            start_version: See `version_of`.
            joint: See `over_top_k`.

        Raises:
            EngineError: The answer is none that a request can end with.
        """
        tokens = len(self.token_ids)
        return Generation(
            token_ids=self.token_ids,
            log_probs=log_probs_of(how, live.request.sampling, tokens, self.own, self.likeliest, joint=joint),
            finish_reason=finish_reason_of(self.finish_reason),
            version_spans=one_span(live.begun_version, tokens)
            if self.versions is None
            else spans_of(self.versions, tokens, start_version),
            seed=seed,
            cached_tokens=self.cached_tokens,
            text=self.text,
        )


# What servers call their weights, and which policy version that is.


def label_of(version: int) -> str:
    """What a server is told to call the weights of a policy version."""
    return str(version)


def version_of(label: object, start: int) -> int:
    """The policy version that a server's word stands for.

    Args:
        label: The word, such as "12", or "default" from a server whose weights nobody has replaced.
        start: The version of the weights that a server starts with; also of words that are none of Callsheet's.
    """
    text = str(label)
    return int(text) if text.isascii() and text.isdigit() else start


def one_span(version: int, tokens: int) -> tuple[VersionSpan, ...]:
    """The spans of tokens that one version made."""
    return (VersionSpan(version, 0, tokens),) if tokens else ()


def spans_of(told: Sequence[Mapping[str, Any]], tokens: int, start_version: int) -> tuple[VersionSpan, ...]:
    """Reads which version made which tokens; neighbours of one version are joined, and empty spans left out.

    Args:
        told: The server's spans: its word for the version, the first token, and the one after the last.
        tokens: How many tokens there are.
        start_version: See `version_of`.

    Raises:
        EngineError: They do not cover all tokens in order.
    """
    spans: list[VersionSpan] = []
    at = 0
    for each in told:
        version, begin, end = version_of(each["version"], start_version), each["start"], each["end"]
        if begin == end:
            continue
        if begin != at or end < begin:
            break
        if spans and spans[-1].version == version:
            spans[-1] = VersionSpan(version, spans[-1].begin, end)
        else:
            spans.append(VersionSpan(version, begin, end))
        at = end
    if at != tokens:
        raise EngineError(f"weight_versions are {told}; they must cover {tokens} tokens in order")
    return tuple(spans)


# Which log-probabilities can be had from those that an engine tells. Pure.

MAX_RENORMALISED = 64
"""The most likely tokens whose log-probabilities are asked for to renormalise over them."""


class ToldLogProbs(Enum):
    """Of which distribution an engine tells log-probabilities."""

    RAW = "raw"
    """Of the model's own output."""
    SCALED = "scaled"
    """After temperature, before top_k and top_p; at temperature 0 of the model's own output."""
    SAMPLED = "sampled"
    """Of the one that tokens were drawn from."""
    UNKNOWN = "unknown"
    """The server does not say; without temperature, top_k and top_p all are the same."""


class Derivation(Enum):
    """How to get at the log-probabilities that a request wants."""

    AS_TOLD = "as_told"
    ZEROS = "zeros"
    """The token is drawn with certainty."""
    OVER_TOP_K = "over_top_k"
    """Renormalised over the `top_k` most likely tokens, whose own are asked for as well."""
    NONE = "none"
    """They cannot be told."""


def derivation(told: ToldLogProbs, sampling: Sampling) -> Derivation:
    """How to get at what a request wants from what the engine tells."""
    greedy = sampling.temperature == 0 or sampling.top_k == 1
    plain = sampling.temperature in (0, 1)
    whole = sampling.temperature == 1 and not sampling.top_k and sampling.top_p == 1
    if sampling.log_probs_mode is LogProbsMode.RAW:
        unscaled = told is ToldLogProbs.RAW or (told is ToldLogProbs.SCALED and plain)
        return Derivation.AS_TOLD if unscaled or whole else Derivation.NONE
    if greedy:
        return Derivation.ZEROS
    if told is ToldLogProbs.SAMPLED or whole:
        return Derivation.AS_TOLD
    if told is ToldLogProbs.UNKNOWN:
        return Derivation.NONE
    if told is ToldLogProbs.RAW and sampling.temperature != 1:
        return Derivation.NONE
    if not sampling.top_k and sampling.top_p == 1:
        return Derivation.AS_TOLD
    return Derivation.OVER_TOP_K if 1 < sampling.top_k <= MAX_RENORMALISED else Derivation.NONE


def over_top_k(own: float, likeliest: Sequence[float], sampling: Sampling, *, joint: bool) -> float:
    """A token's log-probability among those that it was drawn from.

    Args:
        own: Its log-probability over the whole vocabulary.
        likeliest: Those of the `top_k` most likely tokens, in any order.
        sampling: With its top_k and top_p.
        joint: Whether top_p is a mass of the whole vocabulary; otherwise of the `top_k` tokens alone.
    """
    kept = [math.exp(each) for each in sorted(likeliest, reverse=True)[: sampling.top_k]]
    bound = sampling.top_p * (1.0 if joint else sum(kept))
    mass = 0.0
    for probability in kept:
        if mass > bound:
            break
        mass += probability
    return min(own - math.log(mass), 0.0)


def log_probs_of(
    how: Derivation,
    sampling: Sampling,
    tokens: int,
    own: Sequence[float | None],
    likeliest: Sequence[Sequence[float | None]],
    *,
    joint: bool,
) -> tuple[float, ...]:
    """The log-probabilities that a request wants; none where they cannot be told.

    Args:
        how: How they follow from those told.
        sampling: What the request asked for.
        tokens: How many tokens there are.
        own: The log-probability of each token, as told.
        likeliest: Those of the most likely tokens at each place, as told.
        joint: See `over_top_k`.

    Raises:
        EngineError: There are not as many as tokens.
    """
    if how is Derivation.NONE:
        return ()
    if how is Derivation.ZEROS:
        return (0.0,) * tokens
    told = finite(own[:tokens])
    if len(told) != tokens:
        raise EngineError(f"the engine told {len(told)} log-probabilities of {tokens} tokens")
    if how is Derivation.AS_TOLD:
        return told
    pairs = zip(told, likeliest, strict=False)
    return tuple(over_top_k(each, finite(top), sampling, joint=joint) for each, top in pairs)


# What looks at a server add up to: alive or dead, paused or not, another incarnation. No I/O and no clock.

STALE_S = 5.0
"""How old what a server tells may be."""
WORTH_TELLING = 0.125
"""Part by which tokens change before that is told anew; they change with every step."""


class OthersBooks:
    """The driver's own load of the last seconds, and others' by what was told last."""

    def __init__(self) -> None:
        """Starts with nothing known."""
        self.found = OthersLoad()
        self._own: deque[tuple[float, int, int]] = deque()

    def own(self, sequences: int, kv_tokens: int, now: float) -> None:
        """Takes note of what the driver has on the server, whenever that grows and at each look."""
        while self._own and self._own[0][0] < now - STALE_S:
            self._own.popleft()
        self._own.append((now, sequences, kv_tokens))

    def told(self, load: OthersLoad | None, sequences: int, kv_tokens: int, now: float) -> bool:
        """Takes what the server tells of all its load, None where it tells nothing; returns whether others' changed."""
        self.own(sequences, kv_tokens, now)
        if load is None:
            return False
        most_sequences = max(each for _, each, _ in self._own)
        most_tokens = max(each for _, _, each in self._own)
        sequences = max(load.sequences - most_sequences, 0)
        # Tokens without a sequence are what own ones left behind.
        found = OthersLoad(sequences, max(load.kv_tokens - most_tokens, 0) if sequences else 0)
        grown = abs(found.kv_tokens - self.found.kv_tokens) > max(found.kv_tokens, self.found.kv_tokens) * WORTH_TELLING
        if found.sequences == self.found.sequences and not grown:
            return False
        self.found = found
        return True

    def forget(self) -> None:
        """The server is gone, and with it what others had there."""
        self.found = OthersLoad()


SLOW_LOOKS = 3
"""Looks in a row without an answer in time after which a server counts as dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at a server showed.

    Attributes:
        answered: Whether it answered.
        refused: If not: whether nothing listens there. Otherwise it was only too slow.
        problem: Why it does not serve; empty if it does, or is only paused.
        paused: Whether it holds requests back.
        identity: Tells one start of the server from another; empty where nothing does.
        version: What it says of its weights; None where it says nothing.
        load: What it says that it has in all; None where it says nothing.
    """

    answered: bool = True
    refused: bool = False
    problem: str = ""
    paused: bool = False
    identity: str = ""
    version: str | None = None
    load: OthersLoad | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What is believed of a server.

    Attributes:
        alive: Whether it serves.
        problem: Why not.
        paused: Whether it holds requests back.
        identity: As in the newest look.
        version: What its weights are called.
        losses: How often it may have lost its weights.
        unanswered: Looks without an answer since the last one with an answer.
    """

    alive: bool = True
    problem: str = ""
    paused: bool = False
    identity: str = ""
    version: str | None = None
    losses: int = 0
    unanswered: int = 0


def after_look(state: ServerState, look: Look) -> ServerState:
    """Returns what is believed after a look.

    A server that does not listen is dead at once, one that is slow only after several looks: a busy machine is no loss.
    Weights may be lost where it is another start of the server, where it was dead and nothing tells its starts apart,
    and where they are called otherwise than this driver has called them.
    """
    if not look.answered:
        unanswered = state.unanswered + 1
        if look.refused or unanswered >= SLOW_LOOKS or not state.alive:
            return replace(state, alive=False, problem=look.problem, unanswered=unanswered)
        return replace(state, unanswered=unanswered)
    lost = (
        look.identity != state.identity
        or look.version != state.version
        or (not look.identity and state.unanswered > 0 and not state.alive)
    )
    return ServerState(
        alive=not look.problem,
        problem=look.problem,
        paused=look.paused,
        identity=look.identity,
        version=look.version,
        losses=state.losses + lost,
    )
