"""A pytest plugin: a test may close no event loop in which gRPC was used.

gRPC has one completion queue for the whole process. It tells the end of a call to the call's loop through any other
loop that uses gRPC. If the call's loop is closed by then, that other one fails with "Event loop is closed", in a later
test. So tests use one loop, those of the client's own threads, or a process of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import anyio
import grpc.aio
import pytest
from callsheet.client.sync.loop_thread import loop_thread

_users: list[tuple[asyncio.AbstractEventLoop, str]] = []


def pytest_configure() -> None:
    """Notes the loop of each channel and server from now on."""
    for kind in (grpc.aio._channel.Channel, grpc.aio._server.Server):  # type: ignore[attr-defined]
        kind.__init__ = _noting(kind.__init__, kind.__name__)


def _noting(made: Callable[..., None], name: str) -> Callable[..., None]:
    @wraps(made)
    def init(*args: Any, **kwargs: Any) -> None:
        made(*args, **kwargs)
        _users.append((asyncio.get_running_loop(), name))

    return init


@pytest.fixture(autouse=True)
def loops_of_grpc_stay_open() -> Iterator[None]:
    """Fails a test that closed a loop in which there was a channel or a server."""
    yield
    closed = [name for loop, name in _users if loop.is_closed()]
    _users[:] = dict.fromkeys(user for user in _users if not user[0].is_closed())
    assert not closed, f"an event loop was closed after gRPC was used in it: {closed}"


@contextmanager
def runs_in_an_open_loop() -> Iterator[None]:
    """During the block `anyio.run` takes a loop that stays open, as it does not in a process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anyio, "run", _run)
        yield


def _run(function: Callable[..., Awaitable[Any]], *arguments: Any, **_: Any) -> Any:
    async def call() -> Any:
        return await function(*arguments)

    return loop_thread("tests: anyio.run").run(call())
