"""A provider of an API that enforces its limits, as those of models and searches do: in this process, over HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol
from urllib.parse import quote

from aiohttp import web


class Limit(Protocol):
    """A limit as a provider counts it."""

    def admit(self, now: float, units: int) -> float:
        """Counts units and returns 0, or the seconds after which they may come."""


@dataclass
class StrictBucket:
    """A token bucket, which is full at first."""

    per_second: float
    burst: int
    level: float = field(init=False)
    as_of: float = 0.0

    def __post_init__(self) -> None:
        self.level = float(self.burst)

    def admit(self, now: float, units: int) -> float:
        """Counts units and returns 0, or the seconds after which they may come."""
        self.level = min(self.level + (now - self.as_of) * self.per_second, float(self.burst))
        self.as_of = now
        if self.level < units - 1e-9:
            return (units - self.level) / self.per_second
        self.level -= units
        return 0.0


@dataclass
class SlidingWindow:
    """No time of `window_s` may see more than `most` units, wherever it begins."""

    most: int
    window_s: float = 60.0
    seen: deque[tuple[float, int]] = field(default_factory=deque)
    units_seen: int = 0

    def admit(self, now: float, units: int) -> float:
        """Counts units and returns 0, or the seconds after which they may come."""
        while self.seen and self.seen[0][0] <= now - self.window_s:
            self.units_seen -= self.seen.popleft()[1]
        if self.units_seen + units > self.most:
            return self.seen[0][0] + self.window_s - now
        self.seen.append((now, units))
        self.units_seen += units
        return 0.0


@dataclass
class FixedWindow:
    """So many units in each window; the first one begins with the first request."""

    most: int
    window_s: float
    began: float = 0.0
    seen: int = 0

    def admit(self, now: float, units: int) -> float:
        """Counts units and returns 0, or the seconds after which they may come."""
        if now - self.began >= self.window_s:
            self.began, self.seen = now, 0
        if self.seen + units > self.most:
            return self.began + self.window_s - now
        self.seen += units
        return 0.0

    def headers(self, now: float) -> dict[str, str]:
        """What it says of itself with every answer."""
        left_s = f"{max(self.began + self.window_s - now, 0.0):.3f}"
        return {"RateLimit-Remaining": str(self.most - self.seen), "RateLimit-Reset": left_s}


@dataclass
class LimitedProvider:
    """What a provider allows, and what it saw.

    Attributes:
        url: Where it listens.
        key: Who may ask; empty for anybody.
        requests: Its limit of requests.
        tokens: Its limit of tokens.
        most_at_once: Its limit of requests at once; 0 for none.
        takes_s: How long an answer takes.
        answer: What a judge answers.
        choice: What else is in the choice of that answer.
        refusal: Status and error with which it refuses everything; None for neither.
        pages: What it answers at some paths: status, headers and body. "{key}" is the key that came with the request.
        accepted: When it accepted a request.
        refused: How many it refused for a limit.
        at_once: The most requests that it had at once.
        seen: Paths that were asked for.
    """

    url: str = ""
    key: str = ""
    requests: Limit | None = None
    tokens: Limit | None = None
    most_at_once: int = 0
    takes_s: float = 0.0
    answer: str | None = "Fine. Score: 7"
    choice: dict[str, object] = field(default_factory=dict)
    refusal: tuple[int, object] | None = None
    pages: dict[str, tuple[int, dict[str, str], str]] = field(default_factory=dict)
    accepted: list[float] = field(default_factory=list)
    refused: int = 0
    now_at_once: int = 0
    at_once: int = 0
    seen: list[str] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers, or refuses as its limits say."""
        self.seen.append(request.path)
        if request.path in self.pages:
            status, headers, body = self.pages[request.path]
            key = request.headers.get("Authorization", "").removeprefix("Bearer ")
            forms = {"key": key, "quoted": quote(key, safe=""), "base64": base64.b64encode(key.encode()).decode()}
            forms["net"] = key.replace("+", "\\u002B").replace("&", "\\u0026")
            told = {name: value.format(**forms) for name, value in headers.items()}
            return web.Response(status=status, headers=told, text=body.format(**forms))
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "who are you"}, status=401)
        if self.refusal is not None:
            return web.json_response({"error": self.refusal[1]}, status=self.refusal[0])
        wait_s = self._wait_s(monotonic(), 100)
        if wait_s > 0:
            self.refused += 1
            return web.json_response({"error": "slow down"}, status=429, headers={"Retry-After": f"{wait_s:.3f}"})
        self.accepted.append(monotonic())
        self.now_at_once += 1
        self.at_once = max(self.at_once, self.now_at_once)
        try:
            await asyncio.sleep(self.takes_s)
            return await self._answer(request)
        finally:
            self.now_at_once -= 1

    def _wait_s(self, now: float, tokens: int) -> float:
        if self.most_at_once and self.now_at_once >= self.most_at_once:
            return 0.1
        waits = [limit.admit(now, units) for limit, units in ((self.requests, 1), (self.tokens, tokens)) if limit]
        return max(waits, default=0.0)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path.endswith("/chat/completions"):
            asked = json.loads(await request.text())
            message = {"role": "assistant", "content": self.answer, "asked": asked["messages"][0]["content"]}
            prompt = {"prompt_tokens": 80, "prompt_tokens_details": {"cached_tokens": 30}}
            usage = {**prompt, "completion_tokens": 20, "total_tokens": 100}
            return web.json_response({"choices": [{"message": message, **self.choice}], "usage": usage})
        if path == "/redirect":
            return web.Response(status=302, headers={"Location": request.query["to"]})
        if path == "/circle":
            return web.Response(status=302, headers={"Location": "/circle"})
        if path.startswith("/status/"):
            return web.json_response({"status": path}, status=int(path.rpartition("/")[2]))
        if path == "/large":
            return web.Response(body=b"x" * int(request.query["bytes"]))
        if path == "/binary":
            return web.Response(body=b"\xff\x00\xfe")
        headers = self.requests.headers(monotonic()) if isinstance(self.requests, FixedWindow) else {}
        told = {
            "path": path,
            "query": dict(request.query),
            "headers": dict(request.headers),
            "body": await request.text(),
        }
        return web.json_response(told, headers={"Set-Cookie": "session=1", **headers})


@asynccontextmanager
async def serve_provider(provider: LimitedProvider) -> AsyncIterator[LimitedProvider]:
    """Serves it on a port of this machine for the length of the block."""
    app = web.Application(client_max_size=1 << 24)
    app.router.add_route("*", "/{path:.*}", provider.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        provider.url = f"http://127.0.0.1:{port}"
        yield provider
    finally:
        await runner.cleanup()
