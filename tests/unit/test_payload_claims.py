"""A refused submit gives back the payloads it took, and none that somebody else relies on."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from callsheet.scheduler.access.identity import ANYBODY
from callsheet.scheduler.core.model import RefusalCode, RefusedError
from callsheet.scheduler.core.state import SchedulerState
from callsheet.scheduler.service.payload_claims import PayloadClaims
from callsheet.scheduler.service.payload_rights import PayloadRights
from callsheet.scheduler.store.errors import PayloadNotFoundError
from callsheet.scheduler.store.local_payloads import LocalPayloadStore
from callsheet.v1 import common_pb2

pytestmark = pytest.mark.anyio
DEADLINE_S = 30.0
CONTENT = b"a payload"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
REFERENCE = common_pb2.PayloadReference(sha256=DIGEST, size=len(CONTENT))


class World:
    """A store with one payload, and claims on it."""

    def __init__(self, directory: Path, store: LocalPayloadStore) -> None:
        self.directory = directory
        self.store = store
        self.claims = PayloadClaims(store, PayloadRights(store, SchedulerState(1, lambda _: b"")))

    def holds(self) -> int:
        """Links of jobs to the payload."""
        return (self.directory / "objects" / DIGEST).stat().st_nlink - 1

    async def until(self, holds: int) -> None:
        """Waits until so many jobs hold it, and no submit is on its way."""
        with anyio.fail_after(DEADLINE_S):
            while self.holds() != holds or self.claims._claimed:
                await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def world_in(directory: Path) -> AsyncIterator[World]:
    """Runs the claims for the length of the block."""

    async def chunks() -> AsyncIterator[bytes]:
        yield CONTENT

    store = await LocalPayloadStore.open(directory)
    await store.put(chunks())
    world = World(directory, store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.claims.run)
        yield world
        tasks.cancel_scope.cancel()


async def test_a_refused_submit_gives_back_what_it_took(tmp_path: Path) -> None:
    async with world_in(tmp_path) as world:
        claim = await world.claims.of_submit(ANYBODY, "job", [REFERENCE, REFERENCE])
        assert world.holds() == 1
        claim.settle(accepted=False)
        await world.until(0)
        claim.settle(accepted=True)
        assert await world.store.size(DIGEST) == len(CONTENT), "its client may submit again without another upload"


async def test_an_accepted_submit_keeps_what_it_took(tmp_path: Path) -> None:
    async with world_in(tmp_path) as world:
        (await world.claims.of_submit(ANYBODY, "job", [REFERENCE])).settle(accepted=True)
        (await world.claims.of_submit(ANYBODY, "job", [REFERENCE])).settle(accepted=False)
        (await world.claims.of_submit(ANYBODY, "another", [REFERENCE])).settle(accepted=False)
        await world.until(1)


async def refused_first(world: World) -> None:
    first = await world.claims.of_submit(ANYBODY, "job", [REFERENCE])
    second = await world.claims.of_submit(ANYBODY, "job", [REFERENCE])
    first.settle(accepted=False)
    second.settle(accepted=True)


async def accepted_first(world: World) -> None:
    first = await world.claims.of_submit(ANYBODY, "job", [REFERENCE])
    second = await world.claims.of_submit(ANYBODY, "job", [REFERENCE])
    second.settle(accepted=True)
    first.settle(accepted=False)


async def result_meanwhile(world: World) -> None:
    claim = await world.claims.of_submit(ANYBODY, "job", [REFERENCE])
    await world.claims.of_result(ANYBODY, "job", DIGEST)
    claim.settle(accepted=False)


async def claimed_while_given_back(world: World) -> None:
    (await world.claims.of_submit(ANYBODY, "job", [REFERENCE])).settle(accepted=False)
    # What gives it back runs while this one takes it.
    (await world.claims.of_submit(ANYBODY, "job", [REFERENCE])).settle(accepted=True)


@pytest.mark.parametrize("course", [refused_first, accepted_first, result_meanwhile, claimed_while_given_back])
async def test_what_somebody_else_relies_on_stays(tmp_path: Path, course: Callable[[World], Awaitable[None]]) -> None:
    async with world_in(tmp_path) as world:
        await course(world)
        await world.until(1)


async def test_a_payload_that_is_missing_gives_back_those_before_it(tmp_path: Path) -> None:
    missing = common_pb2.PayloadReference(sha256="0" * 64, size=3)
    async with world_in(tmp_path) as world:
        for bad in (missing, common_pb2.PayloadReference(sha256=DIGEST, size=1)):
            with pytest.raises(RefusedError) as refused:
                await world.claims.of_submit(ANYBODY, "job", [REFERENCE, bad])
            assert refused.value.code is RefusalCode.FAILED_PRECONDITION
            await world.until(0)
        with pytest.raises(PayloadNotFoundError):
            await world.claims.of_result(ANYBODY, "job", "0" * 64)
