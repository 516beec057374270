"""A client's session over real gRPC: batches, faults, resume, cancels, back-pressure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import grpc
import pytest
from callsheet.client import (
    AlreadyExistsError,
    Client,
    ClientOptions,
    Command,
    ConnectionLostError,
    EnvStep,
    FailedPreconditionError,
    Generate,
    GenerateResult,
    InvalidArgumentError,
    Job,
    NotFoundError,
    Outcome,
    QueueFullError,
    RefusedError,
    RewardModel,
    Succeeded,
    Timeouts,
    Trajectory,
    TrajectoryEnd,
)
from callsheet.v1 import client_service_pb2, job_pb2

from tests.support.faulty_client_service import FAST, FaultyClientService, never
from tests.support.faulty_jobs import Status, refusal
from tests.support.faulty_servicers import serving
from tests.support.waiting import until


async def test_a_burst_leaves_in_full_batches(job: Job, service: FaultyClientService) -> None:
    outcomes = await asyncio.gather(*(job.generate([n]) for n in range(5_000)))
    assert [outcome.unwrap().token_ids for outcome in outcomes] == [(n,) for n in range(5_000)]
    assert max(service.batches) == 1024
    assert len(service.batches) < 100


async def test_a_batch_stays_within_its_bytes(job: Job, service: FaultyClientService) -> None:
    service.reading.clear()
    async with anyio.create_task_group() as group:
        for _ in range(100):
            group.start_soon(job.generate, [100_000] * 20_000)
        await anyio.wait_all_tasks_blocked()
        service.reading.set()
    assert 1 < max(service.batches) <= (1 << 20) // 60_000


@pytest.mark.parametrize("break_at", range(1, 12))
@pytest.mark.parametrize("handled", [False, True])
async def test_a_stream_that_breaks_anywhere_loses_and_repeats_nothing(
    client: Client, service: FaultyClientService, break_at: int, handled: bool
) -> None:
    # Eleven items: open job, open trajectory, seven submits, close trajectory, close job.
    (service.break_before_results if handled else service.break_after_items).add(break_at)
    outcomes: list[Outcome[GenerateResult]] = []
    job = await client.open_job("j")

    async def one(number: int) -> None:
        outcomes.append(await trajectory.generate([number], action_id=str(number)))

    async with job.trajectory("t") as trajectory, anyio.create_task_group() as group:
        for number in range(7):
            group.start_soon(one, number)
    await job.close()
    assert sorted(outcome.unwrap().token_ids for outcome in outcomes) == [(number,) for number in range(7)]
    assert service.started == {("j", str(number)): 1 for number in range(7)}
    assert service.streams == 2
    assert service.state.jobs == {}


async def test_resume_keeps_the_order_of_what_was_not_acknowledged(job: Job, service: FaultyClientService) -> None:
    service.decide = never
    async with job.trajectory("t") as trajectory:
        service.answering.clear()
        handles = [await trajectory.submit(EnvStep(Command.shell(str(n))), action_id=str(n)) for n in range(3)]
        await service.wait_until(lambda: len(service.items) == 5)
        await service.break_streams()
        service.answering.set()
        await service.wait_until(lambda: len(service.items) == 9)
        assert service.items[5].hold_job == "j"
        assert [item.submit.action_id for item in service.items[6:]] == ["0", "1", "2"]
        for number, handle in enumerate(handles):
            await service.end_action(("j", str(number)))
            await handle.outcome()
    assert set(service.started.values()) == {1}


async def test_a_close_whose_answer_was_lost_succeeds_on_its_replay(
    client: Client, service: FaultyClientService, caplog: pytest.LogCaptureFixture
) -> None:
    service.break_before_results |= {3, 6}
    job = await client.open_job("j")
    trajectory = job.trajectory("t")
    await trajectory.open()
    await trajectory.close(TrajectoryEnd.ABANDONED)
    await job.close()
    assert service.state.closed == {("j", "t"): 2}
    assert service.kinds()[2:] == [
        "close_trajectory",
        "hold_job",
        "close_trajectory",
        "close_job",
        "close_job",
    ]
    assert "no longer held" not in caplog.text
    with pytest.raises(NotFoundError):
        await job.close()


async def test_a_version_overtaken_before_its_replay_counts_as_published(
    client: Client, service: FaultyClientService
) -> None:
    service.break_before_results.add(3)
    job = await client.open_job("j")
    async with anyio.create_task_group() as group:
        group.start_soon(job.publish, 3)
        group.start_soon(job.publish, 4)
    with pytest.raises(FailedPreconditionError):
        await job.publish(2)
    assert service.versions[-1] == ("j", 4)


def full(kind: str, times: int, delay_s: float | None) -> Callable[[client_service_pb2.ClientItem], Status | None]:
    """Refuses items of a kind so many times."""
    left = [times]

    def refuse(item: client_service_pb2.ClientItem) -> Status | None:
        if item.WhichOneof("item") != kind or not left[0]:
            return None
        left[0] -= 1
        code, rule = grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full"
        return refusal(code, field="job_id", value="j", rule=rule, retry_delay_s=delay_s)

    return refuse


async def test_refusals_of_items_carry_their_detail(target: str, service: FaultyClientService) -> None:
    service.refuse = full("submit", 1000, 2)
    async with Client(target, ClientOptions(give_up_after_s=1.0)) as client:
        job = await client.open_job("j")
        with pytest.raises(QueueFullError) as caught:
            await job.generate([1])
        assert (caught.value.field, caught.value.value, caught.value.rule) == ("job_id", "j", "the queue is full")
        assert caught.value.retry_after_s == 2
        handle = await job.submit(Generate([1]))
        for waiting in (handle.accepted, handle.outcome):
            with pytest.raises(QueueFullError):
                await waiting()


@pytest.mark.parametrize("kind", ["open_job", "open_trajectory", "submit", "close_trajectory"])
async def test_what_is_refused_for_now_is_sent_again_when_the_scheduler_says(
    client: Client, service: FaultyClientService, kind: Any
) -> None:
    service.refuse = full(kind, 3, 0.01)
    job = await client.open_job("j")
    async with job.trajectory("t") as trajectory:
        assert isinstance(await trajectory.generate([1]), Succeeded)
        await trajectory.finish(1.0, b"payload")
    # The block closes its trajectory once more.
    sent = 5 if kind == "close_trajectory" else 4
    assert [item.WhichOneof("item") for item in service.items].count(kind) == sent


async def test_what_is_refused_without_a_time_is_raised_at_once(client: Client, service: FaultyClientService) -> None:
    service.refuse = full("submit", 1, None)
    job = await client.open_job("j")
    with pytest.raises(QueueFullError):
        await job.generate([1])


async def test_a_submit_waits_for_room_no_longer_than_it_may_live(client: Client, service: FaultyClientService) -> None:
    service.refuse = full("submit", 1000, 0.01)
    job = await client.open_job("j")
    with pytest.raises(QueueFullError):
        await job.generate([1], timeouts=Timeouts(schedule_to_start_s=0.2))


@pytest.mark.parametrize("how", ["cancel", "abandon"])
async def test_an_action_that_waits_for_room_can_be_cancelled(
    client: Client, service: FaultyClientService, how: str
) -> None:
    service.refuse = full("submit", 1, 0.3)
    job = await client.open_job("j")
    handle = await job.submit(Generate([1]))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(job.generate, [2])
        await until(lambda: len(service.items) >= 3, every_s=0.005)
        await anyio.wait_all_tasks_blocked()
        if how == "cancel":
            await handle.cancel()
            with pytest.raises(QueueFullError):
                await handle.outcome()
        else:
            handle.abandon("gone")
    await anyio.sleep(0.5)
    kinds = [item.WhichOneof("item") for item in service.items]
    assert (kinds.count("submit"), kinds.count("cancel")) == (2, 0), "it is neither sent again nor cancelled there"


async def test_a_member_that_finds_no_room_ends_alone(target: str, service: FaultyClientService) -> None:
    service.refuse = lambda item: (
        full("close_trajectory", 1, 9.0)(item) if item.close_trajectory.trajectory_id == "g/1" else None
    )
    async with (
        Client(target, ClientOptions(give_up_after_s=0.5)) as client,
        await client.open_job("j") as job,
        job.group("g", size=4, quorum=4) as group,
    ):

        async def rollout(trajectory: Trajectory) -> None:
            await trajectory.finish(1.0)

        group.start(rollout)
    errors = {member.trajectory_id: member.error for member in group.members}
    assert isinstance(errors.pop("g/1"), QueueFullError)
    assert list(errors.values()) == [None] * 3


async def test_the_same_action_twice_at_once_is_one_action(job: Job, service: FaultyClientService) -> None:
    service.decide = never
    first = await job.submit(Generate([1]), action_id="a")
    second = await job.submit(Generate([1]), action_id="a")
    with pytest.raises(AlreadyExistsError):
        await job.submit(Generate([2]), action_id="a")
    await first.accepted()
    await service.end_action(("j", "a"))
    assert await first.outcome() == await second.outcome()
    assert service.kinds().count("submit") == 1


async def test_a_full_outbox_makes_callers_wait(service: FaultyClientService) -> None:
    options = ClientOptions(outbox_items=10, backoff_initial_s=0.01, backoff_max_s=0.05)
    async with serving(service) as target:
        port = int(target.rpartition(":")[2])
    service.state.open_job(job_pb2.JobSpec(job_id="j"))
    # Nobody listens: ten items fit, the others wait.
    async with Client(target, options) as client:
        job = client.job("j")
        submitted: list[int] = []
        ended: list[int] = []
        all_ended = anyio.Event()

        async def submit(number: int) -> None:
            handle = await job.submit(Generate([number]), action_id=str(number))
            submitted.append(number)
            assert (await handle.outcome()).unwrap().token_ids == (number,)
            ended.append(number)
            if len(ended) == 25:
                all_ended.set()

        async with anyio.create_task_group() as group:
            for number in range(25):
                group.start_soon(submit, number)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            assert submitted == list(range(10))
            # The server stays until the client has read every outcome: what it was not told, it would wait for.
            async with serving(service, port=port):
                await all_ended.wait()


async def test_a_restarted_server_is_found_again(service: FaultyClientService) -> None:
    service.decide = never
    async with serving(service) as target:
        client = Client(target, FAST)
        job = await client.open_job("j")
        handle = await job.submit(RewardModel([1]), action_id="a")
        await handle.accepted()
    port = int(target.rpartition(":")[2])
    async with client, serving(service, port=port):
        await service.wait_until(lambda: service.streams == 2)
        await service.end_action(("j", "a"))
        assert (await handle.outcome()).unwrap().score == 1.0
        assert isinstance(await job.submit(RewardModel([1]), action_id="b"), object)


async def test_open_work_is_given_up_after_its_time() -> None:
    service = FaultyClientService()
    async with serving(service) as target:
        pass
    options = ClientOptions(
        connect_timeout_s=1.0, give_up_after_s=1.0, backoff_initial_s=0.01, backoff_max_s=0.05, outbox_items=1
    )
    async with Client(target, options) as client:
        job = client.job("j")
        endings = await asyncio.gather(*(job.generate([n]) for n in range(5)), return_exceptions=True)
        assert [type(ending) for ending in endings] == [ConnectionLostError] * 5
        assert "is `callsheet up` running?" in str(endings[0])
        # The client lives on: a server that comes later is found.
        async with serving(service, port=int(target.rpartition(":")[2])):
            await _once_connected(client)


async def _once_connected(client: Client) -> None:
    """Opens a job. On a slow machine what is open may be given up several times before there is a connection."""
    while True:
        with suppress(ConnectionLostError):
            await client.open_job("j")
            return


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAUTHENTICATED])
async def test_a_stream_that_waiting_cannot_mend_fails_at_once(
    client: Client, service: FaultyClientService, code: grpc.StatusCode
) -> None:
    service.break_code = code
    service.break_after_items.add(1)
    expected = RefusedError if code is grpc.StatusCode.UNAUTHENTICATED else ConnectionLostError
    with pytest.raises(expected, match=code.name):
        await client.open_job("j")


async def test_an_item_too_large_for_a_message_is_refused_here(job: Job, service: FaultyClientService) -> None:
    with pytest.raises(InvalidArgumentError, match="an item has at most"):
        await job.generate([2**30] * 1_000_000)
    assert (await job.generate([1])).unwrap().token_ids == (1,)
