"""A dashboard in this process, as its own server serves it, and what browsers ask."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from html import unescape
from typing import Any
from urllib.parse import urlencode

import aiohttp
import anyio
from callsheet.dashboard.pages import POLICY
from callsheet.dashboard.server import serve
from callsheet.dashboard.settings import DashboardSettings
from callsheet.dashboard.source import Source

from tests.support.waiting import until_so

ANSWER_S = 60.0


@dataclass(frozen=True)
class Page:
    """An answer; `text` has HTML's entities resolved."""

    status: int
    raw: str
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        return unescape(self.raw)


class Browser:
    """Asks pages, and keeps cookies as a browser does."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self._session = url, session

    async def get(self, path: str, headers: Mapping[str, str] | None = None, /, **query: str) -> Page:
        """A page."""
        return await self._ask("GET", f"{path}?{urlencode(query)}" if query else path, headers or {}, None)

    async def shown(self, path: str, text: str, **query: str) -> Page:
        """A page once it has a text; what viewers share may be a second old."""
        return await until_so(lambda: self.get(path, **query), lambda page: text in page.text, every_s=0.1)

    async def post(self, path: str, headers: Mapping[str, str] | None = None, /, **fields: str) -> Page:
        """Sends a form of the dashboard's own."""
        return await self._ask("POST", path, {"Origin": self.url, **(headers or {})}, fields)

    async def log_in(self, token: str) -> Page:
        """Gives a token."""
        return await self.post("/login", token=token, next="/now")

    async def _ask(self, method: str, path: str, headers: Mapping[str, str], fields: Any) -> Page:
        async with self._session.request(
            method, f"{self.url}{path}", headers=headers, data=fields, allow_redirects=False
        ) as answer:
            # Whatever it is, browsers are told what they may do with it.
            assert answer.headers["Content-Security-Policy"] == POLICY, path
            return Page(answer.status, await answer.text(), answer.headers.copy())


@asynccontextmanager
async def browser(url: str) -> AsyncIterator[Browser]:
    """A browser with no cookies yet."""
    # Cookies of addresses are kept, too.
    async with aiohttp.ClientSession(
        cookie_jar=aiohttp.CookieJar(unsafe=True), timeout=aiohttp.ClientTimeout(ANSWER_S)
    ) as session:
        yield Browser(url, session)


@asynccontextmanager
async def running_dashboard(scheduler: str, *, run: Source | None = None, **settings: Any) -> AsyncIterator[str]:
    """Serves a dashboard of a scheduler, or of a run that is over; yields its URL."""
    told = DashboardSettings(scheduler=scheduler, **{"listen": "127.0.0.1:0", **settings})
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        url: str = await tasks.start(partial(serve, told, stop, run=run))
        yield url
        stop.set()
