"""A refused submit gives back the payloads it took, and none that somebody else relies on."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from callsheet.scheduler.access.identity import ANYBODY
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.service.payloads import claims
from callsheet.scheduler.service.payloads.claims import PayloadClaims
from callsheet.scheduler.service.payloads.rights import PayloadRights
from callsheet.scheduler.store.local_payloads import LocalPayloadStore
from callsheet.scheduler.store.payloads import PayloadNotFoundError
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
        self.open_jobs = {"job"}
        rights = PayloadRights(store, SchedulerState(1, lambda _: b""))
        self.claims = PayloadClaims(store, rights, lambda job_id: job_id in self.open_jobs)

    def holds(self) -> int:
        """Links of jobs to the payload."""
        return (self.directory / "objects" / DIGEST).stat().st_nlink - 1

    async def until(self, holds: int) -> None:
        """Waits until so many jobs hold it, and no submit is on its way."""
        with anyio.fail_after(DEADLINE_S):
            while self.holds() != holds or self.claims._claimed:
                await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def world_in(directory: Path, kind: type[LocalPayloadStore] = LocalPayloadStore) -> AsyncIterator[World]:
    """Runs the claims for the length of the block."""

    async def chunks() -> AsyncIterator[bytes]:
        yield CONTENT

    store = await kind.open(directory)
    await store.put(chunks())
    world = World(directory, store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.claims.run)
        yield world
        tasks.cancel_scope.cancel()


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


class SlowRelease(LocalPayloadStore):
    """A store whose releases of jobs begin when a test says so, as if it could not be reached before."""

    asked: anyio.Event
    reached: anyio.Event

    async def release_job(self, job_id: str) -> None:
        """See `PayloadStore.release_job`."""
        self.asked.set()
        await self.reached.wait()
        await super().release_job(job_id)


async def test_a_release_that_takes_long_takes_nothing_from_a_job_opened_again(tmp_path: Path) -> None:
    async with world_in(tmp_path, SlowRelease) as world, anyio.create_task_group() as tasks:
        store = world.store
        assert isinstance(store, SlowRelease)
        store.asked, store.reached = anyio.Event(), anyio.Event()
        (await world.claims.of_submit(ANYBODY, "job", [REFERENCE])).settle(accepted=True)
        await world.claims.of_submit(ANYBODY, "another", [REFERENCE])
        world.open_jobs.clear()
        world.claims.release_job("job")
        with anyio.fail_after(DEADLINE_S):
            await store.asked.wait()
        world.open_jobs.add("job")

        async def submit() -> None:
            (await world.claims.of_submit(ANYBODY, "job", [REFERENCE])).settle(accepted=True)

        tasks.start_soon(submit)
        await anyio.wait_all_tasks_blocked()
        store.reached.set()
        with anyio.fail_after(DEADLINE_S):
            while any(job_id == "job" for job_id, _ in world.claims._claimed) or world.claims._releasing:
                await anyio.lowlevel.checkpoint()
        assert world.holds() == 2, "the job that was opened again has it, and the other"


@pytest.mark.parametrize("opened", [True, False])
async def test_a_release_waits_for_submits_on_their_way(tmp_path: Path, opened: bool) -> None:
    async with world_in(tmp_path) as world:
        (await world.claims.of_submit(ANYBODY, "job", [REFERENCE])).settle(accepted=True)
        world.open_jobs.clear()
        # It came with the opening of a job of the same id, which is not decided either.
        claim = await world.claims.of_submit(ANYBODY, "job", [REFERENCE])
        world.claims.release_job("job")
        await anyio.wait_all_tasks_blocked()
        assert world.holds() == 1
        world.open_jobs |= {"job"} if opened else set()
        claim.settle(accepted=opened)
        with anyio.fail_after(DEADLINE_S):
            while world.claims._closed_jobs or world.claims._releasing:
                await anyio.lowlevel.checkpoint()
        assert (tmp_path / "objects" / DIGEST).exists() == opened


async def test_a_submit_does_not_wait_for_ever_for_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "_RELEASE_WAIT_S", 0.0)
    async with world_in(tmp_path, SlowRelease) as world:
        store = world.store
        assert isinstance(store, SlowRelease)
        store.asked, store.reached = anyio.Event(), anyio.Event()
        world.claims.release_job("closed")
        with anyio.fail_after(DEADLINE_S):
            await store.asked.wait()
        with pytest.raises(RefusedError, match="still being let go") as refused:
            await world.claims.of_submit(ANYBODY, "closed", [REFERENCE])
        assert refused.value.code is RefusalCode.UNAVAILABLE
        await world.claims.of_submit(ANYBODY, "job", [REFERENCE])
