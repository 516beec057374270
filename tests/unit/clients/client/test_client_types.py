"""The types that user programs see: mypy checks each `assert_type`, and the programs run with a fake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_type

import pytest
from callsheet.client import (
    ActionHandle,
    CallsheetError,
    Client,
    CommandResult,
    EnvResetResult,
    EnvStep,
    Failed,
    Generate,
    GenerateResult,
    Group,
    GroupStatus,
    Job,
    JobStatus,
    Member,
    Opening,
    Outcome,
    OutputChunk,
    RewardResult,
    SandboxFile,
    Succeeded,
    SyncActionHandle,
    SyncClient,
    SyncGroup,
    SyncJob,
    SyncTrajectory,
    ToolCallResult,
    Trajectory,
    TrajectoryEnd,
    TrajectoryStatus,
    Where,
)
from callsheet.client.testing import FakeClient

_FILES = [SandboxFile("check.py", b"")]


@pytest.fixture
def fake() -> FakeClient:
    made = FakeClient()
    made.on_generate(lambda action: Succeeded(GenerateResult((1,))))
    made.on_env_reset(lambda action: Succeeded(EnvResetResult("sandbox")))
    made.on_env_step(lambda action: Succeeded(CommandResult(0, b"out")))
    made.on_tool_call(lambda action: Succeeded(ToolCallResult(b"response")))
    made.on_reward_tests(lambda action: Succeeded(RewardResult(1.0)))
    made.on_reward_script(lambda action: Succeeded(RewardResult(1.0)))
    made.on_reward_model(lambda action: Succeeded(RewardResult(1.0)))
    return made


async def _rollout(trajectory: Trajectory) -> float:
    assert_type(await trajectory.env_reset(), Outcome[EnvResetResult])
    assert_type(await trajectory.generate([1]), Outcome[GenerateResult])
    assert_type(await trajectory.env_step("ls"), Outcome[CommandResult])
    assert_type(await trajectory.tool_call("api", "get"), Outcome[ToolCallResult])
    assert_type(await trajectory.reward_model([1]), Outcome[RewardResult])
    assert_type(await trajectory.reward_script("score", files=_FILES, score_file="score"), Outcome[RewardResult])
    tests = await trajectory.reward_tests("pytest", where=Where.IN_SANDBOX)
    assert_type(tests, Outcome[RewardResult])
    return assert_type(tests.unwrap(), RewardResult).score


async def test_types_of_the_async_client(fake: FakeClient) -> None:
    client: Client = fake
    job = assert_type(await client.open_job("job"), Job)
    assert_type(job.opening, Opening | None)
    async with assert_type(job.trajectory("t"), Trajectory) as trajectory:
        handle = assert_type(await trajectory.submit(EnvStep("ls", stream_output=True)), ActionHandle[CommandResult])
        async for chunk in handle.output():
            assert_type(chunk, OutputChunk)
        assert_type(await handle, Outcome[CommandResult])
        assert_type(await handle.outcome(), Outcome[CommandResult])
        assert_type(await (await job.submit(Generate([1]))), Outcome[GenerateResult])
    assert_type(trajectory.end, TrajectoryEnd | None)
    async with assert_type(job.group("g", size=2), Group) as group:
        group.start(_rollout)
        async for done in group:
            assert_type(done, Member[Any])
            assert_type(done.end, TrajectoryEnd)
            assert_type(done.error, CallsheetError | None)
    assert_type(await group.status(), GroupStatus)
    assert_type(await trajectory.status(), TrajectoryStatus)
    assert_type(await client.jobs(), list[JobStatus])
    assert [member.value for member in group.members] == [1.0, 1.0]


def _sync_rollout(trajectory: SyncTrajectory) -> float:
    assert_type(trajectory.env_reset(), Outcome[EnvResetResult])
    assert_type(trajectory.generate([1]), Outcome[GenerateResult])
    assert_type(trajectory.env_step(["ls"]), Outcome[CommandResult])
    return assert_type(trajectory.reward_tests("pytest", files=_FILES), Outcome[RewardResult]).unwrap().score


def test_types_of_the_sync_client(fake: FakeClient) -> None:
    with SyncClient(fake) as client, assert_type(client.open_job("job"), SyncJob) as job:
        with assert_type(job.trajectory("t"), SyncTrajectory) as trajectory:
            handle = assert_type(trajectory.submit(EnvStep("ls")), SyncActionHandle[CommandResult])
            assert_type(handle.outcome(), Outcome[CommandResult])
        with assert_type(job.group("g", size=2), SyncGroup) as group:
            group.start(_sync_rollout)
            for done in group:
                assert_type(done, Member[Any])
        assert_type(job.status(), JobStatus)
        assert [member.value for member in group.members] == [1.0, 1.0]


def _told(outcome: Outcome[CommandResult]) -> str:
    match outcome:
        case Succeeded(value=result):
            return assert_type(result, CommandResult).stdout.decode()
        case Failed(reason=reason):
            return str(reason)
        case other:
            return str(other)


def test_types_of_outcomes_as_they_are_matched() -> None:
    tell: Callable[[Outcome[CommandResult]], str] = _told
    assert tell(Succeeded(CommandResult(0, b"out"))) == "out"
