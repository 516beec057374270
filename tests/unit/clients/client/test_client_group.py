"""Groups as objects: seats, quorum, replacement of what was lost."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from callsheet.client import (
    ActionCancelledError,
    AlreadyExistsError,
    CommandResult,
    EnvStep,
    Failed,
    FailedPreconditionError,
    FailureKind,
    InfraError,
    InvalidArgumentError,
    Job,
    Outcome,
    PolicyError,
    Reason,
    RefusalCode,
    Staleness,
    Succeeded,
    SyncClient,
    SyncGroup,
    SyncTrajectory,
    Trajectory,
    TrajectoryEnd,
)
from callsheet.client.errors import refused
from callsheet.client.testing import FakeClient

_LOST: Failed[CommandResult] = Failed(FailureKind.INFRA, Reason.MANAGER_LOST)


@pytest.fixture
def fake() -> FakeClient:
    return FakeClient()


@pytest.fixture
async def job(fake: FakeClient) -> Job:
    fake.on_env_step(lambda step: Succeeded(CommandResult(0)))
    return await fake.open_job("job")


async def _named(trajectory: Trajectory) -> str:
    (await trajectory.env_step("ls")).unwrap()
    return trajectory.trajectory_id


async def test_a_member_that_completes_as_the_quorum_is_reached_has_completed(
    fake: FakeClient, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = fake.backend()
    close, opened, closed, stopped = backend.close_trajectory, anyio.Event(), anyio.Event(), anyio.Event()

    async def slow_to_answer(job_id: str, trajectory_id: str, end: TrajectoryEnd, reason: str = "") -> None:
        await close(job_id, trajectory_id, end)
        if trajectory_id == "p7/0":
            await stopped.wait()
        elif trajectory_id == "p7/1":
            closed.set()

    async def rollout(trajectory: Trajectory) -> str:
        if trajectory.trajectory_id != "p7/2":
            await opened.wait()
        else:
            opened.set()
            await closed.wait()  # it is refused now, and learns of the quorum before this process counts it
            (await trajectory.env_step("ls")).unwrap()
        return trajectory.trajectory_id

    monkeypatch.setattr(backend, "close_trajectory", slow_to_answer)
    async with job.group("p7", size=3, quorum=2) as group:
        stop = group.stop

        def stop_and_tell(besides: anyio.CancelScope | None = None) -> None:
            stop(besides)
            stopped.set()

        monkeypatch.setattr(group, "stop", stop_and_tell)
        group.start(rollout)
        done = [member async for member in group]
    assert sorted(str(member.value) for member in done) == ["p7/0", "p7/1"]
    assert {member.end for member in done} == {TrajectoryEnd.COMPLETED}


async def test_a_member_lost_to_infra_is_replaced_and_takes_no_seat(fake: FakeClient, job: Job) -> None:
    ends: list[Outcome[CommandResult]] = [_LOST, *([Succeeded(CommandResult(0))] * 2)]

    def next_end(step: EnvStep) -> Outcome[CommandResult]:
        return ends.pop(0)

    fake.on_env_step(next_end)
    async with job.group("g", size=2) as group:
        group.start(_named)
        done = [member async for member in group]
    assert len(group.lost) == 1
    assert {member.end for member in done} == {TrajectoryEnd.COMPLETED}
    assert not {member.trajectory_id for member in done} & set(group.lost)
    assert (await group.status()).lost == group.lost


async def test_what_cannot_be_replaced_any_more_is_told_as_lost(fake: FakeClient, job: Job) -> None:
    fake.on_env_step(lambda step: _LOST)
    async with job.group("g", size=1, max_replacements=2) as group:
        group.start(_named)
        (member,) = [member async for member in group]
    assert (member.end, member.value) == (TrajectoryEnd.LOST, None)
    assert isinstance(member.error, InfraError)
    assert len(group.lost) == 3
    assert group.members == (member,)


async def test_other_failures_abandon_and_keep_their_seat(fake: FakeClient, job: Job) -> None:
    fake.on_env_step(lambda step: Failed(FailureKind.POLICY, Reason.CANNOT_EXECUTE))
    async with job.group("g", size=2) as group:
        group.start(_named)
        done = [member async for member in group]
    assert [type(member.error) for member in done] == [PolicyError, PolicyError]
    assert {member.end for member in done} == {TrajectoryEnd.ABANDONED}
    assert not group.has_quorum


async def test_a_mistake_in_a_rollout_ends_the_block(fake: FakeClient, job: Job) -> None:
    async def mistaken(trajectory: Trajectory) -> None:
        if trajectory.trajectory_id == "g/1":
            raise ZeroDivisionError
        await anyio.sleep_forever()

    async def use() -> None:
        async with job.group("g", size=3) as group:
            group.start(mistaken)
            async for _ in group:
                pass

    with pytest.raises(ZeroDivisionError):
        await use()
    assert set(fake.closed_trajectories.values()) == {TrajectoryEnd.ABANDONED}


@pytest.mark.parametrize("own_tasks", [False, True])
@pytest.mark.parametrize("cause", [None, KeyError("whence")])
async def test_a_mistake_is_told_by_one_traceback(job: Job, own_tasks: bool, cause: Exception | None) -> None:
    async def mistaken(trajectory: Trajectory) -> None:
        await anyio.lowlevel.checkpoint()
        try:
            if cause is not None:
                raise cause
        except KeyError:
            raise ZeroDivisionError from None if own_tasks else cause
        raise ZeroDivisionError

    async def with_tasks(trajectory: Trajectory) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(mistaken, trajectory)

    async def use() -> None:
        async with job.group("g", size=3) as group:
            group.start(with_tasks if own_tasks else mistaken)
            async for _ in group:
                pass

    with pytest.raises(ZeroDivisionError) as raised:
        await use()
    told = "".join(traceback.format_exception(raised.value))
    assert told.count("Traceback") == (2 if cause is not None and not own_tasks else 1)
    assert ("whence" in told) == (cause is not None and not own_tasks)


async def test_a_verb_refused_after_a_quorum_elsewhere_ends_its_member_and_is_no_mistake(
    fake: FakeClient, job: Job
) -> None:
    async def rollout(trajectory: Trajectory) -> None:
        if trajectory.trajectory_id == "g/0":
            while len(await job.trajectories()) < 2:
                await anyio.lowlevel.checkpoint()
            await fake.backend().close_trajectory("job", "g/1", TrajectoryEnd.COMPLETED)
            await trajectory.env_step("ls")
        await anyio.sleep_forever()

    with anyio.fail_after(30):
        async with job.group("g", size=2, quorum=1) as group:
            group.start(rollout)
            assert [member async for member in group] == []  # redundant members are not told
    assert group.has_quorum
    redundant, completed = group.members
    assert (redundant.end, completed.end) == (TrajectoryEnd.ABANDONED, TrajectoryEnd.COMPLETED)
    assert isinstance(redundant.error, FailedPreconditionError)


async def _refused(job: Job, trajectory: Trajectory) -> None:
    await job.publish(2)
    await trajectory.env_step("ls")


async def _cancelled(job: Job, trajectory: Trajectory) -> None:
    async with anyio.create_task_group() as tasks:
        handle = await trajectory.submit(EnvStep("sleep"))
        tasks.start_soon(job.publish, 2)
        (await handle).unwrap()


async def _both(job: Job, trajectory: Trajectory) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancelled, job, trajectory)
        with anyio.CancelScope(shield=True):
            while (await trajectory.status()).end is None:
                await anyio.lowlevel.checkpoint()
            await trajectory.env_step("ls")


async def _closed_by_hand(job: Job, trajectory: Trajectory) -> None:
    await job.publish(2)
    await trajectory.close()


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        (_refused, FailedPreconditionError),
        (_cancelled, ActionCancelledError),
        (_both, ActionCancelledError),
        (_closed_by_hand, AlreadyExistsError),
    ],
)
async def test_a_member_that_became_too_stale_has_ended(
    fake: FakeClient, ending: Callable[[Job, Trajectory], Awaitable[None]], error: type[Exception]
) -> None:
    async def script(step: EnvStep) -> Outcome[CommandResult]:
        await anyio.sleep_forever()
        raise AssertionError

    fake.on_env_step(script)
    stale = await fake.open_job("stale", staleness=Staleness(1))
    with anyio.fail_after(30):
        async with stale.group("g", size=1) as group:
            group.start(partial(ending, stale))
            (member,) = [member async for member in group]
    assert (member.end, type(member.error)) == (TrajectoryEnd.ABANDONED, error)
    assert group.members == (member,)
    assert not group.has_quorum


async def test_a_refusal_in_an_open_trajectory_is_a_mistake(fake: FakeClient, job: Job) -> None:
    def refuse(step: EnvStep) -> Outcome[CommandResult]:
        raise refused(RefusalCode.FAILED_PRECONDITION, field="trajectory_id", value="g/0", rule="has no sandbox")

    fake.on_env_step(refuse)

    async def use() -> None:
        async with job.group("g", size=1) as group:
            group.start(_named)

    with pytest.raises(FailedPreconditionError):
        await use()


async def test_what_is_no_rollout_is_refused(job: Job) -> None:
    mistaken: Any = 5
    async with job.group("g", size=1) as group:
        with pytest.raises(InvalidArgumentError, match="rollout"):
            group.start(mistaken)


@pytest.mark.parametrize("end", [TrajectoryEnd.COMPLETED, TrajectoryEnd.LOST, TrajectoryEnd.ABANDONED])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_block_whose_trajectory_was_closed_meanwhile_tells_how_it_ended(
    fake: FakeClient, job: Job, end: TrajectoryEnd, fails: bool
) -> None:
    with suppress(KeyError):
        async with job.trajectory("t") as trajectory:
            await fake.backend().close_trajectory("job", "t", end)
            if fails:
                raise KeyError
    assert trajectory.end is end


async def test_a_block_whose_job_was_closed_meanwhile_was_abandoned(job: Job) -> None:
    async with job.trajectory("t") as trajectory:
        await job.close()
    assert trajectory.end is TrajectoryEnd.ABANDONED


async def test_an_error_in_the_block_is_raised_as_it_is(job: Job) -> None:
    async def forever(trajectory: Trajectory) -> None:
        await anyio.sleep_forever()

    async def use() -> None:
        async with job.group("g", size=2) as group:
            group.start(forever)
            raise KeyError

    with pytest.raises(KeyError):
        await use()


async def test_a_cancelled_group_ends(fake: FakeClient, job: Job) -> None:
    async def forever(trajectory: Trajectory) -> None:
        await anyio.sleep_forever()

    async with job.group("g", size=2) as group:
        group.start(forever)
        with anyio.fail_after(30):
            while len(await job.trajectories()) < 2:
                await anyio.lowlevel.checkpoint()
        await group.cancel("enough")
        assert [member async for member in group] == []
    assert set(fake.closed_trajectories.values()) == {TrajectoryEnd.ABANDONED}


async def test_members_driven_by_hand(job: Job) -> None:
    group = job.group("g", size=2)
    for _ in range(2):
        async with group.trajectory():
            pass
    assert group.has_quorum
    assert [member.trajectory_id for member in group.members] == ["g/0", "g/1"]
    with pytest.raises(FailedPreconditionError):
        await group.trajectory("late").open()
    with pytest.raises(FailedPreconditionError):
        async for _ in group:
            pass


async def test_a_process_that_comes_back_finds_what_had_ended(job: Job) -> None:
    async with job.group("g", size=3).trajectory():
        pass
    async with job.group("g", size=3) as group:
        group.start(_named)
        found = {member.trajectory_id: member.value async for member in group}
    assert found == {"g/0": None, "g/1": "g/1", "g/2": "g/2"}


async def test_a_block_left_by_a_loss_is_lost(fake: FakeClient, job: Job) -> None:
    fake.on_env_step(lambda step: _LOST)
    with pytest.raises(InfraError):
        async with job.trajectory("t") as trajectory:
            (await trajectory.env_step("ls")).unwrap()
    assert fake.closed_trajectories == {("job", "t"): TrajectoryEnd.LOST}
    with pytest.raises(AlreadyExistsError):
        await trajectory.close()
    with pytest.raises(FailedPreconditionError, match="LOST"):
        async with job.trajectory("t"):
            pass


async def test_a_group_that_was_left_has_no_more_members_to_wait_for(job: Job) -> None:
    async with job.group("g", size=1) as group:
        group.start(_named)
    assert [member async for member in group] == []
    assert [member.value for member in group.members] == ["g/0"]


def _run_all(group: SyncGroup, rollout: Callable[[SyncTrajectory], object]) -> None:
    with group:
        group.start(rollout)
        assert list(group) == []


def test_groups_of_plain_threads(fake: FakeClient) -> None:
    fake.on_env_step(lambda step: Succeeded(CommandResult(0, b"x")))

    def rollout(trajectory: SyncTrajectory) -> bytes:
        return trajectory.env_step("ls").unwrap().stdout

    def mistaken(trajectory: SyncTrajectory) -> None:
        raise ZeroDivisionError

    with SyncClient(fake) as client:
        job = client.open_job("job")
        with job.group("g", size=4, quorum=4) as group:
            group.start(rollout)
            assert [member.value for member in group] == [b"x"] * 4
        assert group.has_quorum
        assert group.status().has_quorum
        with pytest.raises(ZeroDivisionError):
            _run_all(job.group("h", size=2), mistaken)
        with pytest.raises(KeyError), job.group("i", size=2):
            raise KeyError
