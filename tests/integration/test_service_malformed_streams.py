"""Bytes that are no message, on the two streams: they end their own stream as INVALID_ARGUMENT, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.v1 import action_pb2, admin_service_pb2, client_service_pb2, job_pb2, manager_service_pb2

from tests.support.bad_request import INVALID
from tests.support.client_items import Item, spec
from tests.support.raw_service import (
    ANSWER_S,
    RawService,
    Refusal,
    read_to_end,
    refusal_of,
    running_noop,
    running_service,
)

pytestmark = pytest.mark.anyio

CLIENT = "/callsheet.v1.ClientService/ClientSession"
MANAGER = "/callsheet.v1.ManagerService/ManagerSession"


def field_of_bytes(number: int, content: bytes) -> bytes:
    """A length-delimited field as it goes over the wire; for numbers below 16 and contents below 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


# Both requests have their items as field 1.
GARBAGE = {
    "no message": b"\xff\xff\xff\xff",
    "a length beyond the end": b"\x0a\x7f\x01",
    "an item that is no message": field_of_bytes(1, b"\xff\xff\xff"),
}


@pytest.fixture(scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RawService]:
    """A scheduler with one manager and an open job."""
    settings = SchedulerSettings(tmp_path_factory.mktemp("data"), listen="127.0.0.1:0")
    async with running_service(settings) as service, running_noop(service.address):
        assert await service.stream(Item(open_job=job_pb2.JobSpec(job_id="job"))) == [None]
        yield service


@asynccontextmanager
async def raw_stream(service: RawService, method: str) -> AsyncIterator[Any]:
    """A stream of bytes, whatever they are."""
    call: Any = service.channel.stream_stream(method, request_serializer=bytes, response_deserializer=bytes)
    opened = call(timeout=ANSWER_S)
    try:
        yield opened
    finally:
        opened.cancel()


async def end_of(stream: Any) -> Refusal:
    """Reads a stream up to the refusal that ends it."""
    with anyio.fail_after(ANSWER_S):
        refusal = await refusal_of(read_to_end(stream))
    assert refusal is not None
    return refusal


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
@pytest.mark.parametrize("method", [CLIENT, MANAGER], ids=["client", "manager"])
async def test_garbage_ends_its_stream_alone(
    service: RawService, method: str, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with service.session() as other, raw_stream(service, method) as stream:
        await stream.write(garbage)
        refusal = await end_of(stream)
        assert (refusal.code, refusal.field) == (INVALID, "request")
        assert method in refusal.rule
        # Everybody else goes on: a session that was open, and the manager.
        action_id = f"after {method} {len(garbage)}"
        assert await other.send(spec(action_id=action_id)) == [None]
        assert (await other.next_outcome()).key.action_id == action_id
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_what_came_before_the_garbage_counts_and_nothing_after_it(
    service: RawService, caplog: pytest.LogCaptureFixture
) -> None:
    good = client_service_pb2.ClientSessionRequest(items=[spec(action_id="before")])
    half = client_service_pb2.ClientSessionRequest(items=[spec(action_id="half")])
    async with raw_stream(service, CLIENT) as stream:
        await stream.write(good.SerializeToString())
        await stream.write(half.SerializeToString() + GARBAGE["an item that is no message"])
        assert (await end_of(stream)).code is INVALID
    assert (await service.outcome("job", "before")).HasField("succeeded")
    # Unknown as it never was submitted, so its id is free for another body.
    assert await service.ask(spec(action_id="half", label="another body")) is None
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_manager_whose_stream_ends_so_is_kept_for_its_lease(service: RawService) -> None:
    registration = manager_service_pb2.Registration(
        manager_id="broken",
        incarnation="1",
        node=manager_service_pb2.NodeSpec(node_id="own", capacity={"memory": 1}),
        services=[manager_service_pb2.HostedService(name="s", kinds=[action_pb2.ACTION_KIND_GENERATE])],
    )
    item = manager_service_pb2.ManagerItem(registration=registration)
    first = manager_service_pb2.ManagerSessionRequest(items=[item])
    async with raw_stream(service, MANAGER) as stream:
        await stream.write(first.SerializeToString())
        assert await stream.read() is not grpc.aio.EOF
        await stream.write(GARBAGE["no message"])
        assert (await end_of(stream)).code is INVALID
    status = await service.admin.GetStatus(admin_service_pb2.GetStatusRequest(), timeout=ANSWER_S)
    assert {manager.manager_id for manager in status.managers} == {"m", "broken"}
