"""The contract that the fake, the async client and the sync client keep alike. The sync one runs behind `Threaded`.

A test module makes it run by a subclass whose name begins with "Test" and a fixture `client`.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from callsheet.client import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    Opening,
    TrajectoryEnd,
)


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
        async with group.trajectory("fast"):
            pass
        status = await group.status()
        assert (status.completed, status.lost, status.has_quorum) == (("fast",), ("lost",), True)
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
