"""HTTP to the outside: within a quota, to allowed hosts, and to public addresses unless one was named."""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from callsheet.managers.models.completions import blames_account
from callsheet.managers.sandbox.network.destinations import Destination, covered
from callsheet.managers.sandbox.network.proxy import addresses_of
from callsheet.managers.tools.errors import INFRA, POLICY, ToolFailedError
from callsheet.managers.tools.quota_gate import QuotaClock, QuotaGate
from callsheet.managers.tools.quotas import ToldLimits
from callsheet.managers.tools.settings import SpendingTable
from typing_extensions import override
from yarl import URL

# What the headers of an answer say about the limits of its provider. Pure.

LONGEST_BLOCK_S = 3600.0
TOO_MANY = 429
_DEFAULT_BLOCK_S = 1.0
_FAILED = 400
_LATER_THAN_SECONDS = 1e9  # Whatever is larger is a time, and no duration.
_REQUESTS = (
    "x-ratelimit-remaining-requests",
    "anthropic-ratelimit-requests-remaining",
    "x-ratelimit-remaining",
    "ratelimit-remaining",
)
_TOKENS = ("x-ratelimit-remaining-tokens", "anthropic-ratelimit-tokens-remaining")
# Of windows. Buckets tell when they are full again, which nobody has to wait for.
_RESETS = (("x-ratelimit-remaining", "x-ratelimit-reset"), ("ratelimit-remaining", "ratelimit-reset"))


def told_limits(status: int, headers: Mapping[str, str], now: float) -> ToldLimits:
    """Returns what an answer says.

    Args:
        status: Its HTTP status.
        headers: Its headers, found in any case of their names.
        now: Seconds since the epoch.
    """
    blocks = [_wait_s(headers.get(reset), now) for left, reset in _RESETS if _whole(headers.get(left)) == 0]
    if status >= _FAILED:
        blocks.append(_wait_s(headers.get("retry-after"), now))
    if status == TOO_MANY and not any(blocks):
        blocks.append(_DEFAULT_BLOCK_S)
    return ToldLimits(max(blocks, default=0.0), _least(headers, _REQUESTS), _least(headers, _TOKENS))


def _least(headers: Mapping[str, str], names: Iterable[str]) -> int | None:
    return min((left for name in names if (left := _whole(headers.get(name))) is not None), default=None)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


def _wait_s(text: str | None, now: float) -> float:
    """Seconds, a time since the epoch or an HTTP date; 0 for anything else."""
    if text is None:
        return 0.0
    try:
        number = float(text)
    except ValueError:
        try:
            number = parsedate_to_datetime(text).timestamp()
        except (ValueError, OverflowError):
            return 0.0
    if not math.isfinite(number):
        return 0.0
    return min(max(number - now if number > _LATER_THAN_SECONDS else number, 0.0), LONGEST_BLOCK_S)


CONNECT_TIMEOUT_S = 10.0
_CHUNK = 64 << 10
_OWN_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "callsheet-tools"}
MOST_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A request to send; its headers may hold a secret."""

    method: str
    url: URL
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """What came back.

    Attributes:
        status: The HTTP status.
        headers: Its headers, found in any case of their names.
        body: The beginning of its body, up to the bound, as it was sent.
        truncated: Whether there was more.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    truncated: bool

    @property
    def content(self) -> Any:
        """Its JSON; the text if it has none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return self.body.decode(errors="replace")


class ApiProvider:
    """An API, or many. Follows no redirects, keeps no cookies, unpacks nothing, takes no proxy. For one event loop."""

    def __init__(
        self, allowed: Sequence[Destination], table: SpendingTable, gate: QuotaGate, most_bytes: int = MOST_BYTES
    ) -> None:
        """Connects with the first request.

        Args:
            allowed: Where requests may go.
            table: How long an exchange may take, and whether names may lead to private addresses.
            gate: What may be spent.
            most_bytes: Of a body.
        """
        self._allowed = allowed
        self._table = table
        self._gate = gate
        self._most_bytes = most_bytes
        self._opened: aiohttp.ClientSession | None = None

    def check(self, url: URL) -> Destination:
        """Returns where a URL leads that may be asked for, as far as its text tells.

        Raises:
            ToolFailedError: It may not.
        """
        try:
            destination = destination_of(url)
        except ValueError as error:
            raise refused(str(error)) from error
        if not covered(destination, self._allowed):
            raise refused(f"{destination} is none of the hosts of this tool")
        return destination

    async def answer(
        self,
        request: OutgoingRequest,
        clock: QuotaClock,
        tokens: int = 0,
        used: Callable[[ProviderAnswer], int | None] = lambda _: None,
    ) -> ProviderAnswer:
        """Sends a request when its quota allows it, and again when the provider refused it for a limit.

        Args:
            request: The request; its URL must have been checked.
            clock: Of the attempt; it stands while this waits for the quota.
            tokens: Tokens that it is expected to take.
            used: Tells the tokens that it took; a refused one took none.

        Raises:
            ToolFailedError: There is no whole answer, or no time to wait for one.
        """
        while True:
            async with self._gate.admitted(tokens, clock) as admission:
                answer = await self._send(request)
                admission.told = told_limits(answer.status, answer.headers, time.time())
                admission.used = 0 if answer.status == TOO_MANY else used(answer)
            if answer.status != TOO_MANY or blames_account(answer.status, answer.content):
                return answer

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def _send(self, request: OutgoingRequest) -> ProviderAnswer:
        timeout = aiohttp.ClientTimeout(total=self._table.timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._session.request(
                request.method,
                request.url,
                headers={**request.headers, **_OWN_HEADERS},
                data=request.body,
                allow_redirects=False,
                timeout=timeout,
            ) as got:
                body = bytearray()
                async for chunk in got.content.iter_chunked(_CHUNK):
                    body += chunk
                    if len(body) > self._most_bytes:
                        break
                truncated = len(body) > self._most_bytes
                return ProviderAnswer(got.status, got.headers, bytes(body[: self._most_bytes]), truncated)
        except aiohttp.InvalidURL as error:
            raise refused(f"{request.url.host} is no host") from error
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            reason = "tool_timeout" if isinstance(error, TimeoutError) else "tool_unreachable"
            message = f"{request.url.host}: no answer: {type(error).__name__}"
            raise ToolFailedError(INFRA, reason, message) from None

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            resolver = aiohttp.ThreadedResolver() if self._table.private_addresses else _GuardedResolver()
            # Quotas and slots bound the calls.
            connector = aiohttp.TCPConnector(limit=0, resolver=resolver, family=socket.AF_INET)
            self._opened = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            )
            # By itself it repeats a GET, PUT or DELETE whose connection broke; the scheduler decides about that.
            self._opened._retry_connection = False
        return self._opened


class _GuardedResolver(AbstractResolver):
    """Looks names up as the proxy of sandboxes does. What it returns is what is connected to."""

    @override
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        try:
            found = await addresses_of(Destination.parse(f"{host}:{port}"))
        except PermissionError as error:
            raise refused(str(error)) from error
        return [
            ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=0) for address in found
        ]

    @override
    async def close(self) -> None:
        """Keeps nothing."""


def destination_of(url: URL) -> Destination:
    """Returns where a URL leads.

    Raises:
        ValueError: It is none of HTTP, or has a user.
    """
    if url.scheme not in ("http", "https") or not url.host or url.user is not None or url.password is not None:
        raise ValueError("the URL must be http:// or https://, with a host and without a user")
    return Destination.parse(f"[{url.host}]:{url.port}" if ":" in url.host else f"{url.host}:{url.port}")


def refused(message: str) -> ToolFailedError:
    """Returns that a call may not go where it wants to."""
    return ToolFailedError(POLICY, "host_refused", message)
