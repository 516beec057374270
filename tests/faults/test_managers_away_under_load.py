"""Managers that leave or fall silent under load, without being killed."""

from __future__ import annotations

import secrets
import signal
from collections import Counter
from pathlib import Path

import anyio
import pytest
from callsheet.client.admin import AdminClient

from tests.support.accounts import (
    Arrivals,
    check_asked_again,
    check_nothing_leaked,
    check_outcomes,
    check_starts,
    read_starts,
    wait_for,
)
from tests.support.clusters import Cluster, open_cluster
from tests.support.rollouts import IN_SANDBOX, Load, to_argument
from tests.support.samples import examples
from tests.support.waiting import until_so

# Processes that start again and again: minutes on a machine that is busy otherwise.
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(320)]

_DEADLINE_S = 280.0
_POLL_S = 0.02
_LONG_LEASE_S = 30.0
_SHORT_LEASE_S = 2.0


class Run:
    """A load on a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.arrivals = Arrivals(cluster.directory / "arrivals.jsonl")
        self.load = Load(cluster.address, secrets.randbits(32), 24, examples(20), str(self.arrivals.path))
        self.client = cluster.add("client", "tests.support.rollouts", to_argument(self.load))

    async def until_share(self, share: float) -> None:
        """Waits until that share of the load has its outcome."""
        wanted = share * self.load.total
        await wait_for(self.arrivals, self.cluster.address, lambda: len(self.arrivals.outcomes) >= wanted)

    async def account(self) -> Counter[str]:
        """Waits for the end and checks everything; returns what became of the actions."""
        process = self.client.process
        await wait_for(self.arrivals, self.cluster.address, lambda: process.returncode is not None)
        assert await self.client.stop() == "exit code 0"
        self.arrivals.read()
        counts = check_outcomes(self.arrivals, self.load.total, may_lose_state=True)
        check_starts(self.arrivals, read_starts(self.cluster.start_logs()))
        await check_asked_again(self.arrivals, self.cluster.address)
        await check_nothing_leaked(self.cluster.address)
        return counts


async def test_a_drained_manager_loses_nothing_that_it_started(tmp_path: Path) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with open_cluster(tmp_path, managers=2, lease_s=_LONG_LEASE_S) as cluster:
            run = Run(cluster)
            await run.client.start()
            for share, manager in zip((0.2, 0.5), cluster.managers, strict=True):
                await run.until_share(share)
                assert await manager.stop() == "exit code 0"
                await manager.start()
            counts = await run.account()
    arrivals = run.arrivals
    starts = read_starts(cluster.start_logs())
    # Its sandboxes end with it, so later actions in them fail; those that had started did not.
    lost = [action_id for action_id, outcome in arrivals.outcomes.items() if outcome["type"] == "Failed"]
    assert len(lost) == counts["state_lost"] > 0
    assert not [action_id for action_id in lost if action_id in starts]
    assert all(len(started) == 1 for started in starts.values()), "a drain makes nobody run anything again"
    assert {action_id.rpartition("/")[2] for action_id in lost} <= IN_SANDBOX


async def managers_of(admin: AdminClient) -> set[str]:
    return {manager.manager_id for manager in (await admin.status()).managers}


async def test_a_manager_silent_for_its_lease_changes_nothing_when_it_wakes(tmp_path: Path) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with (
            open_cluster(tmp_path, managers=2, lease_s=_SHORT_LEASE_S) as cluster,
            AdminClient(cluster.address) as admin,
        ):
            run = Run(cluster)
            await run.client.start()
            await run.until_share(0.3)
            silent = cluster.managers[0]
            silent.signal(signal.SIGSTOP)
            try:
                await until_so(lambda: managers_of(admin), lambda it: silent.name not in it, every_s=_POLL_S)
            finally:
                silent.signal(signal.SIGCONT)
            # It goes on with attempts that are given up; their ends are stale, and it serves again.
            counts = await run.account()
            # A starved machine can make the other one silent for as long.
            await until_so(lambda: managers_of(admin), lambda it: it == {"m-0", "m-1"}, every_s=_POLL_S)
    assert counts["state_lost"] > 0
