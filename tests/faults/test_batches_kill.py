"""Batches over a scheduler that is killed: what was leased stays so, what was acknowledged never comes again."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from callsheet.client import AlreadyExistsError, Client

from tests.support.clusters import open_cluster

_DEADLINE_S = 60.0


async def test_a_killed_scheduler_gives_no_trajectory_out_twice(tmp_path: Path) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with open_cluster(tmp_path, managers=0, lease_s=1.0) as cluster, Client(cluster.address) as client:
            job = await client.open_job("job", detached=True)
            for name in "abcd":
                async with job.trajectory(name) as trajectory:
                    await trajectory.finish(1.0, name.encode() * 5000)
            done = await job.take_batch(at_most=1, batch_id="done")
            leased = await job.take_batch(at_least=2, at_most=2, batch_id="leased")
            await done.acknowledge()
            await cluster.scheduler.kill()
            await cluster.scheduler.start()
            await done.acknowledge()
            with pytest.raises(AlreadyExistsError):
                await job.take_batch(at_most=1, batch_id="done")
            again = await job.take_batch(at_least=2, at_most=2, batch_id="leased")
            assert [each.payload for each in again.trajectories] == [b"b" * 5000, b"c" * 5000]
            rest = await job.take_batch()
            assert [each.trajectory_id for each in rest.trajectories] == ["d"]
            for batch in (leased, rest):
                await batch.acknowledge()
            assert (await job.status()).buffer.ready == 0
