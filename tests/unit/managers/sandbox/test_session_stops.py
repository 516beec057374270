"""A step is brought to its end even where the sandbox's first process gets no CPU to do so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from callsheet.managers.sandbox.agent_client import sessions
from callsheet.managers.sandbox.agent_client.jobs import SandboxJobs
from callsheet.managers.sandbox.agent_client.sessions import SandboxSessions
from callsheet.managers.sandbox.errors import StoppedError

pytestmark = pytest.mark.anyio


class _StarvedAgent:
    """Stands where the connection is: it never comes to answer."""

    pid = 4711
    loss = None

    def __init__(self) -> None:
        self.asked = 0

    async def interrupt(self, *_: object) -> None:
        self.asked += 1
        await anyio.sleep_forever()


class _Leaf:
    """Raises when it is killed, so that whoever asks for the end sees that it came."""

    def kill(self) -> None:
        raise StoppedError


class _Session:
    job = None
    leaf = _Leaf()


async def test_a_session_is_killed_from_outside_if_its_agent_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_INTERRUPT_SECONDS", 0.01)
    agent: Any = _StarvedAgent()

    async def give_up() -> None:
        raise AssertionError("the sandbox lives on")

    limiter = anyio.CapacityLimiter(1)
    parts: Any = SimpleNamespace(
        group=None, limits={}, threads=limiter, copying=limiter, pin=lambda *_: None, by_process=True
    )
    jobs = SandboxJobs(agent, parts, give_up)
    session: Any = _Session()
    end = SandboxSessions(jobs, {}, "")._ender(session, since=0.0)

    async def insist() -> None:
        while True:
            await end()

    with anyio.fail_after(60), pytest.raises(StoppedError):
        await insist()
    assert agent.asked >= 1
