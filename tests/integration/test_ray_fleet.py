"""A fleet on a real Ray cluster of three nodes on this machine: it comes up, loses one, leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest
from callsheet.client import Client, Failed

from tests.support.ray_cluster import RayCluster, ray_cluster

pytestmark = pytest.mark.timeout(400)

_CALLSHEET = (sys.executable, "-m", "callsheet.cli.main")
_MEMORY_MIB = 900
_WAIT_S = 60.0
_TRAJECTORIES = 9
NOTHING_HELD = {"cores": 3, "free": 3, "groups": 0}


def wait_for(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + _WAIT_S
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.5)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(3) as running:
        yield running


@dataclass(frozen=True)
class Up:
    """A `callsheet up` with a fleet."""

    process: subprocess.Popen[str]
    data_dir: Path
    address: str

    def json(self, *words: str) -> Any:
        at = ("--scheduler", self.address) if words[0] != "fleet" else ("--data-dir", str(self.data_dir))
        done = subprocess.run([*_CALLSHEET, *words, *at, "--json"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def down(self) -> None:
        words = [*_CALLSHEET, "fleet", "down", "--data-dir", str(self.data_dir)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def fleet(self) -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = self.json("fleet", "status")["nodes"]
        return nodes

    def connected(self) -> list[dict[str, Any]]:
        return [each for each in self.json("status")["managers"] if each["connected"] and not each["leaving"]]


def start(cluster: RayCluster, data_dir: Path, *words: str) -> subprocess.Popen[str]:
    on_ray = ("--on", "ray", "--address", cluster.address, "--cpus", "1", "--memory-mib", str(_MEMORY_MIB))
    apart = ("--listen", "127.0.0.1:0", "--gateway", "none", "--isolation", "none", "--data-dir", str(data_dir))
    command = [*_CALLSHEET, "up", *on_ray, *apart, "--drain-s", "5", "--json", *words]
    with (data_dir / "up.out").open("w") as told, (data_dir / "up.err").open("w") as shown:
        return subprocess.Popen(command, stdout=told, stderr=shown, text=True)


@contextmanager
def running(process: subprocess.Popen[str], data_dir: Path) -> Iterator[Up]:
    try:
        wait_for((data_dir / "up.out").read_text)
        yield Up(process, data_dir, json.loads((data_dir / "up.out").read_text())["address"])
    finally:
        process.terminate()
        process.wait(timeout=60)
        sys.stderr.write((data_dir / "up.err").read_text())


@pytest.fixture
def up(cluster: RayCluster, tmp_path: Path) -> Iterator[Up]:
    with running(start(cluster, tmp_path, "--nodes", "3"), tmp_path) as started:
        wait_for(lambda: len(started.connected()) == 3)
        yield started


def processes_of(data_dir: Path) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if str(data_dir) in " ".join(each.info["cmdline"] or ())]


def has_nodes(up: Up, nodes: int) -> bool:
    """Whether there are so many at the scheduler, none of them leaving, and at the provider."""
    return len(up.connected()) == nodes == len(up.json("status")["managers"]) == len(up.fleet())


def check_books(cluster: RayCluster, up: Up) -> None:
    """What each manager registered is what Ray gave it, and Ray has given no more."""
    nodes = {node["node_id"]: node["capacity"] for node in up.json("status")["nodes"]}
    assert set(nodes) == {each["node_id"] for each in up.json("status")["managers"]}
    assert all(capacity == {"cpu": 1, "memory": _MEMORY_MIB} for capacity in nodes.values())
    wait_for(lambda: cluster.books()["cores"] - cluster.books()["free"] == len(nodes))


async def roll_out(address: str, lose: Callable[[], str]) -> tuple[Counter[str], str]:
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
            lost = await anyio.to_thread.run_sync(lose)
    return ends, lost


def kill_machine(cluster: RayCluster, up: Up) -> str:
    """Ends a raylet and all that runs on its machine, as if that had vanished; returns the node's name."""
    wait_for(lambda: sum(each["attempts"] for each in up.connected()) == _TRAJECTORIES)
    gone = cluster.ask("workers")[-1]
    (node,) = [each for each in up.fleet() if each["place"] == gone]
    managers = [
        each for each in processes_of(up.data_dir) if f"--manager-id {node['name']} " in " ".join(each.cmdline())
    ]
    cluster.ask("remove", gone)
    for process in managers:
        process.send_signal(signal.SIGKILL)
    return str(node["name"])


@pytest.mark.anyio
async def test_a_fleet_loses_a_machine_and_leaves_nothing_behind(cluster: RayCluster, up: Up) -> None:
    check_books(cluster, up)
    placed = {each["name"]: each["place"] for each in up.fleet()}
    assert len(set(placed.values())) == 3, "each is on a machine of its own"
    ends, lost = await roll_out(up.address, lambda: kill_machine(cluster, up))
    assert sum(ends.values()) == _TRAJECTORIES
    assert set(ends) == {"succeeded", "state_lost"}
    (told,) = up.json("status")["lost"]
    assert (told["manager_id"], told["sandboxes"]) == (lost, ends["state_lost"])
    wait_for(lambda: sorted(each["phase"] for each in up.fleet()) == ["serving", "serving", "waiting"])
    check_after_loss = up.json("status")
    assert len(check_after_loss["nodes"]) == 2
    cluster.ask("add")
    wait_for(lambda: len(up.connected()) == 3)
    check_books(cluster, up)
    up.down()
    assert up.process.wait(timeout=60) == 0
    wait_for(lambda: cluster.books() == NOTHING_HELD)
    wait_for(lambda: not processes_of(up.data_dir))


def test_a_keeper_that_is_killed_takes_its_fleet_along(cluster: RayCluster, up: Up) -> None:
    managers = processes_of(up.data_dir)
    os.kill(up.process.pid, signal.SIGKILL)
    wait_for(lambda: cluster.books() == NOTHING_HELD)
    psutil.wait_procs(managers, timeout=60)
    wait_for(lambda: not processes_of(up.data_dir))


def test_nodes_come_and_go_one_by_one(cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(
        f"cooldown_s = 600\n[roles.sandbox]\nnodes = [1, 3]\ncores = 1\nmemory_mib = {_MEMORY_MIB}\n"
    )
    with running(start(cluster, tmp_path, "--fleet", str(tmp_path / "fleet.toml")), tmp_path) as up:
        wait_for(lambda: len(up.connected()) == 1)
        for nodes in (2, 3, 1):
            up.json("fleet", "scale", "sandbox", str(nodes))
            wait_for(partial(has_nodes, up, nodes))
            check_books(cluster, up)
        up.process.terminate()
        assert up.process.wait(timeout=60) == 0, "a signal ends it in good order, whatever Ray does at one"
    wait_for(lambda: cluster.books() == NOTHING_HELD)
    wait_for(lambda: not processes_of(tmp_path))


def test_too_much_is_refused_by_name(cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(
        f"start_s = 3\n[roles.sandbox]\nnodes = 5\ncores = 1\nmemory_mib = {_MEMORY_MIB}\n"
    )
    process = start(cluster, tmp_path, "--fleet", str(tmp_path / "fleet.toml"))
    assert process.wait(timeout=120) == 1
    told = (tmp_path / "up.err").read_text()
    assert "roles.sandbox: Ray found no room within 3 s for 5 nodes with" in told
    wait_for(lambda: cluster.books() == NOTHING_HELD)
