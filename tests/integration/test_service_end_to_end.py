"""The service with real sandboxes, every part in its own process."""

from __future__ import annotations

import hashlib
import random
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from callsheet.client import (
    Cancelled,
    Client,
    Command,
    Demand,
    EnvStep,
    Expired,
    Failed,
    FailedPreconditionError,
    FailureKind,
    Job,
    SandboxFile,
    Staleness,
    Succeeded,
    TimeoutKind,
    Timeouts,
    ToolCall,
    Unservable,
)
from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import ActionState
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.support.expected import expect
from tests.support.real_sandboxes import processes, sandbox_stack, until_state
from tests.support.stack_processes import kill_and_wait, start, wait_ended
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

ANSWER_S = 60.0
NAP_S = 86_400


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with sandbox_stack(tmp_path_factory.mktemp("stack")) as stack:
        yield stack


@pytest.fixture
async def job(stack: Stack) -> AsyncIterator[Job]:
    """A job of its own, on a client of its own, for each test."""
    async with Client(stack.address) as client, await client.open_job(uuid.uuid4().hex) as job:
        yield job


@pytest.fixture
async def admin(stack: Stack) -> AsyncIterator[AdminClient]:
    async with AdminClient(stack.address) as admin:
        yield admin


def nap() -> tuple[str, str]:
    """A command that takes a day and that no other test runs."""
    return "sleep", f"{NAP_S}.{random.randrange(10**9)}"


async def test_generic_tools_find_the_services_and_their_health(stack: Stack) -> None:
    async with grpc.aio.insecure_channel(stack.address) as channel:
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        reflection: Any = reflection_pb2_grpc.ServerReflectionStub
        health: Any = health_pb2_grpc.HealthStub
        call = reflection(channel).ServerReflectionInfo(iter([request]), timeout=ANSWER_S)
        answers = [answer async for answer in call]
        names = {service.name for service in answers[0].list_services_response.service}
        ours = {f"callsheet.v1.{name}Service" for name in ("Client", "Manager", "Admin", "Payload")}
        assert names == ours | {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        for name in ("", *ours):
            asked = health_pb2.HealthCheckRequest(service=name)
            answer = await health(channel).Check(asked, timeout=ANSWER_S)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_cancel_kills_the_command_and_keeps_the_sandbox(job: Job) -> None:
    command = nap()
    async with job.trajectory("t") as trajectory:
        reset = await trajectory.env_reset(service="sandbox")
        await trajectory.env_step(Command.shell("echo kept > file"))
        handle = await trajectory.submit(EnvStep(Command.shell(f"echo begun; {' '.join(command)}; echo ended")))
        await until(lambda: bool(processes(*command)))
        await handle.cancel("enough")
        outcome = expect(Cancelled, await handle.outcome())
        assert outcome.reason == "enough"
        assert outcome.partial is not None
        assert outcome.partial.stdout == b"begun\n"
        await until(lambda: not processes(*command))
        assert (await trajectory.env_step(Command.argv("cat", "file"))).unwrap().stdout == b"kept\n"
        assert isinstance(reset, Succeeded)


async def test_large_payloads_travel_both_ways(job: Job) -> None:
    content = random.Random(1).randbytes(300_000)
    async with job.trajectory("t") as trajectory:
        await trajectory.env_reset(service="sandbox", files=[SandboxFile("from_reset", content)])
        both = Command.shell("cat from_reset from_step; cat - >&2", stdin=content[:100_000])
        outcome = await trajectory.env_step(both, files=[SandboxFile("from_step", content[::-1])])
    result = outcome.unwrap()
    assert hashlib.sha256(result.stdout).digest() == hashlib.sha256(content + content[::-1]).digest()
    assert result.stderr == content[:100_000]
    assert result.stdout_dropped_bytes == 0


async def test_each_timeout_ends_what_it_is_for(stack: Stack, job: Job) -> None:
    command = nap()
    async with job.trajectory("t") as trajectory:
        await trajectory.env_reset(service="sandbox")
        script = Command.shell(f"echo begun; {' '.join(command)}")
        timed_out = expect(Failed, await trajectory.env_step(script, timeouts=Timeouts(start_to_close_s=1.0)))
        assert (timed_out.kind, timed_out.timeout) == (FailureKind.TIMEOUT, TimeoutKind.START_TO_CLOSE)
        assert timed_out.partial is not None
        # On a slow machine it may not have come to that within a second.
        assert timed_out.partial.stdout in {b"begun\n", b""}
        assert timed_out.attempts == 1

        expired = expect(Expired, await trajectory.env_step(script, timeouts=Timeouts(schedule_to_close_s=0.3)))
        assert expired.timeout is TimeoutKind.SCHEDULE_TO_CLOSE
        await until(lambda: not processes(*command))

        running = await trajectory.submit(EnvStep(script))
        waited = expect(
            Expired, await trajectory.env_step(Command.argv("true"), timeouts=Timeouts(schedule_to_start_s=0.3))
        )
        assert (waited.timeout, waited.attempts) == (TimeoutKind.SCHEDULE_TO_START, 0)
        await running.cancel()
        await running.outcome()
        # The sandbox lived through all of it.
        assert (await trajectory.env_step(Command.argv("echo", "alive"))).unwrap().stdout == b"alive\n"


async def test_a_failed_set_up_is_the_environments_and_not_tried_again(job: Job) -> None:
    async with job.trajectory("t") as trajectory:
        outcome = expect(
            Failed, await trajectory.env_reset(service="sandbox", set_up=Command.shell("echo broken >&2; exit 3"))
        )
        assert (outcome.kind, outcome.reason, outcome.attempts) == (FailureKind.ENV, "set_up_failed", 1)
        assert outcome.partial is not None
        assert outcome.partial.set_up is not None
        assert (outcome.partial.set_up.exit_code, outcome.partial.set_up.stderr) == (3, b"broken\n")


async def test_a_trajectory_too_stale_is_stopped_everywhere(stack: Stack, admin: AdminClient) -> None:
    command = nap()
    async with (
        Client(stack.address) as client,
        await client.open_job("stale", staleness=Staleness(max_versions=1)) as job,
    ):
        old = job.trajectory("old")
        async with old:
            await old.env_reset(service="sandbox")
            # Without a core of its own: the new one needs the only core that a machine may have.
            handle = await old.submit(EnvStep(Command.argv(*command)), demand=Demand())
            await until(lambda: bool(processes(*command)))
            await job.publish(1)
            async with job.trajectory("new") as new:
                await new.env_reset(service="sandbox")
                await job.publish(2)
                assert "staleness" in expect(Cancelled, await handle.outcome()).reason
                await until(lambda: not processes(*command))
                assert (await new.env_step(Command.argv("true"))).unwrap().exit_code == 0
                (status,) = [found for found in (await admin.status()).jobs if found.job_id == "stale"]
                assert (status.policy_version, status.open_trajectories) == (2, 1)
            with pytest.raises(FailedPreconditionError, match="was closed"):
                await old.env_step(Command.argv("true"))


async def test_a_command_outlives_a_restart_of_the_scheduler(stack: Stack, job: Job, admin: AdminClient) -> None:
    command = nap()
    async with job.trajectory("t") as trajectory:
        await trajectory.env_reset(service="sandbox")
        script = Command.shell(f"{' '.join(command)} & echo $! > pid; wait; echo ended")
        handle = await trajectory.submit(EnvStep(script))
        await until(lambda: bool(processes(*command)))
        before = (await admin.status()).epoch
        await kill_and_wait(stack, Role.SCHEDULER)
        await start(stack, Role.SCHEDULER)
        (napping,) = processes(*command)
        napping.kill()
        outcome = expect(Succeeded, await handle.outcome())
        assert (outcome.value.stdout, outcome.attempts) == (b"ended\n", 1)
        assert (await trajectory.env_step(Command.argv("test", "-e", "pid"))).unwrap().exit_code == 0
        assert (await admin.status()).epoch == before + 1
        again = await admin.outcome(job.job_id, handle.action_id)
    assert again == outcome


async def test_a_drained_manager_leaves_once_its_attempts_are_over(stack: Stack, job: Job, admin: AdminClient) -> None:
    # It may not have come back yet from what the test before did to the scheduler.
    handle = await job.submit(ToolCall("noop", "slow"), expected_duration_s=1.0, unservable=Unservable.WAIT)
    # A slow machine may look only after it is over.
    await until_state(admin, job.job_id, handle.action_id, ActionState.RUNNING, ActionState.SUCCEEDED)
    (manager,) = [found for found in (await admin.status()).managers if found.manager_id.endswith("noop")]
    await admin.drain(manager.manager_id)
    later = await job.submit(ToolCall("noop", "later"), unservable=Unservable.WAIT)
    assert isinstance(await handle.outcome(), Succeeded)
    await wait_ended(stack, Role.NOOP)
    # The stack leaves a drained manager away until it is asked for it.
    await start(stack, Role.NOOP)
    assert expect(Succeeded, await later.outcome()).attempts == 1
