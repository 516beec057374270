"""Outcomes, retries, groups, silence and bursts through the real service, with managers that do nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
from callsheet.client import (
    Client,
    Failed,
    FailureKind,
    Job,
    Retry,
    Succeeded,
    TimeoutKind,
    Timeouts,
    ToolCall,
)
from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import ActionState
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings

from tests.support.real_sandboxes import until_state

pytestmark = pytest.mark.anyio

BURST = 3_000


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A scheduler and a no-op manager, in processes of their own."""
    settings = StackSettings(tmp_path_factory.mktemp("stack"), managers=(Role.NOOP,))
    async with local_stack(settings) as stack:
        yield stack


@pytest.fixture
async def job(stack: Stack, request: pytest.FixtureRequest) -> AsyncIterator[Job]:
    async with Client(stack.address) as client, await client.open_job(request.node.name) as job:
        yield job


@pytest.fixture
async def admin(stack: Stack) -> AsyncIterator[AdminClient]:
    async with AdminClient(stack.address) as admin:
        yield admin


async def test_a_burst_of_submits_is_taken_whole(job: Job, admin: AdminClient) -> None:
    handles = [await job.submit(ToolCall("noop", "nothing")) for _ in range(BURST)]
    outcomes = await asyncio.gather(*(handle.outcome() for handle in handles))
    assert all(isinstance(outcome, Succeeded) for outcome in outcomes)
    (status,) = (await admin.status()).jobs
    assert status.actions == {"succeeded": BURST}


async def test_a_silent_attempt_fails_by_its_heartbeat(stack: Stack, job: Job, admin: AdminClient) -> None:
    handle = await job.submit(
        ToolCall("noop", "slow"),
        expected_duration_s=600.0,
        timeouts=Timeouts(heartbeat_s=1.5),
        retry=Retry(max_attempts=1),
    )
    await until_state(admin, job.job_id, handle.action_id, ActionState.RUNNING)
    manager = stack.pid(Role.NOOP)
    os.kill(manager, signal.SIGSTOP)
    try:
        outcome = await handle.outcome()
    finally:
        os.kill(manager, signal.SIGCONT)
    assert isinstance(outcome, Failed), outcome
    assert (outcome.kind, outcome.timeout) == (FailureKind.INFRA, TimeoutKind.HEARTBEAT)
    # Within its lease the manager is not lost, and serves on.
    assert isinstance(await job.tool_call("noop", "nothing"), Succeeded)
    assert stack.pid(Role.NOOP) == manager
