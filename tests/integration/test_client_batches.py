"""Batches through the fake, the async client and the sync client, alike."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import pytest
from callsheet.client import (
    AlreadyExistsError,
    Batch,
    Client,
    EnvError,
    Failed,
    FailureKind,
    FailurePolicy,
    InfraError,
    InvalidArgumentError,
    NotFoundError,
    OnInfra,
    Reason,
    SyncClient,
    TrajectoryEnd,
)
from callsheet.client.testing import FakeClient
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings

LARGE = bytes(range(256)) * 64


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    settings = StackSettings(tmp_path_factory.mktemp("scheduler"), managers=())
    async with local_stack(settings) as stack:
        yield stack.address


@pytest.fixture(params=["fake", "scheduler"])
async def client(request: pytest.FixtureRequest, address: str) -> AsyncIterator[Client]:
    async with FakeClient() if request.param == "fake" else Client(address) as made:
        yield made


@pytest.fixture
async def job(client: Client) -> Any:
    return await client.open_job(f"job-{uuid.uuid4().hex}")


async def finish(job: Any, name: str, reward: float = 1.0, payload: bytes = b"") -> None:
    async with job.trajectory(name) as trajectory:
        await trajectory.finish(reward, payload)


async def test_what_a_rollout_finishes_a_trainer_takes_once(job: Any) -> None:
    await finish(job, "small", 0.5, b"tokens")
    await finish(job, "large", -1.0, LARGE)
    assert not await job.take_batch(at_least=3)
    assert (await job.status()).buffer.ready == 2
    batch = await job.take_batch(at_least=2, batch_id="one")
    assert [(each.reward, each.payload) for each in batch.trajectories] == [(0.5, b"tokens"), (-1.0, LARGE)]
    assert (await job.status()).buffer.leased == 2
    again = await job.take_batch(at_least=2, batch_id="one")
    assert [each.trajectory_id for each in again.trajectories] == ["small", "large"]
    await batch.acknowledge()
    await again.acknowledge()
    assert (await job.status()).buffer.ready == 0
    with pytest.raises(AlreadyExistsError):
        await job.take_batch(at_least=2, batch_id="one")
    with pytest.raises(NotFoundError):
        await Batch(job.client, job.job_id, replace(batch.content, batch_id="other")).acknowledge()


async def test_a_batch_waits_for_its_trajectories_and_knows_how_stale_they_are(job: Any) -> None:
    async with anyio.create_task_group() as tasks:
        taken: list[Batch] = []

        async def take() -> None:
            taken.append(await job.take_batch(wait_s=30.0))

        tasks.start_soon(take)
        async with job.trajectory("t") as trajectory:
            await job.publish(3)
            await trajectory.finish(1.0)
    assert [each.staleness for each in taken[0].trajectories] == [3]
    await taken[0].extend()
    await taken[0].give_back()
    assert len((await job.take_batch()).trajectories) == 1


async def test_a_block_acknowledges_and_gives_back_after_an_error(job: Any) -> None:
    await finish(job, "t")
    with pytest.raises(ZeroDivisionError):
        async with await job.take_batch():
            raise ZeroDivisionError
    async with await job.take_batch() as batch:
        assert len(batch) == 1
    assert (await job.status()).buffer.ready == 0
    async with await job.take_batch() as batch:
        assert not batch


async def test_all_that_is_ready_is_taken_up_to_a_bound_with_groups_whole(job: Any) -> None:
    async def rollout(trajectory: Any) -> None:
        await trajectory.finish(1.0)

    for name in ("g", "h"):
        async with job.group(name, size=3) as group:
            group.start(rollout)
    for bounds, expected in (({"at_most": 5}, 3), ({"at_least": 4, "at_most": 5}, 6), ({"at_most": 2}, 3), ({}, 6)):
        batch = await job.take_batch(**bounds)
        assert len(batch) == expected, bounds
        await batch.give_back()


async def test_groups_come_whole_with_what_they_miss(job: Any) -> None:
    async with job.group("g", size=3, quorum=2) as group:

        async def rollout(trajectory: Any) -> None:
            await trajectory.finish(1.0)

        group.start(rollout)
    batch = await job.take_batch()
    assert set(batch.groups) == {"g"}
    assert len(batch.groups["g"]) == 2


async def test_bad_values_are_named(job: Any) -> None:
    async with job.trajectory("t") as trajectory:
        with pytest.raises(InvalidArgumentError, match="reward"):
            await trajectory.finish(float("nan"))
        await trajectory.finish(1.0)
        with pytest.raises(AlreadyExistsError, match="another result"):
            await trajectory.finish(2.0)
        assert trajectory.end is TrajectoryEnd.COMPLETED
    for bounds, named in (({"at_least": 3, "at_most": 2}, "at_least"), ({"at_most": 2049}, "at_most")):
        with pytest.raises(InvalidArgumentError, match=named):
            await job.take_batch(**bounds)


@pytest.mark.parametrize("kind", ["fake", "scheduler"])
def test_plain_threads_take_batches(kind: str, address: str) -> None:
    with SyncClient(FakeClient() if kind == "fake" else address) as client:
        job = client.open_job(f"job-{uuid.uuid4().hex}")
        for name in "ab":
            with job.trajectory(name) as trajectory:
                trajectory.finish(1.0, name.encode())
        with job.take_batch(at_most=1) as first:
            assert [each.payload for each in first.trajectories] == [b"a"]
        with pytest.raises(ZeroDivisionError), job.take_batch():
            raise ZeroDivisionError
        assert job.status().buffer.ready == 1
        with job.take_batch(at_least=2) as batch:
            assert not batch


def infra_failure() -> InfraError:
    return InfraError(Failed(FailureKind.INFRA, Reason.MANAGER_LOST))


@pytest.mark.parametrize("on_infra", OnInfra)
async def test_a_group_says_what_becomes_of_lost_members(client: Client, on_infra: OnInfra) -> None:
    policy = FailurePolicy(on_infra, infra_budget=1)
    job = await client.open_job(f"job-{uuid.uuid4().hex}", failure_policy=policy)
    failed: list[str] = []

    async def rollout(trajectory: Any) -> None:
        if trajectory.trajectory_id == "g/0" and (on_infra is not OnInfra.RETRY or trajectory.tries == 1):
            failed.append(trajectory.trajectory_id)
            raise infra_failure()
        await trajectory.finish(1.0)

    async with job.group("g", size=3) as group:
        group.start(rollout)
    status = await group.status()
    assert failed == ["g/0"]
    assert status.has_quorum
    assert len(await job.take_batch()) == (3 if on_infra in {OnInfra.RETRY, OnInfra.REPLACE} else 2)
    assert len(status.lost) == (on_infra is OnInfra.REPLACE)
    assert (len(status.masked), len(status.dropped)) == (on_infra is OnInfra.MASK, on_infra is OnInfra.DROP)


async def test_other_failures_are_failed_members_with_their_reason(client: Client) -> None:
    job = await client.open_job(f"job-{uuid.uuid4().hex}")

    async def rollout(trajectory: Any) -> None:
        if trajectory.trajectory_id == "g/0":
            raise EnvError(Failed(FailureKind.ENV, Reason.BAD_COMMAND))
        await trajectory.finish(1.0)

    async with job.group("g", size=2) as group:
        group.start(rollout)
    batch = await job.take_batch()
    assert [each.trajectory_id for each in batch.trajectories] == ["g/1"]
    assert (await job.trajectories(closed=True))[0].reason == "its rollout ended with ENV bad_command"


async def test_a_group_whose_replacements_ran_out_is_given_out_with_what_finished(job: Any) -> None:
    async def rollout(trajectory: Any) -> None:
        if trajectory.trajectory_id != "g/1":
            raise infra_failure()
        await trajectory.finish(1.0)

    for opened in ("first", "again"):
        async with job.group("g", size=2, max_replacements=1) as group:
            group.start(rollout)
            ends = {member.trajectory_id: member.end async for member in group}
        assert sorted(ends.values(), key=str) == [TrajectoryEnd.COMPLETED, TrajectoryEnd.LOST], opened
    batch = await job.take_batch(wait_s=30.0)
    assert [each.trajectory_id for each in batch.trajectories] == ["g/1"]
