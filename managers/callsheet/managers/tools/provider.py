"""HTTP to the outside: within a quota, to allowed hosts, and to public addresses unless one was named."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

import aiohttp
import anyio
from aiohttp.abc import AbstractResolver, ResolveResult
from callsheet.managers.bounded_answers import BoundedConnector, read_body
from callsheet.managers.sandbox.network.addresses import addresses_of
from callsheet.managers.sandbox.network.destinations import Destination, covered
from callsheet.managers.tools.answers import FAILED, TOO_MANY, ProviderAnswer, SentKey, key_problem
from callsheet.managers.tools.errors import INFRA, POLICY, QUOTA, ToolFailedError
from callsheet.managers.tools.quota_gate import QuotaClock, QuotaGate
from callsheet.managers.tools.rate_headers import told_limits
from callsheet.managers.tools.settings import SpendingTable
from multidict import CIMultiDict
from typing_extensions import override
from yarl import URL

CONNECT_TIMEOUT_S = 10.0
_OWN_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "callsheet-tools"}
MOST_BYTES = 4 << 20
# Hosts that want a break are forgotten after these, the first one first.
_MOST_HOSTS = 1024


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A request to send.

    Attributes:
        is_own: Whether it goes to the API that the key and the quota are of.
    """

    method: str
    url: URL
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = None
    is_own: bool = True


class ApiProvider:
    """An API, or many. Follows no redirects, keeps no cookies, unpacks nothing, takes no proxy. For one event loop.

    Attributes:
        mask: Takes the manager's secrets out of texts.
    """

    def __init__(
        self,
        allowed: Sequence[Destination],
        table: SpendingTable,
        gate: QuotaGate,
        key: SentKey,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """Connects with the first request.

        Args:
            allowed: Where requests may go.
            table: How long an exchange may take, and whether names may lead to private addresses.
            gate: What may be spent.
            key: What requests to the own API carry besides.
            most_bytes: Of a body.
        """
        self._allowed = allowed
        self._table = table
        self._gate = gate
        self._key = key
        self.mask = key.mask
        self._most_bytes = most_bytes
        self._opened: aiohttp.ClientSession | None = None
        self._breaks: dict[str, float] = {}

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
        host = request.url.authority
        while True:
            if not request.is_own:
                await self._wait_for(host, clock)
            async with self._gate.admitted(tokens, clock) as admission:
                answer = await self._send(request)
                admission.used = 0 if answer.status == TOO_MANY else used(answer)
                problem = key_problem(answer, self._key) if request.is_own else None
                if problem is None:
                    limits = told_limits(answer.status, answer.headers, time.time())
                    if request.is_own:
                        admission.told = limits
                    elif limits.blocked_s > 0:
                        self._breaks[host] = monotonic() + limits.blocked_s
                        self._breaks = dict([*self._breaks.items()][-_MOST_HOSTS:])
            if request.is_own and (problem is not None or answer.status < FAILED):
                self._gate.note_refusal(problem.broken.failed if problem is not None else None)
            if problem is not None:
                raise problem
            if answer.status != TOO_MANY:
                return answer

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def _wait_for(self, host: str, clock: QuotaClock) -> None:
        """Waits until a host's break is over, which stops the calls to this host, and no others."""
        with clock.waiting() as deadline:
            wait_s = max(self._breaks.get(host, 0.0) - monotonic(), 0.0)
            if wait_s > 0 and monotonic() + wait_s > deadline:
                message = f"{host} allows no call for {wait_s:.1f} s, which is beyond its deadline"
                raise ToolFailedError(QUOTA, "quota_exhausted", message, retry_after_s=wait_s)
            await anyio.sleep(wait_s)

    async def _send(self, request: OutgoingRequest) -> ProviderAnswer:
        timeout = aiohttp.ClientTimeout(total=self._table.timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        mask, most = self.mask, self._most_bytes
        sent = CIMultiDict(request.headers)
        sent.update({**(self._key.headers if request.is_own else {}), **_OWN_HEADERS})
        try:
            async with self._session.request(
                request.method,
                request.url,
                headers=sent,
                data=request.body,
                allow_redirects=False,
                timeout=timeout,
            ) as got:
                body = await read_body(got, most + mask.longest)
                return ProviderAnswer(
                    got.status,
                    CIMultiDict((name, mask(value)) for name, value in got.headers.items()),
                    mask.content(body, most),
                    len(body) > most,
                )
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
            connector = BoundedConnector(resolver=resolver, family=socket.AF_INET)
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
