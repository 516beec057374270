"""One contract, kept by the fake, the async client and the sync client."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from callsheet.client import (
    AlreadyExistsError,
    Client,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Opening,
    SyncClient,
    TrajectoryEnd,
)
from callsheet.client.testing import FakeClient
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings

from tests.support.faulty_client_service import FAST, FaultyClientService
from tests.support.faulty_servicers import serving
from tests.support.threaded import Threaded


@pytest.fixture
async def job(client: Any) -> Any:
    """A job of its own for each test."""
    return await client.open_job(f"job-{uuid.uuid4().hex}")


class ClientContract:
    """The tests."""

    async def test_opening_tells_what_it_found(self, client: Any, job: Any) -> None:
        assert job.opening is Opening.CREATED
        assert (await client.open_job(job.job_id)).opening is Opening.ATTACHED
        with pytest.raises(AlreadyExistsError):
            await client.open_job(job.job_id, share=2.0)
        assert await job.trajectory("t").open() is Opening.CREATED
        assert await job.trajectory("t").open() is Opening.ATTACHED

    async def test_what_is_closed_stays_so(self, job: Any) -> None:
        trajectory = job.trajectory("t")
        await trajectory.open()
        await trajectory.close(TrajectoryEnd.ABANDONED)
        await trajectory.close(TrajectoryEnd.ABANDONED)
        with pytest.raises(AlreadyExistsError):
            await trajectory.close()
        again = job.trajectory("t")
        assert await again.open() is Opening.CLOSED
        assert again.end is TrajectoryEnd.ABANDONED
        with pytest.raises(FailedPreconditionError, match="ABANDONED"):
            await job.trajectory("t").__aenter__()

    async def test_status_and_lists(self, client: Any, job: Any) -> None:
        async with job.trajectory("a") as a, job.trajectory("b"):
            assert [each.trajectory_id for each in await job.trajectories()] == ["a", "b"]
            assert (await a.status()).end is None
            assert (await job.status()).open_trajectories == 2
        assert await job.trajectories() == []
        assert {each.end for each in await job.trajectories(closed=True)} == {TrajectoryEnd.COMPLETED}
        assert job.job_id in {each.job_id for each in await client.jobs()}

    async def test_a_group_has_seats_and_a_quorum(self, job: Any) -> None:
        group = job.group("g", size=2, quorum=1)
        lost, slow = group.trajectory("lost"), group.trajectory("slow")
        await lost.open()
        await slow.open()
        await lost.close(TrajectoryEnd.LOST)
        before = await group.status()
        assert (before.open, before.lost, before.has_quorum) == (("slow",), ("lost",), False)
        async with group.trajectory("fast"):
            pass
        status = await group.status()
        assert (status.completed, status.lost, status.abandoned) == (("fast",), ("lost",), ("slow",))
        assert status.has_quorum
        assert [each.group_id for each in await job.groups()] == ["g"]
        with pytest.raises(FailedPreconditionError):
            await group.trajectory("late").open()

    async def test_cancel_closes_and_the_job_stays(self, job: Any) -> None:
        trajectory = job.trajectory("t")
        await trajectory.open()
        await job.cancel("enough")
        assert (await trajectory.status()).end is TrajectoryEnd.ABANDONED
        assert await job.trajectory("u").open() is Opening.CREATED

    async def test_versions_never_go_back(self, job: Any) -> None:
        await job.publish(2)
        with pytest.raises(FailedPreconditionError):
            await job.publish(1)

    async def test_what_is_not_there(self, client: Any) -> None:
        never = client.job(f"never-{uuid.uuid4().hex}")
        for call in (never.status, never.close, never.cancel, never.trajectories, never.trajectory("t").open):
            with pytest.raises(NotFoundError):
                await call()
        with pytest.raises(InvalidArgumentError):
            await client.open_job("")


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    settings = StackSettings(tmp_path_factory.mktemp("scheduler"), managers=())
    async with local_stack(settings) as stack:
        yield stack.address


class TestFake(ClientContract):
    @pytest.fixture(params=["async", "sync"])
    async def client(self, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
        fake = FakeClient()
        async with fake if request.param == "async" else Threaded(SyncClient(fake)) as client:
            yield client


class TestFaultyService(ClientContract):
    @pytest.fixture(params=["async", "sync"])
    async def client(self, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
        async with serving(FaultyClientService()) as target:
            made: Any = Client(target, FAST) if request.param == "async" else Threaded(SyncClient(target, FAST))
            async with made as client:
                yield client


class TestScheduler(ClientContract):
    @pytest.fixture(params=["async", "sync"])
    async def client(self, request: pytest.FixtureRequest, address: str) -> AsyncIterator[Any]:
        made: Any = Client(address) if request.param == "async" else Threaded(SyncClient(address))
        async with made as client:
            yield client
