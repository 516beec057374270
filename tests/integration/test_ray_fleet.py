"""A fleet on a real Ray cluster of three nodes on this machine: it comes up, loses one, leaves nothing."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import psutil
import pytest
from callsheet.client import Client, Failed
from callsheet.deploy.tokens import listed, token_path

from tests.support.certificates import Authority
from tests.support.fleets import (
    NODE_MEMORY_MIB,
    ONE_NODE,
    Up,
    check_books,
    on_ray,
    processes_of,
    running,
    start,
    wait_for,
    wait_until_nothing_is_left,
)
from tests.support.ray_cluster import RayCluster, memory_has, ray_cluster

pytestmark = [pytest.mark.timeout(400), pytest.mark.anyio]

_WAIT_S = 60.0
_TRAJECTORIES = 9
NOTHING_HELD = {"cores": 3, "free": 3, "groups": 0}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(3) as running:
        yield running


async def roll_out(address: str, lose: Callable[[], Awaitable[str]]) -> tuple[Counter[str], str]:
    """Resets, loses a manager while all trajectories run a step, and returns how their steps ended."""
    ends: Counter[str] = Counter()
    async with Client(address) as client, await client.open_job("run") as job:

        async def one(number: int) -> None:
            async with job.trajectory(f"t-{number}") as trajectory:
                await trajectory.env_reset()
                ready.release()
                await begin.wait()
                outcome = await trajectory.env_step("sleep 10; echo done")
                ends[outcome.reason.value if isinstance(outcome, Failed) else "succeeded"] += 1

        ready, begin = anyio.Semaphore(0), anyio.Event()
        async with anyio.create_task_group() as tasks:
            for number in range(_TRAJECTORIES):
                tasks.start_soon(one, number)
            with anyio.fail_after(_WAIT_S):
                for _ in range(_TRAJECTORIES):
                    await ready.acquire()
            begin.set()
            lost = await lose()
    return ends, lost


async def kill_machine(cluster: RayCluster, up: Up) -> str:
    """Ends a raylet and all that runs on its machine, as if that had vanished; returns the node's name."""

    async def all_run() -> bool:
        return sum(each.attempts for each in await up.connected()) == _TRAJECTORIES

    await wait_for(all_run)
    gone = cluster.ask("workers")[-1]
    (node,) = [each for each in up.fleet() if each["place"] == gone]
    managers = [
        each for each in processes_of(up.data_dir) if f"--manager-id {node['name']} " in " ".join(each.info["cmdline"])
    ]
    cluster.ask("remove", gone)
    for process in managers:
        process.send_signal(signal.SIGKILL)
    return str(node["name"])


async def test_a_fleet_loses_a_machine_and_leaves_nothing_behind(cluster: RayCluster, tmp_path: Path) -> None:
    units = ("--nodes", "3", "--cpus", "1", "--memory-mib", str(NODE_MEMORY_MIB))
    async with running(on_ray(cluster), tmp_path, *units) as up:
        await up.wait_for_nodes(3)
        await check_books(cluster, up)
        placed = {each["name"]: each["place"] for each in up.fleet()}
        assert len(set(placed.values())) == 3, "each is on a machine of its own"
        ends, lost = await roll_out(up.address, lambda: kill_machine(cluster, up))
        assert sum(ends.values()) == _TRAJECTORIES
        assert set(ends) == {"succeeded", "state_lost"}
        (told,) = (await up.status()).lost
        assert (told.manager_id, told.sandboxes) == (lost, ends["state_lost"])

        async def waits_for_another() -> bool:
            return sorted(each["phase"] for each in up.fleet()) == ["serving", "serving", "waiting"]

        await wait_for(waits_for_another)
        assert len((await up.status()).nodes) == 2
        cluster.ask("add")
        await up.wait_for_nodes(3)
        await check_books(cluster, up)
        await up.fleet_command("down")
        assert await up.end() == 0
        await wait_until_nothing_is_left(cluster, tmp_path, NOTHING_HELD)


async def test_nodes_come_and_go_one_by_one_each_with_a_token_of_its_own(cluster: RayCluster, tmp_path: Path) -> None:
    fleet, tokens, authority = tmp_path / "fleet.toml", tmp_path / "tokens.json", Authority(tmp_path)
    fleet.write_text(f"cooldown_s = 600\n[roles.sandbox]\nnodes = [1, 2]\n{ONE_NODE}")
    cert, key = authority.sign("server", "localhost")
    private = ("--tokens", tokens, "--tls-cert", cert, "--tls-key", key, "--tls-ca", authority.ca)
    words = ("--fleet", str(fleet), *map(str, private))
    async with running(on_ray(cluster), tmp_path, *words, authority=authority) as up:
        await up.wait_for_nodes(1)
        for nodes in (2, 1):
            await up.fleet_command("scale", "sandbox", str(nodes))
            await up.wait_for_nodes(nodes)
            await check_books(cluster, up)
            here = {each["name"] for each in up.fleet()}
            await wait_for(lambda: _known(tokens, {"", *here}))  # noqa: B023 - awaited at once
            if nodes == 2:
                check_secret(cluster, [token_path(tmp_path / "fleet", name).read_text() for name in here])
        assert [each["phase"] for each in (await up.fleet_command("status"))["nodes"]] == ["serving"]
        up.process.terminate()
        assert await up.end() == 0, "a signal ends it in good order, whatever Ray does at one"
        await wait_until_nothing_is_left(cluster, tmp_path, NOTHING_HELD)
    assert await _known(tokens, {""})


async def _known(tokens: Path, subjects: set[str]) -> bool:
    return {each.subject for each in listed(tokens)} == subjects


def check_secret(cluster: RayCluster, tokens: list[str]) -> None:
    """Tokens are in no command line, no log of Ray's, and not in its control store nor in any of its raylets."""
    everyone = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    logs = [path.read_bytes() for path in Path(cluster.ask("logs")).rglob("*") if path.is_file()]
    ray = cluster.servers()
    assert {each.name() for each in ray} == {"gcs_server", "raylet"}
    assert any(memory_has(each.pid, b"sandbox-2") for each in ray), "what is not secret is found there"
    for token in tokens:
        secret = token.rpartition("_")[2]
        assert not [words for words in everyone if secret in words]
        assert not [text for text in logs if secret.encode() in text]
        assert not [each for each in ray if memory_has(each.pid, secret.encode())]


@pytest.mark.nightly
async def test_a_fleet_beside_a_trainer_keeps_off_its_machine(cluster: RayCluster, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.toml"
    role = f'[roles.sandbox]\nlabels = {{pool = "!in(trainer)"}}\n{ONE_NODE}'
    trains_on = cluster.ask("train")
    try:
        fleet.write_text(f"start_s = 2\n{role}nodes = 3\n")
        process = start(on_ray(cluster), tmp_path, "--fleet", str(fleet))
        with anyio.fail_after(_WAIT_S):
            assert await anyio.to_thread.run_sync(process.wait) == 1
        told = (tmp_path / "up.err").read_text()
        assert "roles.sandbox: Ray found no room within 2 s for 3 nodes with" in told
        assert "and labels {'pool': '!in(trainer)'}" in told
        assert "has free CPU 0 of 1" in told
        fleet.write_text(f"{role}nodes = 2\n")
        async with running(on_ray(cluster), tmp_path, "--fleet", str(fleet)) as up:
            await up.wait_for_nodes(2)
            await check_books(cluster, up, of_others=1)
            assert trains_on not in {each["place"] for each in up.fleet()}
            os.kill(up.process.pid, signal.SIGKILL)
            books = {"cores": 3, "free": 2, "groups": 1}
            await wait_until_nothing_is_left(cluster, tmp_path, books)
    finally:
        cluster.ask("end training")
