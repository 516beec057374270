"""Scheduler, managers and clients killed by -9 under load: every acknowledged action is accounted for.

`CALLSHEET_FAULT_SEED` repeats a run that failed; the failure shows its seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
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
from tests.support.clusters import Cluster, Part, open_cluster
from tests.support.rollouts import Load, to_argument
from tests.support.samples import examples

# Processes that start again and again: minutes on a machine that is busy otherwise.
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(320)]

_DEADLINE_S = 280.0
_LONG_LEASE_S = 30.0
_SHORT_LEASE_S = 3.0


class Run:
    """A load on a cluster, and the kills in it."""

    def __init__(self, cluster: Cluster, chance: random.Random, trajectories: int, actions: int) -> None:
        self.cluster = cluster
        self.chance = chance
        log = cluster.directory / "arrivals.jsonl"
        self.load = Load(cluster.address, chance.randrange(1 << 32), trajectories, actions, str(log))
        self.arrivals = Arrivals(log)
        self.client = cluster.add("client", "tests.support.rollouts", to_argument(self.load))

    async def kill_along(self, victims: Sequence[tuple[Part, ...]]) -> None:
        """Starts the load and kills the parts of each entry at once, each entry at a random moment, in order.

        Whatever was killed is started again before the next moment is waited for.
        """
        await self.client.start()
        last = int(self.load.total * 0.85)
        for moment, parts in zip(sorted(self.chance.sample(range(1, last), len(victims))), victims, strict=True):
            await self._wait_for(lambda moment=moment: len(self.arrivals.outcomes) >= moment)  # type: ignore[misc]
            for part in parts:
                await part.kill()
            # Together, as a manager serves no sooner than its scheduler does.
            async with anyio.create_task_group() as starts:
                for part in parts:
                    starts.start_soon(part.start)

    async def finish(self) -> None:
        """Waits until the load is over, then runs it once more: it must be told the same, and nothing runs again."""
        await self._wait_for_end()
        starts = read_starts(self.cluster.start_logs())
        await self.client.start()
        await self._wait_for_end()
        assert read_starts(self.cluster.start_logs()) == starts, "asking again started something"

    async def account(self, *, may_lose_state: bool) -> Counter[str]:
        """Checks everything that must hold in the end; returns what became of the actions."""
        arrivals, address = self.arrivals, self.cluster.address
        counts = check_outcomes(arrivals, self.load.total, may_lose_state=may_lose_state)
        check_starts(arrivals, read_starts(self.cluster.start_logs()))
        await check_asked_again(arrivals, address)
        assert (await check_nothing_leaked(address)).epoch == self.cluster.scheduler.starts
        return counts

    async def _wait_for_end(self) -> None:
        process = self.client.process
        await self._wait_for(lambda: process.returncode is not None)
        assert await self.client.stop() == "exit code 0", "the client failed; its log says why"
        self.arrivals.read()

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        await wait_for(self.arrivals, self.cluster.address, condition)


async def test_kill_scheduler(tmp_path: Path, chance: random.Random) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with open_cluster(tmp_path, managers=2, lease_s=_LONG_LEASE_S) as cluster:
            run = Run(cluster, chance, trajectories=16, actions=examples(26))
            await run.kill_along([(cluster.scheduler,)] * examples(6))
            await run.finish()
            # Nobody but the scheduler died: its managers finished what they ran, and every sandbox lived on.
            counts = await run.account(may_lose_state=False)
    assert counts == {"succeeded": run.load.total}


# By day each is killed in turn, below.
@pytest.mark.nightly
async def test_kill_managers(tmp_path: Path, chance: random.Random) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with open_cluster(tmp_path, managers=3, lease_s=_SHORT_LEASE_S) as cluster:
            run = Run(cluster, chance, trajectories=16, actions=examples(26))
            *mortal, lasting = cluster.managers
            await run.kill_along([(chance.choice(mortal),) for _ in range(examples(6))])
            # One stays away for good: its lease runs out, and the others take over.
            await lasting.kill()
            await run.finish()
            counts = await run.account(may_lose_state=True)
    assert counts["state_lost"] > 0


@pytest.mark.nightly
async def test_kill_client(tmp_path: Path, chance: random.Random) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with open_cluster(tmp_path, managers=2, lease_s=_LONG_LEASE_S) as cluster:
            run = Run(cluster, chance, trajectories=16, actions=examples(26))
            await run.kill_along([(run.client,)] * examples(6))
            await run.finish()
            counts = await run.account(may_lose_state=False)
    assert counts == {"succeeded": run.load.total}


async def test_kill_each_in_turn_and_together(tmp_path: Path, chance: random.Random) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with open_cluster(tmp_path, managers=2, lease_s=_SHORT_LEASE_S) as cluster:
            run = Run(cluster, chance, trajectories=16, actions=35)
            scheduler, client, (first, second) = cluster.scheduler, run.client, cluster.managers
            alone: list[tuple[Part, ...]] = [(scheduler,), (first,), (client,), (second,)]
            together: list[tuple[Part, ...]] = [(scheduler, first), (client, scheduler), (second, client, scheduler)]
            await run.kill_along(alone + together)
            await run.finish()
            counts = await run.account(may_lose_state=True)
    assert counts["state_lost"] > 0
