"""The fake that users test their code with."""

from __future__ import annotations

import anyio
import pytest
from callsheet.client import (
    AlreadyExistsError,
    Cancelled,
    Client,
    ClientClosedError,
    Command,
    CommandResult,
    EnvResetResult,
    EnvStep,
    Failed,
    FailedPreconditionError,
    FailureKind,
    Generate,
    GenerateResult,
    NotFoundError,
    Opening,
    Outcome,
    OutputChunk,
    OutputStream,
    QueueFullError,
    Reason,
    RefusalCode,
    RewardResult,
    Succeeded,
    SyncClient,
    ToolCallResult,
    TrajectoryEnd,
    Where,
)
from callsheet.client.errors import refused
from callsheet.client.testing import FakeClient

_SPAN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
_LS = Command.shell("ls")


async def _one_step(client: Client) -> Outcome[CommandResult]:
    """Stands for a user's code."""
    job = await client.open_job("job")
    async with job.trajectory("t") as trajectory:
        return await trajectory.env_step(_LS, label="list")


async def test_scripts_make_outcomes_and_submissions_are_recorded() -> None:
    fake = FakeClient()
    fake.on_env_step(lambda step: Succeeded(CommandResult(0, str(step.command.program).encode())))
    outcome = await _one_step(fake)
    assert outcome == Succeeded(CommandResult(0, b"ls"), job_id="job", action_id="action-1")
    (submission,) = fake.submitted
    assert (submission.action, submission.options.get("label")) == (EnvStep(_LS), "list")
    assert fake.closed_trajectories == {("job", "t"): TrajectoryEnd.COMPLETED}


async def test_every_verb_has_its_script() -> None:
    fake = FakeClient()
    fake.on_generate(lambda action: Succeeded(GenerateResult(tuple(action.prompt_token_ids))))
    fake.on_env_reset(lambda action: Succeeded(EnvResetResult("s")))
    fake.on_tool_call(lambda action: Succeeded(ToolCallResult(action.arguments)))
    fake.on_reward_tests(lambda action: Succeeded(RewardResult(float(action.where is Where.IN_SANDBOX))))
    fake.on_reward_model(lambda action: Succeeded(RewardResult(float(len(action.token_ids)))))
    job = await fake.open_job("job")
    async with job.trajectory("t") as trajectory:
        assert (await trajectory.generate([1, 2])).unwrap().token_ids == (1, 2)
        assert (await trajectory.env_reset()).unwrap().sandbox_id == "s"
        assert (await trajectory.tool_call("api", "get", b"x")).unwrap().response == b"x"
        assert (await trajectory.reward_tests(_LS, where=Where.IN_SANDBOX)).unwrap().score == 1.0
    assert (await job.reward_tests(_LS, image="debian")).unwrap().score == 0.0
    assert (await job.reward_model([1, 2, 3])).unwrap().score == 3.0


async def test_a_script_can_wait_fail_and_refuse() -> None:
    fake = FakeClient()
    job = await fake.open_job("job")

    async def fail_later(action: Generate) -> Outcome[GenerateResult]:
        await anyio.lowlevel.checkpoint()
        return Failed(FailureKind.INFRA, Reason.ENGINE_FAILED)

    fake.on_generate(fail_later)
    assert isinstance(await job.generate([1]), Failed)

    def refuse(action: Generate) -> Outcome[GenerateResult]:
        raise refused(RefusalCode.RESOURCE_EXHAUSTED, field="job", rule="full", retry_after_s=1.0)

    fake.on_generate(refuse)
    with pytest.raises(QueueFullError):
        await job.generate([1])


async def test_an_action_without_a_script_says_so() -> None:
    fake = FakeClient()
    job = await fake.open_job("job")
    with pytest.raises(LookupError, match="no script for generate"):
        await job.generate([1])


async def test_ids_are_kept_like_a_scheduler_keeps_them() -> None:
    fake = FakeClient()
    made = []
    fake.on_generate(lambda action: made.append(action) or Succeeded(GenerateResult((1,))))  # type: ignore[func-returns-value]
    job = await fake.open_job("job", share=2.0)
    first = await job.generate([1], action_id="a")
    assert await job.generate([1], action_id="a") == first
    assert await job.generate([1], action_id="a", traceparent=_SPAN) == first
    assert len(made) == 1
    with pytest.raises(AlreadyExistsError):
        await job.generate([2], action_id="a")
    with pytest.raises(AlreadyExistsError):
        await fake.open_job("job", share=3.0)
    with pytest.raises(NotFoundError):
        await fake.job("other").generate([1])
    with pytest.raises(NotFoundError):
        await job.trajectory("never opened").env_step(_LS)
    await job.close()
    with pytest.raises(NotFoundError):
        await job.generate([1])


async def test_policy_versions_never_go_back() -> None:
    fake = FakeClient()
    job = await fake.open_job("job")
    await job.publish(2)
    with pytest.raises(FailedPreconditionError):
        await job.publish(1)
    assert fake.published == [("job", 2)]


async def test_a_block_that_raises_abandons_its_trajectory() -> None:
    fake = FakeClient()
    job = await fake.open_job("job")
    with pytest.raises(ZeroDivisionError):
        async with job.trajectory("t"):
            raise ZeroDivisionError
    assert fake.closed_trajectories == {("job", "t"): TrajectoryEnd.ABANDONED}
    assert await job.trajectory("t").open() is Opening.CLOSED


async def test_cancelling_the_caller_cancels_the_action() -> None:
    fake = FakeClient()
    job = await fake.open_job("job")
    started = anyio.Event()

    async def forever(action: Generate) -> Outcome[GenerateResult]:
        started.set()
        await anyio.sleep_forever()
        raise AssertionError

    fake.on_generate(forever)
    async with anyio.create_task_group() as group:
        group.start_soon(job.generate, [1])
        await started.wait()
        group.cancel_scope.cancel()
    assert [(job_id, action_id) for job_id, action_id, _ in fake.cancelled] == [("job", "action-1")]


async def test_a_cancel_by_handle_ends_a_waiting_script() -> None:
    fake = FakeClient()
    job = await fake.open_job("job")
    started = anyio.Event()

    async def forever(action: Generate) -> Outcome[GenerateResult]:
        started.set()
        await anyio.sleep_forever()
        raise AssertionError

    fake.on_generate(forever)
    handle = await job.submit(Generate([1]), action_id="a")
    await handle.accepted()
    outcomes: list[Outcome[GenerateResult]] = []

    async def wait() -> None:
        outcomes.append(await handle.outcome())

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await started.wait()
        await handle.cancel("enough")
    assert outcomes == [Cancelled("enough", job_id="job", action_id="a")]


async def test_a_closed_fake_is_closed() -> None:
    fake = FakeClient()
    async with fake:
        await fake.open_job("job")
    with pytest.raises(ClientClosedError):
        await fake.open_job("job")


def test_the_sync_facade_takes_a_fake() -> None:
    fake = FakeClient()
    fake.on_env_step(lambda step: Succeeded(CommandResult(0)))
    with SyncClient(fake) as client:
        job = client.open_job("job")
        with job.trajectory("t") as trajectory:
            assert trajectory.env_step(_LS).unwrap() == CommandResult(0)
            handle = trajectory.submit(EnvStep(_LS), action_id="a")
            handle.accepted()
            assert isinstance(handle.outcome(), Succeeded)
        with pytest.raises(ZeroDivisionError), job.trajectory("u"):
            raise ZeroDivisionError
        job.close()
    assert fake.closed_trajectories == {("job", "t"): TrajectoryEnd.COMPLETED, ("job", "u"): TrajectoryEnd.ABANDONED}


async def test_output_is_what_the_script_says_where_it_is_asked_for() -> None:
    fake = FakeClient()
    fake.on_env_step(lambda step: Succeeded(CommandResult(0, b"out", b"err")))
    job = await fake.open_job("job")
    async with job.trajectory("t") as trajectory:
        heard = await trajectory.submit(EnvStep(_LS, stream_output=True))
        unheard = await trajectory.submit(EnvStep(_LS))
        assert [chunk async for chunk in heard.output()] == [
            OutputChunk(OutputStream.STDOUT, b"out"),
            OutputChunk(OutputStream.STDERR, b"err"),
        ]
        assert [chunk async for chunk in unheard.output()] == []
    with SyncClient(fake) as client, client.job("job").trajectory("u") as following:
        blocking = following.submit(EnvStep(_LS, stream_output=True))
        assert [chunk.content for chunk in blocking.output()] == [b"out", b"err"]
