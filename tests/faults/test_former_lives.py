"""What was over does not begin again: former lives of a job, and actions that are forgotten, with real processes."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from callsheet.client import (
    ActionHandle,
    Client,
    Demand,
    ForgottenError,
    Job,
    Succeeded,
    ToolCall,
    ToolCallResult,
    Unservable,
)
from callsheet.client.admin import AdminClient

from tests.support.clusters import Cluster, open_cluster
from tests.support.waiting import until, until_so

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(130)]

_DEADLINE_S = 120.0
_POLL_S = 0.02
_KEPT = 10


def starts_of(cluster: Cluster) -> Counter[str]:
    """How often each action was started, by its id."""
    lines = (line for path in cluster.start_logs() for line in path.read_text().splitlines())
    return Counter(json.loads(line)["action"] for line in lines)


async def until_started(cluster: Cluster, action_id: str, times: int) -> None:
    """Waits until an action was started so often."""
    await until(lambda: starts_of(cluster)[action_id] >= times, every_s=_POLL_S)


async def call(job: Job, action_id: str, expected_s: float = 0.0) -> ActionHandle[ToolCallResult]:
    """Submits a call that does nothing, for so long."""
    return await job.submit(
        ToolCall("noop", "nothing"),
        action_id=action_id,
        demand=Demand(),
        unservable=Unservable.WAIT,
        expected_duration_s=expected_s,
    )


@asynccontextmanager
async def stopped(cluster: Cluster) -> AsyncIterator[None]:
    """The first manager hears and says nothing for the length of the block."""
    process = cluster.managers[0].process
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


async def restart(cluster: Cluster) -> None:
    """Kills the scheduler and starts it again."""
    await cluster.scheduler.kill()
    await cluster.scheduler.start()


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_manager_that_was_away_brings_no_attempt_into_the_next_life_of_a_job(
    tmp_path: Path, restarted: bool
) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with open_cluster(tmp_path, managers=1, lease_s=1.0) as cluster, Client(cluster.address) as client:
            job = await client.open_job("job", detached=True)
            await call(job, "a", 3600.0)
            await until_started(cluster, "a", 1)
            async with stopped(cluster), AdminClient(cluster.address) as admin:
                if restarted:
                    await restart(cluster)
                await until_so(admin.status, lambda it: not it.managers, every_s=_POLL_S)
                await job.close()
                second = await call(await client.open_job("job", detached=True), "a", 3600.0)
                await second.accepted()
                if restarted:
                    await restart(cluster)
            await until_started(cluster, "a", 2)
            await second.cancel()
            assert (await second).attempts == 1, "it has an attempt of its own"


async def test_what_is_forgotten_runs_again_neither_at_once_nor_after_a_kill(tmp_path: Path) -> None:
    options = ("--finished-actions", str(_KEPT))
    actions = [f"a{number}" for number in range(60)]
    with anyio.fail_after(_DEADLINE_S):
        async with open_cluster(tmp_path, managers=1, lease_s=10.0, options=options) as cluster:
            async with Client(cluster.address) as client:
                job = await client.open_job("job", detached=True)
                for action_id in actions:
                    assert isinstance(await (await call(job, action_id)), Succeeded)
                before = await forgotten_of(job, actions)
                await restart(cluster)
                after = await forgotten_of(job, actions)
                status = await job.status()
            starts = starts_of(cluster)
    assert before <= after, "what is forgotten stays forgotten"
    assert len(actions) - _KEPT <= len(after) == status.forgotten_actions
    assert set(starts.values()) == {1}


async def forgotten_of(job: Job, actions: Iterable[str]) -> set[str]:
    """Submits actions again; which of them are forgotten. The others must give their outcomes again."""
    forgotten = set()
    for action_id in actions:
        try:
            assert isinstance(await (await call(job, action_id)), Succeeded)
        except ForgottenError:
            forgotten.add(action_id)
    return forgotten
