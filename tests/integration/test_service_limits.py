"""What one job, one peer and all together may have, as clients meet it: refused by name, and honoured by our client."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
import structlog
from callsheet.client import Client, QueueFullError, SandboxFile, ToolCall, Unservable
from callsheet.client.settings import ClientOptions
from callsheet.scheduler.service.limits.settings import LimitSettings
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.v1 import (
    action_pb2,
    admin_service_pb2,
    client_service_pb2,
    common_pb2,
    job_pb2,
    manager_service_pb2,
    payload_service_pb2,
)

from tests.support.client_items import Item, spec
from tests.support.expected import present
from tests.support.raw_service import (
    ANSWER_S,
    Refusal,
    read_error,
    read_to_end,
    refusal_of,
    running_service,
)

pytestmark = pytest.mark.anyio
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED
MIB = 1024 * 1024


def settings(directory: Path, **limits: Any) -> SchedulerSettings:
    """A scheduler with these limits."""
    return SchedulerSettings(directory, listen="127.0.0.1:0", limits=LimitSettings(**limits))


def large(action_id: str) -> Item:
    """A submit of 1.9 MiB that waits for a manager."""
    generate = action_pb2.GenerateInput(
        prompt_token_ids=[300] * (19 * MIB // 20), sampling=action_pb2.SamplingParameters(max_new_tokens=1)
    )
    return spec(action_id=action_id, generate=generate, unservable=action_pb2.UNSERVABLE_WAIT)


async def stream_refusal(call: Any) -> Refusal:
    """Reads a stream up to the refusal that ends it."""
    with anyio.fail_after(ANSWER_S):
        refusal = await refusal_of(read_to_end(call))
    assert refusal is not None
    return refusal


async def test_large_actions_are_refused_once_their_bytes_are_too_many(tmp_path: Path) -> None:
    async with running_service(settings(tmp_path, max_open_bytes=5 * MIB)) as service:
        assert await service.ask(Item(open_job=job_pb2.JobSpec(job_id="job", detached=True))) is None
        assert await service.stream(*(large(f"a{number}") for number in range(2))) == [None, None]
        (refused,) = await service.stream(large("a2"))
        assert refused == await service.ask(large("a3"))
        assert refused is not None
        assert (refused.code, refused.field) == (FULL, "action")
        assert refused.value.endswith(" bytes")
        assert str(5 * MIB) in refused.rule
        assert refused.retry_after_s > 0
        cancel = client_service_pb2.CancelActionRequest(key=common_pb2.ActionKey(job_id="job", action_id="a0"))
        assert await service.ask(Item(cancel=cancel)) is None
        assert await service.ask(large("a2")) is None


async def test_a_refused_submit_pins_no_payload(tmp_path: Path) -> None:
    content = b"x" * 100_000
    bounded = SchedulerSettings(tmp_path, listen="127.0.0.1:0", max_open_actions=1)
    impatient = ClientOptions(give_up_after_s=0.5)
    async with running_service(bounded) as service, Client(service.address, impatient) as client:
        job = await client.open_job("job")
        trajectory = job.trajectory("t")
        await trajectory.open()
        waits = await job.submit(ToolCall("elsewhere", "get"), unservable=Unservable.WAIT)
        await waits.accepted()
        with pytest.raises(QueueFullError):
            await trajectory.env_reset(files=[SandboxFile("f", content)], unservable=Unservable.WAIT)
        payloads = anyio.Path(tmp_path / "payloads")
        (stored,) = [path async for path in (payloads / "objects").iterdir()]
        with anyio.fail_after(ANSWER_S):
            while (await stored.stat()).st_nlink > 1:
                await anyio.lowlevel.checkpoint()
        # There is room again: what was uploaded is there still.
        await waits.cancel()
        await waits.outcome()
        reference = common_pb2.PayloadReference(sha256=stored.name, size=len(content))
        request = payload_service_pb2.GetPayloadRequest(reference=reference)
        call: Any = service.payloads.GetPayload(request, timeout=ANSWER_S)
        assert b"".join([response.chunk async for response in call]) == content


async def test_a_full_payload_store_is_told_from_a_payload_that_is_too_large(tmp_path: Path) -> None:
    async with running_service(settings(tmp_path, max_stored_bytes=MIB)) as service, Client(service.address) as client:
        trajectory = (await client.open_job("job")).trajectory("t")
        await trajectory.open()
        with pytest.raises(QueueFullError, match="payload store is full") as caught:
            await trajectory.env_reset(files=[SandboxFile("f", bytes(2 * MIB))], unservable=Unservable.WAIT)
        assert caught.value.retry_after_s is None, "it never fits"

        async def chunks() -> Any:
            for _ in range(3):
                yield payload_service_pb2.PutPayloadRequest(chunk=bytes(MIB))

        refused = present(await refusal_of(service.payloads.PutPayload(chunks(), timeout=ANSWER_S)))
        assert (refused.code, refused.field) == (FULL, "payload")
        assert [path async for path in anyio.Path(tmp_path / "payloads" / "incoming").iterdir()] == []


async def test_a_peer_with_too_many_calls_under_way_is_refused_and_others_are_not(tmp_path: Path) -> None:
    limited = settings(tmp_path, max_peer_calls=2)
    async with running_service(limited) as service, service.session() as first, service.session() as second:
        for session in (first, second):
            await session.send(Item(open_job=job_pb2.JobSpec(job_id="job", detached=True)))
        refusals = [
            await stream_refusal(service.client.ClientSession(timeout=ANSWER_S)),
            await refusal_of(service.client.ListJobs(client_service_pb2.ListJobsRequest(), timeout=ANSWER_S)),
        ]
        reference = common_pb2.PayloadReference(sha256="0" * 64)
        request = payload_service_pb2.GetPayloadRequest(reference=reference)
        call: Any = service.payloads.GetPayload(request, timeout=ANSWER_S)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(call))
        refusals.append(read_error(caught.value))
        for refused in refusals:
            assert refused is not None
            assert (refused.code, refused.field, refused.value) == (FULL, "calls", "2")
            assert refused.retry_after_s > 0


async def test_a_session_of_our_client_comes_back_when_there_is_room(tmp_path: Path) -> None:
    limited = settings(tmp_path, max_peer_calls=2)
    async with (
        running_service(limited) as service,
        Client(service.address) as client,
        service.session() as first,
        service.session() as second,
        anyio.create_task_group() as tasks,
    ):
        for number, session in enumerate((first, second)):
            await session.send(Item(open_job=job_pb2.JobSpec(job_id=f"other-{number}", detached=True)))
        tasks.start_soon(client.open_job, "job")
        assert (await stream_refusal(service.client.ClientSession(timeout=ANSWER_S))).field == "calls"
        second.cancel()
        # The task group waits until it is open.


def registration() -> manager_service_pb2.ManagerSessionRequest:
    """The first message of a manager's stream."""
    told = manager_service_pb2.Registration(
        manager_id="twice",
        incarnation="1",
        node=manager_service_pb2.NodeSpec(node_id="own", capacity={"memory": 1}),
        services=[manager_service_pb2.HostedService(name="s", kinds=[action_pb2.ACTION_KIND_GENERATE])],
    )
    return manager_service_pb2.ManagerSessionRequest(items=[manager_service_pb2.ManagerItem(registration=told)])


async def test_a_replaced_manager_stream_logs_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = io.StringIO()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(log), cache_logger_on_first_use=False)
    async with running_service(settings(tmp_path)) as service:
        first, second = (service.managers.ManagerSession(timeout=ANSWER_S) for _ in range(2))
        await first.write(registration())
        assert await first.read() is not grpc.aio.EOF
        log.truncate(0)
        await second.write(registration())
        assert "another stream" in (await stream_refusal(first)).rule
        assert await second.read() is not grpc.aio.EOF
        status = await service.admin.GetStatus(admin_service_pb2.GetStatusRequest(), timeout=ANSWER_S)
        assert [manager.connected for manager in status.managers] == [True]
        lines = [line for line in log.getvalue().splitlines() if "manager_registered" not in line and "twice" in line]
        assert len(lines) == 1, lines
        assert "manager_refused" in lines[0]
        assert "stream_refused" not in log.getvalue()
        second.cancel()
    assert not caplog.records
