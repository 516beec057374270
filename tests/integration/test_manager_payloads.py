"""Payloads over a real PayloadService."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from callsheet.managers.executor import PayloadMissingError, PayloadTooLargeError, PayloadUnavailableError
from callsheet.managers.payloads import SchedulerPayloads
from callsheet.v1 import common_pb2
from callsheet.v1.names import MAX_INLINE_BYTES

from tests.support.scripted_scheduler import ScriptedScheduler

pytestmark = pytest.mark.anyio

CONTENT = os.urandom(3_500_000)


@asynccontextmanager
async def payload_access(
    max_bytes: int = 1 << 30, retry_for_s: float = 10.0
) -> AsyncIterator[tuple[SchedulerPayloads, ScriptedScheduler]]:
    scheduler = ScriptedScheduler()
    await scheduler.start()
    async with grpc.aio.insecure_channel(scheduler.address) as channel:
        yield SchedulerPayloads(channel, max_bytes, retry_for_s), scheduler
    await scheduler.close()


async def test_large_content_goes_to_the_store_and_comes_back() -> None:
    async with payload_access() as (payloads, scheduler):
        blob = await payloads.write(CONTENT)
        assert blob.reference.size == len(CONTENT)
        assert scheduler.payloads == {blob.reference.sha256: CONTENT}
        assert await payloads.read(blob) == CONTENT


@pytest.mark.parametrize("size", [0, 1, MAX_INLINE_BYTES])
async def test_small_content_stays_inline(size: int) -> None:
    async with payload_access() as (payloads, scheduler):
        blob = await payloads.write(CONTENT[:size])
        assert blob == common_pb2.Blob(inline=CONTENT[:size])
        assert await payloads.read(blob) == CONTENT[:size]
        assert not scheduler.payloads


async def test_a_blob_without_content_is_empty() -> None:
    async with payload_access() as (payloads, _):
        assert await payloads.read(common_pb2.Blob()) == b""


async def test_unknown_content_is_missing() -> None:
    async with payload_access() as (payloads, _):
        reference = common_pb2.PayloadReference(sha256="00" * 32, size=100_000)
        with pytest.raises(PayloadMissingError, match="does not have it"):
            await payloads.read(common_pb2.Blob(reference=reference))


@pytest.mark.parametrize("stored", [CONTENT[:-1], CONTENT + b"!", CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])])
async def test_other_content_than_the_reference_says_is_missing(stored: bytes) -> None:
    async with payload_access() as (payloads, scheduler):
        reference = scheduler.store(CONTENT)
        scheduler.payloads[reference.sha256] = stored
        with pytest.raises(PayloadMissingError, match="expected 3500000 bytes"):
            await payloads.read(common_pb2.Blob(reference=reference))


async def test_a_payload_over_the_limit_is_not_even_read() -> None:
    async with payload_access(max_bytes=100_000) as (payloads, scheduler):
        reference = scheduler.store(CONTENT)
        with pytest.raises(PayloadTooLargeError, match="3500000 bytes is more than the 100000"):
            await payloads.read(common_pb2.Blob(reference=reference))
        with pytest.raises(PayloadTooLargeError, match="3500000 bytes is more than the 100000"):
            await payloads.write(CONTENT)


async def test_a_payload_that_the_store_refuses_is_too_large() -> None:
    async with payload_access() as (payloads, scheduler):
        scheduler.max_payload_bytes = 100_000
        with pytest.raises(PayloadTooLargeError, match="refused by the payload store"):
            await payloads.write(CONTENT)


async def test_a_scheduler_that_comes_back_in_time_gets_the_payload() -> None:
    async with payload_access() as (payloads, scheduler):
        scheduler.put_failures = 2
        assert scheduler.payloads == {(await payloads.write(CONTENT)).reference.sha256: CONTENT}


async def test_a_scheduler_that_stays_away_makes_payloads_unavailable() -> None:
    async with payload_access(retry_for_s=0.2) as (payloads, scheduler):
        await scheduler.stop()
        with pytest.raises(PayloadUnavailableError, match="UNAVAILABLE"):
            await payloads.write(CONTENT)
