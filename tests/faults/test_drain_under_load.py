"""A manager that gets SIGTERM under load: what it runs ends as itself, and nothing that it started is lost."""

from __future__ import annotations

import secrets
from pathlib import Path

import anyio
import pytest

from tests.support.accounts import (
    Arrivals,
    check_asked_again,
    check_nothing_leaked,
    check_outcomes,
    check_starts,
    read_starts,
    wait_for,
)
from tests.support.clusters import open_cluster
from tests.support.rollouts import IN_SANDBOX, Load, to_argument

pytestmark = pytest.mark.anyio

_DEADLINE_S = 110.0
_LEASE_S = 30.0


async def test_a_drained_manager_loses_nothing_that_it_started(tmp_path: Path) -> None:
    arrivals = Arrivals(tmp_path / "arrivals.jsonl")
    with anyio.fail_after(_DEADLINE_S):
        async with open_cluster(tmp_path, managers=2, lease_s=_LEASE_S) as cluster:
            load = Load(cluster.address, secrets.randbits(32), 24, 20, str(arrivals.path))
            client = cluster.add("client", "tests.support.rollouts", to_argument(load))
            await client.start()
            process = client.process
            leaving, staying = cluster.managers
            for share, manager in ((0.2, leaving), (0.5, staying)):
                await wait_for(arrivals, cluster.address, lambda n=share * load.total: len(arrivals.outcomes) >= n)  # type: ignore[misc]
                assert await manager.stop() == "exit code 0"
                await manager.start()
            await wait_for(arrivals, cluster.address, lambda: process.returncode is not None)
            assert await client.stop() == "exit code 0"
            arrivals.read()
            counts = check_outcomes(arrivals, load.total, may_lose_state=True)
            await check_asked_again(arrivals, cluster.address)
            await check_nothing_leaked(cluster.address)
    starts = read_starts(cluster.start_logs())
    check_starts(arrivals, starts)
    # Its sandboxes end with it, so later actions in them fail; those that had started did not.
    lost = [action_id for action_id, outcome in arrivals.outcomes.items() if outcome["type"] == "Failed"]
    assert len(lost) == counts["state_lost"] > 0
    assert not [action_id for action_id in lost if action_id in starts]
    assert all(len(started) == 1 for started in starts.values()), "a drain makes nobody run anything again"
    assert {action_id.rpartition("/")[2] for action_id in lost} <= IN_SANDBOX
