"""Cancels and closes of a client over real gRPC: nothing is leaked, nothing is lost."""

from __future__ import annotations

from functools import partial

import anyio
import anyio.lowlevel
import pytest
from callsheet.client import (
    Cancelled,
    Client,
    ClientClosedError,
    ClientOptions,
    Generate,
    Job,
    Succeeded,
)

from tests.support.faulty_client_service import FAST, FaultyClientService, never
from tests.support.faulty_servicers import serving


async def test_cancelling_the_caller_cancels_the_action(job: Job, service: FaultyClientService) -> None:
    service.decide = never
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: job.generate([1], action_id="a"))
        await service.wait_until(lambda: ("j", "a") in service.actions)
        group.cancel_scope.cancel()
    await service.wait_until(lambda: ("j", "a") in service.outcomes)
    assert service.outcomes["j", "a"].cancelled.reason == "its caller was cancelled"


async def test_a_cancelled_caller_leaves_others_of_the_action_alone(job: Job, service: FaultyClientService) -> None:
    service.decide = never
    handle = await job.submit(Generate([1]), action_id="a")
    with anyio.move_on_after(0.01):
        await job.generate([1], action_id="a")
    with anyio.move_on_after(0.01):
        await handle.outcome()
    await service.end_action(("j", "a"))
    assert isinstance(await handle.outcome(), Succeeded)
    assert "cancel" not in service.kinds()


async def test_a_caller_cancelled_before_its_submit_left_sends_nothing(service: FaultyClientService) -> None:
    async with serving(service) as target:
        async with Client(target, FAST) as client:
            job = client.job("j")
            with anyio.CancelScope() as scope:
                scope.cancel()
                await job.generate([1])
            await client.open_job("j")
        assert service.kinds() == ["open_job"]


async def test_a_cancel_is_resent_after_a_break(job: Job, service: FaultyClientService) -> None:
    service.decide = never
    service.break_after_items.add(3)
    handle = await job.submit(Generate([1]))
    await handle.accepted()
    await handle.cancel("enough")
    assert isinstance(await handle.outcome(), Cancelled)


async def test_a_block_that_raises_abandons_its_trajectory(job: Job, service: FaultyClientService) -> None:
    with pytest.raises(ZeroDivisionError):
        async with job.trajectory("t"):
            raise ZeroDivisionError
    assert service.state.closed == {("j", "t"): 2}


async def test_a_cancelled_block_abandons_its_trajectory(job: Job, service: FaultyClientService) -> None:
    service.decide = never

    async def rollout() -> None:
        async with job.trajectory("t") as trajectory:
            await trajectory.generate([1])

    async with anyio.create_task_group() as group:
        group.start_soon(rollout)
        await service.wait_until(lambda: len(service.actions) == 1)
        group.cancel_scope.cancel()
    assert service.state.closed == {("j", "t"): 2}
    assert service.kinds()[-2:] == ["cancel", "close_trajectory"]


async def test_a_trajectory_cancelled_while_it_opens_is_closed(job: Job, service: FaultyClientService) -> None:
    service.answering.clear()
    async with anyio.create_task_group() as group:
        group.start_soon(job.trajectory("t").open)
        await service.wait_until(lambda: ("j", "t") in service.state.trajectories)
        group.cancel_scope.cancel()
    service.answering.set()
    await service.wait_until(lambda: ("j", "t") in service.state.closed)


@pytest.mark.parametrize("is_of_others", [True, False])
async def test_a_trajectory_that_others_may_use_stays_open_when_an_open_is_cancelled(
    job: Job, service: FaultyClientService, is_of_others: bool
) -> None:
    if is_of_others:
        await job.trajectory("t").open()
    before = len(service.kinds())
    service.answering.clear()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(job.trajectory("t").open, close_if_cancelled=is_of_others))
        await service.wait_until(lambda: len(service.kinds()) > before)
        group.cancel_scope.cancel()
    service.answering.set()
    await job.trajectory("u").open()
    assert service.state.closed == {}


async def test_a_trajectory_that_the_scheduler_closed_ends_its_block_quietly(
    job: Job, service: FaultyClientService
) -> None:
    async with job.trajectory("t"):
        service.state.trajectories.clear()
    assert service.state.closed == {}


async def test_closing_ends_what_waits(service: FaultyClientService) -> None:
    service.decide = never
    async with serving(service) as target:
        client = Client(target, FAST)
        job = await client.open_job("j")
        handle = await job.submit(Generate([1]), action_id="a")
        await handle.accepted()
        await client.close()
        with pytest.raises(ClientClosedError):
            await handle.outcome()
        with pytest.raises(ClientClosedError):
            await job.generate([1])
    assert "cancel" not in service.kinds()


async def test_closing_waits_for_cancels_to_arrive(service: FaultyClientService) -> None:
    service.decide = never
    async with serving(service) as target:
        async with Client(target, FAST) as client:
            job = await client.open_job("j")
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    for number in range(100):
                        group.start_soon(lambda n=number: job.generate([1], action_id=str(n)))  # type: ignore[misc]
                    await service.wait_until(lambda: len(service.actions) == 100)
                    scope.cancel()
        assert len(service.outcomes) == 100


async def test_a_job_block_closes_its_job_also_when_it_raises(client: Client, service: FaultyClientService) -> None:
    async with await client.open_job("a"):
        assert set(service.state.jobs) == {"a"}
    with pytest.raises(ZeroDivisionError):
        async with await client.open_job("b"):
            raise ZeroDivisionError
    assert service.state.jobs == {}


async def test_a_block_that_cannot_close_keeps_its_own_error(
    service: FaultyClientService, caplog: pytest.LogCaptureFixture
) -> None:
    options = ClientOptions(close_timeout_s=0.05, backoff_initial_s=0.01)
    async with serving(service) as target, Client(target, options) as client:
        job = await client.open_job("j")

        async def rollout() -> None:
            async with job.trajectory("t"):
                service.answering.clear()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await rollout()
        assert "left open: trajectory j/t" in caplog.text
        service.answering.set()
