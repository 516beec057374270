"""TakeBatch between a lease and its commit: whoever asked gets the batch, or nobody has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from callsheet.scheduler.core.machine import handle
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import TrajectoryEnd, TrajectoryResult
from callsheet.scheduler.service.limits.peer_limits import PeerLimits
from callsheet.scheduler.service.limits.settings import LimitSettings
from callsheet.scheduler.service.rpc.client_servicer import ClientServicer
from callsheet.v1 import client_service_pb2

from tests.support.core_requests import JOB
from tests.support.core_world import CoreWorld

pytestmark = pytest.mark.anyio
_REQUEST = client_service_pb2.TakeBatchRequest(job_id=JOB, batch_id="one")


class SlowCommits:
    """A servicer's loop whose journal commits a lease when a test says so."""

    def __init__(self) -> None:
        self.world = CoreWorld()
        self.world.job()
        self.world.trajectory("t")
        self.state = self.world.state
        self.clock = self
        self.leased = anyio.Event()
        self._withheld: list[commands.GiveBatch] = []
        nobody: Any = None
        self.servicer = ClientServicer(cast("Any", self), nobody, PeerLimits(LimitSettings()), nobody, nobody)

    def now(self) -> float:
        return self.world.now

    async def wait_for_room(self) -> None:
        await anyio.lowlevel.checkpoint()

    def post(self, happened: Sequence[events.Event]) -> None:
        for each in handle(self.state, happened, self.world.now):
            if isinstance(each, commands.Accept):
                each.reply_to.session.put_result(each.reply_to.sequence, None)
            elif isinstance(each, commands.GiveBatch):
                self._withheld.append(each)
                self.leased.set()

    def finish(self) -> None:
        """The trajectory finishes, so that whoever waits has a lease."""
        reply = events.ReplyTo(cast("Any", self), 0)
        closed = events.TrajectoryCloseRequested(reply, JOB, "t", TrajectoryEnd.COMPLETED, TrajectoryResult(b""))
        self.post([closed])

    def put_result(self, sequence: int, refusal: object) -> None:
        assert refusal is None

    def commit(self) -> None:
        """Tells of the leases."""
        for each in self._withheld:
            each.taker.put_batch(each.job_id, each.batch_id)

    async def take(self) -> client_service_pb2.TakeBatchResponse:
        return await self.servicer.TakeBatch(_REQUEST, cast("Any", None))


async def test_whose_time_is_up_before_the_commit_gets_the_batch_still() -> None:
    loop = SlowCommits()
    loop.finish()
    taken: list[client_service_pb2.TakeBatchResponse] = []

    async def take() -> None:
        taken.append(await loop.take())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        await loop.leased.wait()
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        assert taken == []
        loop.commit()
    assert [each.trajectory_id for each in taken[0].batch.trajectories] == ["t"]
    assert loop.state.jobs[JOB].buffer.batches.keys() == {"one"}


async def test_a_lease_of_an_rpc_that_is_cancelled_goes_back() -> None:
    loop = SlowCommits()
    loop.finish()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(loop.take)
        await loop.leased.wait()
        tasks.cancel_scope.cancel()
    buffer = loop.state.jobs[JOB].buffer
    assert (buffer.batches, buffer.ready_count) == ({}, 1)


async def test_who_finds_nothing_leaves_nothing() -> None:
    loop = SlowCommits()
    assert not (await loop.take()).HasField("batch")
    loop.finish()
    assert loop.state.jobs[JOB].buffer.batches == {}
    assert not loop.leased.is_set()
