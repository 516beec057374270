"""Reward functions with cold starts over two nodes, one of which is lost: one outcome each, and nothing is left."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import numpy as np
from callsheet.client import Client, Job, Outcome, RewardResult, Succeeded
from callsheet.client.admin import AdminClient
from callsheet.managers.sandbox.probe import probe_bubblewrap
from callsheet.managers.sandbox.settings import Isolation

from tests.support.clusters import Cluster, Part
from tests.support.grader_package import MODULE, stage_graders
from tests.support.measurements import Measured
from tests.support.real_sandboxes import processes
from tests.support.waiting import until

LEASE_S = 3.0
_DEADLINE_S = 900.0


def add_node(cluster: Cluster, name: str, stage: Path) -> Part:
    """A sandbox manager with a node of its own, of one core."""
    isolation = Isolation.BUBBLEWRAP if probe_bubblewrap().works else Isolation.NONE
    own = ("--node-id", name, "--manager-id", name, "--cpus", "1", "--memory-mib", "1024")
    where = ("--scheduler", cluster.address, "--data-dir", str(cluster.directory / name))
    options = ("--isolation", isolation.value, "--stage", str(stage), "--log-format", "json")
    return cluster.add(name, "callsheet.cli.main", "manager", "sandbox", *own, *where, *options)


async def score_all(job: Job, count: int, ended: list[Outcome[RewardResult]]) -> None:
    """Has so many functions scored at once; notes every outcome."""

    async def one(number: int) -> None:
        arguments = {"answer": str(number % 7), "expected": "3"}
        ended.append(await job.reward_function(f"{MODULE}:exact", arguments, action_id=f"f-{number}"))

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(one, number)


def total_s(outcome: Outcome[RewardResult]) -> float:
    """Seconds from its submit to its end."""
    return (outcome.timeline.ended_at or 0.0) - (outcome.timeline.submitted_at or 0.0)


def quantiles(seconds: np.ndarray[Any, Any]) -> str:
    """The median, and the 99th of a hundred."""
    return f"p50 {np.quantile(seconds, 0.5):.3f} p99 {np.quantile(seconds, 0.99):.3f}"


async def test_functions_outlive_a_node_with_one_outcome_each(
    nightly: bool, measured: Measured, tmp_path: Path
) -> None:
    count = 1000 if nightly else 40
    cluster = Cluster(tmp_path, managers=0, lease_s=LEASE_S)
    nodes = [add_node(cluster, name, stage_graders(tmp_path / name)) for name in ("one", "two")]
    ended: list[Outcome[RewardResult]] = []
    try:
        with anyio.fail_after(_DEADLINE_S):
            await cluster.start()
            for node in nodes:
                await node.start()
            async with Client(cluster.address) as client, await client.open_job("j") as job:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(score_all, job, count, ended)
                    await until(lambda: len(ended) >= count // 4)
                    await nodes[0].kill()
                async with AdminClient(cluster.address) as admin:
                    status = await admin.status()
            left = processes("-c", f"{MODULE}:exact")
    finally:
        with anyio.CancelScope(shield=True):
            await cluster.stop()
    seconds = np.array([total_s(each) for each in ended])
    runs = np.array([each.timeline.execution_s for each in ended])
    tries = Counter(each.attempts for each in ended)
    measured(
        f"{count:,} functions at once, each a cold start, two nodes of a core, one killed: from submit to end "
        f"{quantiles(seconds)} s, execution {quantiles(runs)} s, attempts {dict(sorted(tries.items()))}"
    )
    assert all(isinstance(each, Succeeded) for each in ended)
    assert sorted(each.action_id for each in ended) == sorted(f"f-{number}" for number in range(count))
    scores = {each.action_id: each.unwrap().score for each in ended}
    assert scores == {f"f-{number}": float(number % 7 == 3) for number in range(count)}
    assert left == []
    assert sum(manager.sandboxes for manager in status.managers) == 0
    assert sum(manager.attempts for manager in status.managers) == 0
