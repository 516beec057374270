"""The fake that users test their code with."""

from __future__ import annotations

import itertools

import anyio
import pytest
from callsheet.client import (
    Client,
    ClientClosedError,
    Command,
    CommandResult,
    EnvStep,
    Failed,
    FailureKind,
    Generate,
    GenerateResult,
    Outcome,
    OutputChunk,
    OutputStream,
    QueueFullError,
    Reason,
    RefusalCode,
    Succeeded,
    TrajectoryEnd,
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
    await fake.job("job").publish(2)
    assert fake.published == [("job", 2)]


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


async def test_a_traceparent_is_no_part_of_what_an_action_is() -> None:
    fake = FakeClient()
    made = itertools.count(1)
    fake.on_generate(lambda _: Succeeded(GenerateResult((next(made),))))
    job = await fake.open_job("job")
    first = await job.generate([1], action_id="a")
    assert await job.generate([1], action_id="a", traceparent=_SPAN) == first


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


async def test_a_closed_fake_is_closed() -> None:
    fake = FakeClient()
    async with fake:
        await fake.open_job("job")
    with pytest.raises(ClientClosedError):
        await fake.open_job("job")


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
