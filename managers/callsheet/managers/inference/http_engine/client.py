"""Calls to an engine's server: each with a deadline, each failure as an error of the seam"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import aiohttp
import anyio
import structlog
from callsheet.credentials.masking import Mask
from callsheet.managers.bounded_answers import BoundedConnector, read_body
from callsheet.managers.inference.driver import (
    EngineBusyError,
    EngineCapabilities,
    EngineError,
    EngineFailedError,
    EngineLimits,
    FinishReason,
    GenerateRequest,
    NonFiniteError,
    RequestRefusedError,
    Sampling,
)
from callsheet.managers.models.completions import blames_account, blames_length, message_of

CONTROL_TIMEOUT_S = 20.0
"""The longest wait for an answer that takes no computing."""
LOOK_TIMEOUT_S = 5.0
"""The longest wait for an answer to a look."""
CONNECT_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 128 << 20
"""Of an answer once it is decompressed: ten times that of a context of 131,072 tokens with their log-probabilities."""

Where = str | Callable[[], str]
"""Where a server is, such as "http://host:30000"; asked for with each call if it may move."""

# What means that no server answers, whatever was asked. ValueError: an answer that breaks HTTP's own limits.
_LOST = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


class EngineUnreachableError(EngineFailedError):
    """No server answers.

    Attributes:
        refused: Whether nothing listens there, or the connection broke; otherwise it was only too slow.
    """

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a server answered.

    Attributes:
        status: The HTTP status.
        content: The decoded JSON; the text where it is none.
    """

    status: int
    content: Any

    @property
    def ok(self) -> bool:
        """Whether the status tells of success."""
        return 200 <= self.status < 300

    def field(self, name: str) -> Any:
        """A field of a JSON object; None where there is no such."""
        return self.content.get(name) if isinstance(self.content, dict) else None

    @property
    def message(self) -> str:
        """What it says went wrong."""
        return f"HTTP {self.status}: {message_of(self.content)}"


class EngineHttp:
    """Calls to one server. Must be used from one event loop; connects with the first call.

    Args:
        url: Where it is; what is asked for it raises an EngineError while the server is nowhere.
        api_key: What it asks for as a bearer token.
    """

    def __init__(self, url: Where, api_key: str | None = None) -> None:
        self._where = url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._mask = Mask(api_key or "")
        self._opened: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        """Where the server is now."""
        return (self._where if isinstance(self._where, str) else self._where()).rstrip("/")

    @property
    def place(self) -> str:
        """The same for people, also while the server is nowhere."""
        try:
            return self.url
        except EngineError:
            return "its server"

    async def get(
        self, path: str, params: Mapping[str, str] | None = None, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> HttpAnswer:
        """Asks.

        Raises:
            EngineUnreachableError: No server answers in time.
            EngineError: The answer is larger than any that servers give.
        """
        return await self._call("GET", path, None, params, timeout_s)

    async def post(
        self,
        path: str,
        body: object = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = CONTROL_TIMEOUT_S,
    ) -> HttpAnswer:
        """Orders. `timeout_s` is None only where something else bounds the wait.

        Raises:
            EngineUnreachableError: No server answers in time.
            EngineError: The answer is larger than any that servers give.
        """
        return await self._call("POST", path, {} if body is None else body, params, timeout_s)

    async def close(self) -> None:
        """Ends all connections."""
        if self._opened is not None:
            await self._opened.close()

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            # Callers bound how many requests are live, so that a call never waits for a connection behind them.
            self._opened = aiohttp.ClientSession(connector=BoundedConnector(), headers=self._headers)
        return self._opened

    async def _call(
        self, method: str, path: str, body: object, params: Mapping[str, str] | None, timeout_s: float | None
    ) -> HttpAnswer:
        async with (
            self._translated(url := self.url + path),
            self._session.request(method, url, json=body, params=params, timeout=_timeout(timeout_s)) as got,
        ):
            content = await read_body(got, MAX_ANSWER_BYTES)
            if len(content) > MAX_ANSWER_BYTES:
                raise EngineError(f"{url}: the answer has more than {MAX_ANSWER_BYTES} bytes")
            text = self._mask.content(content).decode(errors="replace")
            try:
                return HttpAnswer(got.status, json.loads(text))
            except ValueError:
                return HttpAnswer(got.status, text)

    @asynccontextmanager
    async def _translated(self, url: str) -> AsyncIterator[None]:
        try:
            yield
        except _LOST as error:
            slow = isinstance(error, TimeoutError)
            reason = "no answer in time" if slow else f"{type(error).__name__}: {self._mask(str(error))}"
            raise EngineUnreachableError(f"{url}: {reason}", refused=not slow) from error


def _timeout(total_s: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total_s, sock_connect=CONNECT_TIMEOUT_S)


# Requests to servers: those that none could serve, what a refusal means, and what becomes of tokens on their way.

_FINISH = frozenset(reason.value for reason in FinishReason)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBounds:
    """What a server takes.

    Attributes:
        limits: Its limits.
        longest_prompt: The most tokens of a prompt; None where only the context bounds it.
        vocabulary: Token ids are below it; None where that is not known. Some servers die of an id beyond it.
        stop_texts: The most stop texts; 0 where it has no tokenizer.
    """

    limits: EngineLimits
    longest_prompt: int | None = None
    vocabulary: int | None = None
    stop_texts: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundServer(ABC):
    """A server as it was found.

    Attributes:
        bounds: What requests it takes.
        identity: Tells one start of the server from another; empty where nothing does.
        label: What it calls its weights; None where it does not say.
        model: Where the weights are that it serves; empty where it does not say.
    """

    bounds: RequestBounds
    identity: str
    label: str | None = None
    model: str = ""

    @property
    @abstractmethod
    def abilities(self) -> EngineCapabilities:
        """What it can do."""


def check_request(request: GenerateRequest, bounds: RequestBounds) -> None:
    """Refuses a request that the server can never serve.

    Raises:
        RequestRefusedError: Its reason names the rule.
    """
    tokens = request.prompt_token_ids
    if not tokens:
        raise RequestRefusedError("no_tokens", "prompt_token_ids is empty; it must have at least one token")
    end = bounds.vocabulary
    for place, token in enumerate(tokens):
        if token < 0 or (end is not None and token >= end):
            rule = "at least 0" if end is None else f"0 to {end - 1}"
            message = f"prompt_token_ids[{place}] is {token}; it must be {rule}"
            raise RequestRefusedError("token_out_of_vocabulary", message)
    longest = [each for each in (bounds.longest_prompt, bounds.limits.context_length) if each is not None]
    if longest and len(tokens) >= min(longest):
        message = f"prompt_token_ids has {len(tokens)} tokens; it must have fewer than {min(longest)}"
        raise RequestRefusedError("prompt_too_long", message)
    if request.sampling.stop and not bounds.stop_texts:
        raise RequestRefusedError("no_tokenizer", "stop: this engine has no tokenizer; give stop_token_ids instead")
    if len(request.sampling.stop) > bounds.stop_texts:
        message = f"stop has {len(request.sampling.stop)} texts; this engine takes at most {bounds.stop_texts}"
        raise RequestRefusedError("invalid_sampling", message)


def new_tokens(request: GenerateRequest, limits: EngineLimits) -> int:
    """The most new tokens to ask for: what the context leaves, as servers refuse more."""
    wanted = request.sampling.max_new_tokens
    if limits.context_length is None:
        return wanted
    return max(min(wanted, limits.context_length - len(request.prompt_token_ids)), 1)


def sampling_parameters(sampling: Sampling) -> dict[str, Any]:
    """What all servers call by the same names. What is the server's default is left out: some refuse unknown fields."""
    optional = {
        "stop_token_ids": sorted(sampling.stop_token_ids),
        "stop": list(sampling.stop),
        "ignore_eos": sampling.ignore_eos,
    }
    asked = {name: value for name, value in optional.items() if value}
    return {"temperature": sampling.temperature, "top_p": sampling.top_p, **asked}


def error_of(answer: HttpAnswer) -> EngineError:
    """What an answer that is no success means for a request."""
    if blames_length(answer.status, answer.message):
        return RequestRefusedError("prompt_too_long", answer.message)
    if blames_account(answer.status, answer.content):
        return EngineError(answer.message)
    if answer.status in (429, 503):
        return EngineBusyError(answer.message)
    if answer.status in (400, 413, 422):
        if "duplicate" in answer.message.lower():
            return RequestRefusedError("duplicate_request", answer.message)
        return RequestRefusedError("invalid_sampling", answer.message)
    return EngineError(answer.message)


def finish_reason_of(word: object) -> FinishReason:
    """Reads why a request ended.

    Raises:
        EngineError: It is no reason that a request can end with.
    """
    if word not in _FINISH:
        raise EngineError(f"finish_reason is {word!r}; it must be one of {sorted(_FINISH)}")
    return FinishReason(word)


def finite(log_probs: Sequence[float | None]) -> tuple[float, ...]:
    """Log-probabilities that are numbers.

    Raises:
        NonFiniteError: One is not, as of a model whose output overflows.
    """
    checked = tuple(each for each in log_probs if each is not None and math.isfinite(each))
    if len(checked) != len(log_probs):
        raise NonFiniteError("the engine told a log-probability that is no finite number")
    return checked


# Waits for a server to answer, before a manager registers what it serves.

T = TypeVar("T")
log = structlog.get_logger(__name__)

ATTACH_TIMEOUT_S = 900.0
"""A server of a large model takes minutes to start."""
ATTACH_AGAIN_S = 1.0


def attach(
    connect: Callable[[], EngineHttp], read: Callable[[EngineHttp], Awaitable[T]], timeout_s: float = ATTACH_TIMEOUT_S
) -> T:
    """Returns what `read` finds out about a server, once it answers; blocks until then, also inside an event loop.

    Raises:
        EngineFailedError: It did not answer in time.
        EngineError: It answered, and is no server that can be used.
    """
    given_up = _GivenUp()
    # A thread of its own, as the caller may be in an event loop.
    with ThreadPoolExecutor(max_workers=1) as pool:
        try:
            return pool.submit(anyio.run, partial(_attach, connect, read, timeout_s, given_up)).result()
        finally:
            # Before the thread is waited for: a signal may have interrupted this one.
            given_up.set()


class _GivenUp:
    """Lets one thread cancel what another one waits for in an event loop of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = False
        self._cancel: Callable[[], object] | None = None

    def set(self) -> None:
        with self._lock:
            self._set = True
            if self._cancel is not None:
                self._cancel()

    @contextmanager
    def cancelling(self, scope: anyio.CancelScope) -> Iterator[None]:
        """Cancels the scope, in the running loop, once it is set; for the time of the block."""
        with self._lock:
            if self._set:
                scope.cancel()
            self._cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, scope.cancel)
        try:
            yield
        finally:
            with self._lock:
                self._cancel = None


async def _attach(
    connect: Callable[[], EngineHttp],
    read: Callable[[EngineHttp], Awaitable[T]],
    timeout_s: float,
    given_up: _GivenUp,
) -> T:
    http = connect()
    try:
        with anyio.move_on_after(timeout_s) as scope, given_up.cancelling(scope):
            return await _read_when_up(http, read)
        raise EngineFailedError(f"{http.place}: no engine was ready there within {timeout_s:g} s")
    finally:
        await http.close()


async def _read_when_up(http: EngineHttp, read: Callable[[EngineHttp], Awaitable[T]]) -> T:
    told = False
    while True:
        try:
            return await read(http)
        except (EngineUnreachableError, EngineStartingError) as error:
            if not told:
                log.info("waiting for an engine", url=http.place, reason=str(error))
                told = True
        await anyio.sleep(ATTACH_AGAIN_S)


class EngineStartingError(EngineError):
    """The server answers, and its engine is not ready yet."""
