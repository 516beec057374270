"""Calls to an engine's server: each with a deadline, each failure as an error of the seam"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from callsheet.credentials.masking import Mask
from callsheet.managers.bounded_answers import BoundedConnector, read_body
from callsheet.managers.inference.driver import (
    EngineError,
    EngineFailedError,
)
from callsheet.managers.models.completions import message_of

CONTROL_TIMEOUT_S = 20.0
"""The longest wait for an answer that takes no computing."""
LOOK_TIMEOUT_S = 5.0
"""The longest wait for an answer to a look."""
CONNECT_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 128 << 20
"""Most bytes of a decompressed answer: ten times those of a context of 131,072 tokens with their log-probabilities."""
Where = str | Callable[[], str]
"""Address of a server, such as "http://host:30000"; asked for with each call if it may move."""
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
    """Answer of a server.

    Attributes:
        status: The HTTP status.
        content: The decoded JSON; the text if it is none.
    """

    status: int
    content: Any

    @property
    def ok(self) -> bool:
        """Returns whether the status is one of success."""
        return 200 <= self.status < 300

    def field(self, name: str) -> Any:
        """Returns a field of a JSON object; None if there is no such field."""
        return self.content.get(name) if isinstance(self.content, dict) else None

    @property
    def message(self) -> str:
        """Returns the server's message about the fault."""
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
        """Returns the present address of the server."""
        return (self._where if isinstance(self._where, str) else self._where()).rstrip("/")

    @property
    def place(self) -> str:
        """Returns the same address for people, also while the server has none."""
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
