"""What a gateway asks the scheduler of its engines, and how many bytes of requests wait at once."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from callsheet.client import ActionKind
from callsheet.client.errors import ConnectionLostError
from callsheet.gateway.server import models
from callsheet.gateway.server.models import ServedModels
from callsheet.http_server.bounded_body import BoundedBody
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

pytestmark = pytest.mark.anyio


class Scheduler:
    """Tells of the managers that are set."""

    def __init__(self) -> None:
        self.asked = 0
        self.managers: list[Any] = []
        self.fails = False
        self.answering = anyio.Event()
        self.answering.set()

    async def status(self) -> Any:
        self.asked += 1
        await self.answering.wait()
        if self.fails:
            raise ConnectionLostError("away")
        return SimpleNamespace(managers=self.managers)


def manager(capabilities: Mapping[str, str]) -> Any:
    service = SimpleNamespace(name="policy", kinds=(ActionKind.GENERATE,))
    return SimpleNamespace(capabilities=capabilities, services=(service,))


async def test_the_context_is_asked_for_once_whether_engines_tell_it_or_not() -> None:
    for told, length in (({}, None), ({"context_length": "100"}, 100)):
        scheduler = Scheduler()
        scheduler.managers = [manager(told)]
        served = ServedModels(scheduler, "policy")  # type: ignore[arg-type]
        for _ in range(3):
            assert await served.context_length() == length
        assert scheduler.asked == 1


async def test_calls_do_not_wait_for_an_answer_while_there_is_an_older_one(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler()
    scheduler.managers = [manager({"context_length": "100"})]
    served = ServedModels(scheduler, "policy")  # type: ignore[arg-type]
    monkeypatch.setattr(models, "_FRESH_S", 0.0)
    assert await served.context_length() == 100
    scheduler.answering = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.all)
        while scheduler.asked < 2:
            await anyio.lowlevel.checkpoint()
        assert await served.context_length() == 100
        scheduler.fails = True
        scheduler.answering.set()
    assert await served.context_length() == 100
    # A scheduler that was away is not asked by each call.
    asked = scheduler.asked
    await served.all()
    assert scheduler.asked == asked


async def test_bodies_are_bounded_each_and_together() -> None:
    go, held = anyio.Event(), anyio.Event()

    async def take(scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        if body.startswith(b"wait"):
            held.set()
            await go.wait()

    app = BoundedBody(take, limit=100, limit_of_all=120)

    async def post(content: bytes) -> int:
        async def receive() -> Message:
            return {"type": "http.request", "body": content}

        async def send(message: Message) -> None:
            raise AssertionError(message)

        try:
            await app({"type": "http"}, receive, send)
        except HTTPException as refusal:
            return refusal.status_code
        return 200

    assert await post(b"x" * 101) == 413
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(post, b"wait" * 20)
        await held.wait()
        assert await post(b"x" * 41) == 429
        assert await post(b"x" * 40) == 200
        go.set()
    assert await post(b"x" * 100) == 200
