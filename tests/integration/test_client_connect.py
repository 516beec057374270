"""Connecting: the handshake, a first connection that fails, and jobs that are held while nothing else happens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from callsheet.client import (
    Client,
    ClientOptions,
    ConnectionLostError,
    FailedPreconditionError,
    ImageBuild,
    Opening,
    Succeeded,
    SyncClient,
    UnimplementedError,
)
from callsheet.client.admin import AdminClient
from callsheet.v1.contract import CONTRACT, OLDEST_CONTRACT

from tests.support.faulty_client_service import FAST, FaultyClientService
from tests.support.faulty_servicers import serving

_SOON = ClientOptions(connect_timeout_s=0.5, backoff_initial_s=0.01, backoff_max_s=0.05)


async def test_connecting_shakes_hands_and_opens_no_stream(target: str, service: FaultyClientService) -> None:
    async with await Client.connect(target, FAST) as client:
        assert service.streams == 0
        assert [status.job_id for status in await client.jobs()] == []


async def _nobody() -> str:
    async with serving(FaultyClientService()) as target:
        return target


async def test_a_first_connection_fails_soon_and_says_what_may_be_missing() -> None:
    target = await _nobody()
    with pytest.raises(ConnectionLostError, match=f"no scheduler answers at {target}: is `callsheet up` running"):
        await Client.connect(target, _SOON)
    async with Client(target, _SOON) as client:
        with pytest.raises(ConnectionError):
            await client.open_job("j")
        with pytest.raises(ConnectionError):
            await client.jobs()


@pytest.mark.parametrize("lazy", [True, False])
async def test_a_scheduler_that_is_too_old_is_refused(target: str, service: FaultyClientService, lazy: bool) -> None:
    service.contract = OLDEST_CONTRACT - 1
    async with Client(target, FAST) as client:
        with pytest.raises(FailedPreconditionError, match="older than this client"):
            await (client.open_job("j") if lazy else Client.connect(target, FAST))
    assert service.streams == 0


async def test_an_older_scheduler_serves_what_it_knows_and_is_asked_for_nothing_else(
    target: str, service: FaultyClientService
) -> None:
    service.contract = OLDEST_CONTRACT
    async with Client(target, FAST) as client:
        job = await client.open_job("j")
        async with job.group("g", size=2, quorum=1) as group:
            group.start(lambda trajectory: trajectory.generate([1]))
        assert isinstance(await job.generate([1]), Succeeded)
        trajectory = job.trajectory("t")
        await trajectory.open()
        before = len(service.items)
        refused: dict[str, Callable[[], Awaitable[object]]] = {
            "CloseTrajectoryRequest.result": lambda: trajectory.finish(1.0, b"payload"),
            "JobSpec.max_buffered": lambda: client.open_job("k", max_buffered=8),
            "TakeBatchRequest.job_id": job.take_batch,
            "EnvResetInput.build": lambda: trajectory.env_reset(build=ImageBuild(b"no archive")),
        }
        for name, call in refused.items():
            with pytest.raises(UnimplementedError, match="upgrade it") as caught:
                await call()
            assert caught.value.field == name
        assert len(service.items) == before
        assert trajectory.end is None, "it goes on, and may finish once the scheduler is newer"


async def test_a_call_that_a_scheduler_does_not_know_names_the_cure(target: str) -> None:
    # It serves no administrators, as an older one lacks a call that came later.
    async with AdminClient(target, FAST) as admin:
        with pytest.raises(UnimplementedError, match=r"older than this client: upgrade it"):
            await admin.status()


async def test_an_upgrade_and_its_way_back_are_noticed_by_a_session_that_goes_on(
    target: str, service: FaultyClientService
) -> None:
    async with Client(target, FAST) as client:
        job = await client.open_job("j")
        first, second = job.trajectory("a"), job.trajectory("b")
        await first.open()
        await second.open()
        service.contract = OLDEST_CONTRACT
        await service.break_streams()
        await service.wait_until(lambda: service.kinds()[-1:] == ["hold_job"])
        with pytest.raises(UnimplementedError):
            await first.finish(1.0)
        service.contract = CONTRACT
        await service.break_streams()
        await service.wait_until(lambda: service.kinds()[-2:] == ["hold_job", "hold_job"])
        await first.finish(1.0)
        service.contract = OLDEST_CONTRACT - 1
        await service.break_streams()
        with pytest.raises(FailedPreconditionError, match="older than this client"):
            await second.close()


async def test_an_idle_session_comes_back_to_hold_its_jobs(target: str, service: FaultyClientService) -> None:
    async with Client(target, FAST) as client:
        job = await client.open_job("a")
        await (await client.open_job("b")).close()
        assert job.opening is Opening.CREATED
        assert (await client.open_job("a")).opening is Opening.ATTACHED
        await service.break_streams()
        await service.wait_until(lambda: service.kinds()[-1:] == ["hold_job"])
        assert service.streams == 2
        assert service.items[-1].hold_job == "a"
        await job.close()


async def test_a_session_without_jobs_stays_away(target: str, service: FaultyClientService) -> None:
    async with Client(target, FAST) as client:
        await (await client.open_job("a")).close()
        await service.break_streams()
        assert await client.jobs() == []
        assert service.streams == 1


async def test_listings_come_in_pages(target: str, service: FaultyClientService) -> None:
    service.pages = 2
    async with Client(target, FAST) as client:
        job = await client.open_job("j")
        for number in range(5):
            await job.trajectory(f"t{number}").open()
            await job.group(f"g{number}", size=1).trajectory().open()
        names = [status.trajectory_id for status in await job.trajectories()]
        assert names == sorted([f"t{n}" for n in range(5)] + [f"g{n}/0" for n in range(5)])
        assert [status.group_id for status in await job.groups()] == [f"g{n}" for n in range(5)]
        assert (await job.status()).open_trajectories == 10
        await job.cancel("enough")
        assert await job.trajectories() == []
        assert len(await job.trajectories(closed=True)) == 10


def test_a_sync_client_connects_too() -> None:
    with pytest.raises(ConnectionLostError, match="callsheet up"):
        SyncClient.connect("127.0.0.1:1", _SOON)
