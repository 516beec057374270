"""What is changed while a job is being started counts for it, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from callsheet.managers.sandbox.agent_client import AgentConnection, Job
from callsheet.managers.sandbox.jobs import Process, SandboxJobs

pytestmark = pytest.mark.anyio

_PROCESS = Process(("true",), {}, "", {})


class _Agent:
    """Stands where the connection is, so that the moment of the fork is the test's to choose."""

    pid = 4711
    loss = None

    def __init__(self) -> None:
        self.job: Job | None = None

    async def start(self, operation: str, details: Mapping[str, object], descriptors: Sequence[int]) -> Job:
        del operation, details, descriptors
        self.job = Job(1)
        return self.job


def _jobs(agent: _Agent, pinned: list[frozenset[int]]) -> SandboxJobs:
    async def give_up() -> None:
        raise AssertionError("nothing has to be killed here")

    connection: Any = agent
    return SandboxJobs(
        cast("AgentConnection", connection),
        None,
        {},
        anyio.CapacityLimiter(1),
        pin=lambda _, cores: pinned.append(cores),
        give_up=give_up,
    )


async def test_a_process_forked_before_a_grant_and_seen_after_it_is_on_the_granted_cores() -> None:
    agent, pinned = _Agent(), list[frozenset[int]]()
    jobs = _jobs(agent, pinned)
    await jobs.put_on_cores(frozenset({0, 1}))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(jobs.start, _PROCESS, None)
            while agent.job is None:
                await anyio.lowlevel.checkpoint()
            await jobs.put_on_cores(frozenset({0}))
            agent.job.started.set()
    assert pinned == [frozenset({0, 1}), frozenset({0}), frozenset({0})]
