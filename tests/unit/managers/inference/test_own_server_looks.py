"""What looks at a server tell whoever runs it: which start serves, and which does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from callsheet.managers.inference.driver import EngineLimits
from callsheet.managers.inference.http_engine.client import EngineHttp, EngineUnreachableError, HttpAnswer
from callsheet.managers.inference.http_engine.driver import HttpEngineDriver
from callsheet.managers.inference.http_engine.live_requests import LiveRequest
from callsheet.managers.inference.http_engine.log_probs import Derivation
from callsheet.managers.inference.http_engine.looks import Look
from callsheet.managers.inference.http_engine.replies import Reply
from callsheet.managers.inference.http_engine.requests import FoundServer, RequestBounds
from callsheet.managers.inference.launching.engine import NOT_ATTACHED

pytestmark = pytest.mark.anyio


@dataclass
class NotedServer:
    """A server of which only what it is told counts."""

    starts: int = 1
    problem: str = ""
    failure: str = ""
    noted: list[tuple[str, int]] = field(default_factory=list)

    def note_serving(self, start: int) -> None:
        self.noted.append(("serving", start))

    def note_silent(self, start: int) -> None:
        self.noted.append(("silent", start))

    async def stop(self) -> None:
        """Nothing runs."""


class Found(FoundServer):
    """A server of which nothing is known."""

    abilities = NOT_ATTACHED


class ScriptedLooks(HttpEngineDriver):
    """A driver whose looks a test makes up, and which is asked for nothing else."""

    def __init__(self, server: NotedServer, look: Callable[[], Look]) -> None:
        super().__init__(
            EngineHttp("http://127.0.0.1:1"), Found(bounds=RequestBounds(limits=EngineLimits()), identity="")
        )
        self._make_look = look
        self.own_server(server)

    async def _look(self) -> Look:
        return self._make_look()

    async def _send(self, live: LiveRequest, how: Derivation, seed: int) -> HttpAnswer:
        raise AssertionError("nobody generates")

    def _read(self, content: Any) -> Reply:
        raise AssertionError("nobody generates")

    async def _send_abort(self, live: LiveRequest) -> None:
        raise AssertionError("nothing is aborted")


def _unreachable() -> Look:
    raise EngineUnreachableError("no answer", refused=False)


async def test_a_look_tells_which_start_serves_and_which_does_not() -> None:
    server = NotedServer()
    looks: list[Look | None] = [Look(), None, Look(problem="the engine has died"), Look(paused=True)]
    driver = ScriptedLooks(server, lambda: looks.pop(0) or _unreachable())
    assert server.noted == [], "the start that was found to serve may have ended since"
    for _ in range(4):
        await driver.look()
    assert server.noted == [("serving", 1), ("silent", 1), ("silent", 1), ("serving", 1)]


async def test_a_start_that_begins_during_a_look_is_not_the_one_that_was_found_to_serve() -> None:
    server = NotedServer()

    def look() -> Look:
        server.starts += 1
        return Look()

    await ScriptedLooks(server, look).look()
    assert server.noted == [("serving", 1)]


async def test_silence_during_an_update_tells_nothing() -> None:
    server = NotedServer()
    driver = ScriptedLooks(server, _unreachable)
    async with driver._controlling():
        await driver.look()
    assert server.noted == []
