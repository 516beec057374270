"""A `callsheet up` with a fleet, as a process, and what is left of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psutil
from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import ManagerStatus, SchedulerStatus
from callsheet.client.settings import ClientOptions, Tls
from callsheet.deploy.fleet.notes import FleetFiles
from callsheet.deploy.tokens import token_path

from tests.support.certificates import Authority
from tests.support.expected import present
from tests.support.ray_cluster import RayCluster
from tests.support.waiting import until_so

NODE_MEMORY_MIB = 900
ONE_NODE = f"cores = 1\nmemory_mib = {NODE_MEMORY_MIB}\n"
_CALLSHEET = (sys.executable, "-m", "callsheet.cli.main")
_SOON_LOST = {"CALLSHEET_MANAGER_LEASE": "8"}
_WAIT_S = 60.0


async def wait_for(condition: Callable[[], Awaitable[object]]) -> None:
    await until_so(condition, every_s=0.1)


@dataclass(frozen=True)
class Up:
    """A `callsheet up` with a fleet."""

    process: subprocess.Popen[str]
    data_dir: Path
    address: str
    options: ClientOptions = field(default_factory=ClientOptions)

    async def fleet_command(self, *words: str) -> Any:
        command = [*_CALLSHEET, "fleet", *words, "--data-dir", str(self.data_dir), "--json"]
        return json.loads((await anyio.run_process(command, stderr=None)).stdout)

    def fleet(self) -> list[dict[str, Any]]:
        note = present(FleetFiles(self.data_dir).note())
        nodes: list[dict[str, Any]] = note["nodes"]
        return nodes

    async def status(self) -> SchedulerStatus:
        async with AdminClient(self.address, self.options) as admin:
            return await admin.status()

    async def connected(self) -> list[ManagerStatus]:
        return [each for each in (await self.status()).managers if each.connected and not each.leaving]

    async def wait_for_nodes(self, count: int) -> None:
        """Until there are so many at the scheduler, none of them leaving, and at the provider."""

        async def has() -> bool:
            return len(await self.connected()) == count == len((await self.status()).managers) == len(self.fleet())

        await wait_for(has)

    async def end(self) -> int:
        with anyio.fail_after(_WAIT_S):
            return await anyio.to_thread.run_sync(self.process.wait)


def on_ray(cluster: RayCluster) -> tuple[str, ...]:
    return "--on", "ray", "--address", cluster.address


def start(on: Sequence[str], data_dir: Path, *words: str) -> subprocess.Popen[str]:
    apart = ("--listen", "127.0.0.1:0", "--gateway", "none", "--isolation", "none", "--data-dir", str(data_dir))
    command = [*_CALLSHEET, "up", *on, *apart, "--drain-s", "5", "--json", *words]
    with (data_dir / "up.out").open("w") as told, (data_dir / "up.err").open("w") as shown:
        return subprocess.Popen(command, stdout=told, stderr=shown, text=True, env={**os.environ, **_SOON_LOST})


@asynccontextmanager
async def running(
    on: Sequence[str], data_dir: Path, *words: str, authority: Authority | None = None
) -> AsyncIterator[Up]:
    process = start(on, data_dir, *words)
    try:

        async def serves() -> object:
            assert process.poll() is None, (data_dir / "up.err").read_text()
            return (data_dir / "up.out").read_text()

        await wait_for(serves)
        address, options = json.loads((data_dir / "up.out").read_text())["address"], ClientOptions()
        if authority is not None:
            address = f"localhost:{address.rpartition(':')[2]}"
            options = ClientOptions(tls=Tls(str(authority.ca)), token=token_path(data_dir, "admin").read_text())
        yield Up(process, data_dir, address, options)
    finally:
        process.terminate()
        process.wait(timeout=60)
        sys.stderr.write((data_dir / "up.err").read_text())


def processes_of(data_dir: Path) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if str(data_dir) in " ".join(each.info["cmdline"] or ())]


async def wait_until_nothing_is_left(cluster: RayCluster, data_dir: Path, books: dict[str, int]) -> None:
    async def is_over() -> bool:
        return cluster.books() == books and not processes_of(data_dir)

    await wait_for(is_over)


async def check_books(cluster: RayCluster, up: Up, of_others: int = 0) -> None:
    """What each manager registered is what Ray gave it, and Ray has given no more."""
    status = await up.status()
    nodes = {node.node_id: node.capacity for node in status.nodes}
    assert set(nodes) == {each.node_id for each in status.managers}
    assert all(capacity == {"cpu": 1, "memory": NODE_MEMORY_MIB} for capacity in nodes.values())

    async def agree() -> bool:
        return cluster.books()["cores"] - cluster.books()["free"] == len(nodes) + of_others

    await wait_for(agree)
