"""A scheduler with TLS and tokens, three managers of sandboxes, and clients, each on a host of its own."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from callsheet.deploy.tokens import issue

from tests.support.certificates import Authority
from tests.support.clusters import ROOT, Part
from tests.support.hosts import Host, hosts_of

LEASE_S = 4.0
TRAJECTORIES, STEPS = 9, 12
HOUR_S = 3600
_PORT = 7077


async def calm() -> None:
    """Nothing happens."""


class FiveHosts:
    """See the module's docstring. `time.time` of two managers is an hour ahead and an hour behind.

    Attributes:
        host: The scheduler's.
        nodes: The managers' hosts.
        clients: The clients' host.
        scheduler: The scheduler's process.
        managers: The managers' processes.
        sources: Where the code of processes comes from that are started from now on; nothing is this checkout.
    """

    def __init__(self, hosts: list[Host], directory: Path, sources: Sequence[Path], lease_s: float) -> None:
        self.host, *self.nodes, self.clients = hosts
        self.sources = sources
        self._lease_s = lease_s
        self._directory = directory
        self._tokens = directory / "tokens.json"
        self._authority = Authority(directory)
        self._address = f"{self.host.address}:{_PORT}"
        self._loads = 0
        self._issued: dict[str, str] = {}
        self.scheduler = self.new_scheduler()
        self.managers = [self.new_manager(place) for place in range(len(self.nodes))]

    async def start(self) -> None:
        """Starts the scheduler, then the managers."""
        await self.scheduler.start()
        async with anyio.create_task_group() as tasks:
            for manager in self.managers:
                tasks.start_soon(manager.start)

    async def stop(self) -> None:
        """Stops all."""
        for part in (*self.managers, self.scheduler):
            await part.stop()

    async def load(self, fault: Callable[[], Coroutine[Any, Any, None]] = calm, clock_s: int = 0) -> Counter[str]:
        """Runs trajectories while a fault happens; returns how many became of each kind."""
        self._loads += 1
        name = f"job-{self._loads}"
        result = self._directory / f"{name}.json"
        arguments = (self._address, name, str(TRAJECTORIES), str(STEPS), str(result))
        environment = self._environment("job", name)
        load = self.clients.part(name, "tests.support.host_load", *arguments, environment=environment, clock_s=clock_s)
        await load.start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fault)
            assert await load.process.wait() == 0
        await load.stop()
        became = json.loads(result.read_text())
        assert len(became) == TRAJECTORIES
        return Counter(became.values())

    def new_scheduler(self) -> Part:
        """Returns a scheduler that is not started yet."""
        cert, key = self._authority.sign("scheduler", self.host.address)
        arguments = (
            *("--listen", self._address, "--data-dir", str(self._directory / "data"), "--expect", "sandbox"),
            *("--tls-cert", str(cert), "--tls-key", str(key), "--tokens", str(self._tokens)),
            *("--manager-lease", f"{self._lease_s:g}", "--heartbeat-interval", f"{LEASE_S / 8:g}"),
            *("--log-format", "json"),
        )
        environment = self._environment("admin")
        return self.host.part("scheduler", "callsheet.cli.main", "scheduler", *arguments, environment=environment)

    def new_manager(self, place: int) -> Part:
        """Returns a manager of a node that is not started yet."""
        node, clock_s = self.nodes[place], (HOUR_S, -HOUR_S, 0)[place]
        arguments = (
            *("--scheduler", self._address, "--node-id", node.name, "--cpus", "2", "--memory-mib", "4000"),
            *("--data-dir", str(self._directory / node.name), "--log-format", "json"),
        )
        environment = self._environment("manager", f"{node.name}-sandbox")
        module, name = "callsheet.cli.main", f"{node.name}-sandbox"
        return node.part(name, module, "manager", "sandbox", *arguments, environment=environment, clock_s=clock_s)

    def _environment(self, scope: str, subject: str = "") -> dict[str, str]:
        """What a process is let in by, and where its code is."""
        if subject not in self._issued:
            self._issued[subject] = issue(self._tokens, scope, subject)
        token = self._issued[subject]
        path = os.pathsep.join(map(str, (*self.sources, ROOT)))
        return {"CALLSHEET_TLS_CA": str(self._authority.ca), "CALLSHEET_TOKEN": token, "PYTHONPATH": path}


@asynccontextmanager
async def five_hosts(
    directory: Path, sources: Sequence[Path] = (), lease_s: float = LEASE_S
) -> AsyncIterator[FiveHosts]:
    """Runs them for the length of the block.

    Args:
        directory: For data and logs.
        sources: See `FiveHosts`.
        lease_s: How long a manager may be silent.
    """
    with hosts_of(["scheduler", "n1", "n2", "n3", "clients"], directory) as hosts:
        running = FiveHosts(hosts, directory, sources, lease_s)
        try:
            await running.start()
            yield running
        finally:
            with anyio.CancelScope(shield=True):
                await running.stop()
