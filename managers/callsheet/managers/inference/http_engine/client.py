"""HTTP calls to an engine's server: each with a deadline, each failure as an error of the seam."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from callsheet.managers.inference.driver import EngineError, EngineFailedError

CONTROL_TIMEOUT_S = 20.0
"""The longest wait for an answer that takes no computing."""
LOOK_TIMEOUT_S = 5.0
"""The longest wait for an answer to a look."""
CONNECT_TIMEOUT_S = 10.0
MAX_MESSAGE_CHARACTERS = 500

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


def message_of(content: Any) -> str:
    """The message in an error's body, in any of the shapes that servers give it; never longer than a few lines."""
    if isinstance(content, dict):
        for name in ("error", "message", "detail"):
            if content.get(name):
                return message_of(content[name])
    text = content if isinstance(content, str) else json.dumps(content)
    return text[:MAX_MESSAGE_CHARACTERS]


class EngineHttp:
    """Calls to one server. Must be used from one event loop; connects with the first call.

    Args:
        url: Where it is; what is asked for it raises an EngineError while the server is nowhere.
        api_key: What it asks for as a bearer token.
    """

    def __init__(self, url: Where, api_key: str | None = None) -> None:
        self._where = url
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
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
            connector = aiohttp.TCPConnector(limit=0)
            self._opened = aiohttp.ClientSession(connector=connector, headers=self._headers)
        return self._opened

    async def _call(
        self, method: str, path: str, body: object, params: Mapping[str, str] | None, timeout_s: float | None
    ) -> HttpAnswer:
        async with (
            self._translated(url := self.url + path),
            self._session.request(method, url, json=body, params=params, timeout=_timeout(timeout_s)) as got,
        ):
            return await _answer(got)

    @asynccontextmanager
    async def _translated(self, url: str) -> AsyncIterator[None]:
        try:
            yield
        except _LOST as error:
            slow = isinstance(error, TimeoutError)
            reason = "no answer in time" if slow else f"{type(error).__name__}: {error}"
            raise EngineUnreachableError(f"{url}: {reason}", refused=not slow) from error


def _timeout(total_s: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total_s, sock_connect=CONNECT_TIMEOUT_S)


async def _answer(got: aiohttp.ClientResponse) -> HttpAnswer:
    text = await got.text(errors="replace")
    try:
        return HttpAnswer(got.status, json.loads(text))
    except ValueError:
        return HttpAnswer(got.status, text)
