"""Outcomes, retries, groups, silence and bursts through the real service, with managers that do nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from callsheet.client import (
    Cancelled,
    Client,
    ClientOptions,
    Command,
    EnvStep,
    Failed,
    FailureKind,
    Generate,
    Job,
    NotFoundError,
    Outcome,
    QueueFullError,
    Retry,
    Succeeded,
    TimeoutKind,
    Timeouts,
    ToolCall,
    Unservable,
)
from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import ActionState, WaitReason
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.noop import NoopExecutor, NoopSettings
from callsheet.managers.runtime import run_manager
from callsheet.managers.settings import ManagerSettings
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.v1 import action_pb2, outcome_pb2

from tests.support.client_items import after, spec
from tests.support.expected import expect
from tests.support.ports import free_port
from tests.support.raw_service import NODE, running_service
from tests.support.real_sandboxes import until_state
from tests.support.scripted_executor import ScriptedExecutor

pytestmark = pytest.mark.anyio

BURST = 10_000


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


async def test_an_outcome_can_be_waited_for(job: Job, admin: AdminClient) -> None:
    handle = await job.submit(ToolCall("noop", "slow"), expected_duration_s=600.0)
    await handle.accepted()
    assert await admin.outcome(job.job_id, handle.action_id) is None
    waited: list[Outcome[Any] | None] = []

    async def wait() -> None:
        waited.append(await admin.outcome(job.job_id, handle.action_id, wait_s=60.0))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await handle.cancel()
    outcome = expect(Cancelled, await handle.outcome())
    assert waited == [outcome]
    assert await admin.outcome(job.job_id, handle.action_id) == outcome


async def test_explain_says_what_an_action_waits_for(job: Job, admin: AdminClient) -> None:
    nobody = await job.submit(ToolCall("elsewhere", "get"), unservable=Unservable.WAIT)
    await nobody.accepted()
    explanation = await admin.explain("", nobody.action_id)
    assert (explanation.state, explanation.wait_reason) == (ActionState.QUEUED, WaitReason.NO_SERVICE)
    async with job.trajectory("t") as trajectory:
        await trajectory.env_reset(service="noop")
        first = await trajectory.submit(EnvStep(Command.argv("true")), expected_duration_s=60.0)
        second = await trajectory.submit(EnvStep(Command.argv("true")))
        await second.accepted()
        explanation = await admin.explain(job.job_id, second.action_id)
        assert explanation.wait_reason is WaitReason.EARLIER_IN_SANDBOX
        await first.cancel()
        assert isinstance(await second.outcome(), Succeeded)
        story = [event.event for event in (await admin.explain(job.job_id, second.action_id)).story]
    assert story[0] == "submitted"
    assert story[-1] == "outcome: succeeded"


async def test_a_quorum_makes_the_others_redundant(job: Job, admin: AdminClient) -> None:
    group = job.group("g", size=3, quorum=2)
    members = [group.trajectory(f"t-{number}") for number in range(3)]
    for member in members:
        await member.open()
        assert isinstance(await member.env_reset(service="noop"), Succeeded)
    slow = await members[2].submit(Generate([1], model="noop"), expected_duration_s=600.0)
    await until_state(admin, job.job_id, slow.action_id, ActionState.RUNNING)
    await members[0].close()
    assert (await admin.explain(job.job_id, slow.action_id)).state is ActionState.RUNNING
    await members[1].close()
    assert "quorum" in expect(Cancelled, await slow.outcome()).reason
    status = await admin.status()
    (found,) = [known for known in status.jobs if known.job_id == job.job_id]
    assert found.open_trajectories == 0
    assert [manager.sandboxes for manager in status.managers] == [0]


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


async def test_a_closed_job_is_forgotten_with_its_outcomes(stack: Stack, admin: AdminClient) -> None:
    async with Client(stack.address) as client:
        job = await client.open_job("closed")
        handle = await job.submit(ToolCall("noop", "slow"), expected_duration_s=600.0)
        await until_state(admin, "closed", handle.action_id, ActionState.RUNNING)
        await job.close()
        assert isinstance(await handle.outcome(), Cancelled)
        with pytest.raises(NotFoundError):
            await admin.outcome("closed", handle.action_id)


async def test_infrastructure_is_tried_again_and_nothing_else(tmp_path: Path) -> None:
    executor = ScriptedExecutor()
    async with (
        running_service(SchedulerSettings(tmp_path, listen="127.0.0.1:0")) as service,
        anyio.create_task_group() as tasks,
        Client(service.address) as client,
    ):
        settings = ManagerSettings(service.address, "m", NODE, handle_signals=False, max_end_bytes=50_000)
        await tasks.start(partial(run_manager, settings, executor))
        job = await client.open_job("job")
        retry = Retry(max_attempts=4, initial_backoff_s=0.01)
        once = expect(Failed, await job.tool_call("scripted", "m", label="raise", action_id="once", retry=retry))
        assert (once.kind, once.reason, once.attempts) == (FailureKind.INFRA, "executor_error", 1)
        assert executor.calls.count("run once") == 1
        call = action_pb2.ToolCallInput(method="m", idempotent=True)
        often = action_pb2.RetryPolicy(max_attempts=4, initial_backoff=after(10))
        submit = spec(action_id="raise", service="scripted", label="raise", tool_call=call, retry=often)
        assert await service.ask(submit) is None
        raised = await service.outcome("job", "raise")
        assert (raised.failed.kind, raised.failed.reason) == (outcome_pb2.FAILURE_KIND_INFRA, "executor_error")
        assert executor.calls.count("run raise") == 4
        timeouts = Timeouts(start_to_close_s=0.05)
        timed_out = expect(
            Failed, await job.tool_call("scripted", "m", label="wait", action_id="wait", timeouts=timeouts, retry=retry)
        )
        assert (timed_out.kind, timed_out.attempts) == (FailureKind.TIMEOUT, 1)
        assert timed_out.partial is not None
        assert timed_out.partial.response == b"part"
        assert executor.calls.count("run wait") == 1
        tasks.cancel_scope.cancel()


async def test_outcomes_survive_a_restart(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    settings = SchedulerSettings(tmp_path, listen=address, shutdown_grace=0.1)
    async with Client(address) as client, AdminClient(address) as admin, anyio.create_task_group() as tasks:
        manager = ManagerSettings(address, "m", NODE, handle_signals=False, reconnect_max_s=0.1)
        tasks.start_soon(partial(run_manager, manager, NoopExecutor(NoopSettings())))
        async with running_service(settings):
            job = await client.open_job("job")
            done = await job.submit(ToolCall("noop", "nothing"), unservable=Unservable.WAIT)
            outcome = await done.outcome()
            open_still = await job.submit(ToolCall("elsewhere", "get"), unservable=Unservable.WAIT)
            await open_still.accepted()
        async with running_service(settings):
            assert await admin.outcome("job", done.action_id) == outcome
            assert await admin.outcome("job", open_still.action_id) is None
            again = await job.submit(ToolCall("noop", "nothing"), action_id=done.action_id, unservable=Unservable.WAIT)
            assert await again.outcome() == outcome
            # The manager came back by itself, and the client's session too.
            assert isinstance(await job.tool_call("noop", "nothing", unservable=Unservable.WAIT), Succeeded)
            await open_still.cancel()
            assert isinstance(await open_still.outcome(), Cancelled)
        tasks.cancel_scope.cancel()


async def test_a_full_queue_reaches_the_caller_as_an_exception(tmp_path: Path) -> None:
    settings = SchedulerSettings(tmp_path, listen="127.0.0.1:0", max_open_actions=3)
    impatient = ClientOptions(give_up_after_s=2.0)
    async with running_service(settings) as service, Client(service.address, impatient) as client:
        job = await client.open_job("job")
        handles = [await job.submit(Generate([1]), unservable=Unservable.WAIT) for _ in range(4)]
        with pytest.raises(QueueFullError) as caught:
            await handles[3].accepted()
        assert caught.value.retry_after_s is not None
        for handle in handles[:3]:
            await handle.accepted()
