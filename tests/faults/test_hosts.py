"""Five hosts with TLS and tokens, and a wire that fails: every step ran once, and what was lost is lost by name."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from callsheet.deploy.tokens import issue

from tests.support.certificates import Authority
from tests.support.clusters import Part
from tests.support.host_load import DONE
from tests.support.hosts import Host, hosts_of

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
_LEASE_S = 4.0
_PORT = 7077
_TRAJECTORIES, _STEPS = 9, 12
_HOUR_S = 3600
# What becomes of a sandbox whose manager is silent for longer than its lease.
_LOST = "INFRA state_lost"


class FiveHosts:
    """A scheduler, three managers of sandboxes and clients, each on a host of its own.

    Attributes:
        scheduler: The scheduler's host.
        nodes: The managers' hosts.
        clients: The clients' host.
        managers: The managers' processes.
    """

    def __init__(self, hosts: list[Host], directory: Path, exits: AsyncExitStack) -> None:
        self.scheduler, *self.nodes, self.clients = hosts
        self.managers: list[Part] = []
        self._directory = directory
        self._exits = exits
        self._tokens = directory / "tokens.json"
        self._authority = Authority(directory)
        self._address = f"{self.scheduler.address}:{_PORT}"
        self._loads = 0

    async def start(self) -> None:
        """Starts the scheduler and the managers, whose clocks are an hour apart."""
        cert, key = self._authority.sign("scheduler", self.scheduler.address)
        arguments = (
            *("--listen", f"{self.scheduler.address}:{_PORT}", "--data-dir", str(self._directory / "data")),
            *("--tls-cert", str(cert), "--tls-key", str(key), "--tokens", str(self._tokens)),
            *("--manager-lease", f"{_LEASE_S:g}", "--heartbeat-interval", f"{_LEASE_S / 8:g}", "--expect", "sandbox"),
        )
        scheduler = self.scheduler.part("scheduler", "callsheet.cli.main", "scheduler", *arguments)
        await self._run(scheduler)
        for node, clock_s in zip(self.nodes, (_HOUR_S, -_HOUR_S, 0), strict=True):
            self.managers.append(self._manager(node, clock_s))
        async with anyio.create_task_group() as tasks:
            for manager in self.managers:
                tasks.start_soon(self._run, manager)

    async def load(self, fault: Callable[[], Coroutine[Any, Any, None]], clock_s: int = 0) -> Counter[str]:
        """Runs trajectories while a fault happens; returns how many became of each kind."""
        self._loads += 1
        name = f"job-{self._loads}"
        result = self._directory / f"{name}.json"
        arguments = (self._address, name, str(_TRAJECTORIES), str(_STEPS), str(result))
        environment = self._access("job", name)
        load = self.clients.part(name, "tests.support.host_load", *arguments, clock_s=clock_s, **environment)
        await load.start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fault)
            assert await load.process.wait() == 0
        await load.stop()
        became = json.loads(result.read_text())
        assert len(became) == _TRAJECTORIES
        return Counter(became.values())

    def _manager(self, node: Host, clock_s: int) -> Part:
        arguments = (
            *("--scheduler", self._address, "--node-id", node.name, "--cpus", "2", "--memory-mib", "2000"),
            *("--data-dir", str(self._directory / node.name), "--log-format", "json"),
        )
        access = self._access("manager", f"{node.name}-sandbox")
        module = "callsheet.cli.main"
        return node.part(f"{node.name}-sandbox", module, "manager", "sandbox", *arguments, clock_s=clock_s, **access)

    def _access(self, scope: str, subject: str) -> dict[str, str]:
        return {"CALLSHEET_TLS_CA": str(self._authority.ca), "CALLSHEET_TOKEN": issue(self._tokens, scope, subject)}

    async def _run(self, part: Part) -> None:
        await part.start()
        self._exits.push_async_callback(part.stop)


@pytest.fixture(scope="module")
async def five(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FiveHosts]:
    directory = tmp_path_factory.mktemp("hosts")
    with hosts_of(["scheduler", "n1", "n2", "n3", "clients"], directory) as hosts:
        async with AsyncExitStack() as exits:
            running = FiveHosts(hosts, directory, exits)
            await running.start()
            yield running


async def _calm() -> None:
    """Nothing happens."""


def _for_a_while(fault: Callable[[], None], host: Host, seconds: float) -> Callable[[], Coroutine[Any, Any, None]]:
    async def happen() -> None:
        fault()
        try:
            await anyio.sleep(seconds)
        finally:
            host.mend()

    return happen


@pytest.mark.parametrize("clock_s", [-_HOUR_S, _HOUR_S])
async def test_hosts_with_addresses_and_clocks_of_their_own_work(five: FiveHosts, clock_s: int) -> None:
    assert await five.load(_calm, clock_s) == {DONE: _TRAJECTORIES}


@pytest.mark.parametrize(("place", "fault"), [("scheduler", "cut"), ("node", "silence"), ("clients", "deafen")])
async def test_a_wire_that_fails_for_less_than_a_lease_costs_nothing(five: FiveHosts, fault: str, place: str) -> None:
    host = {"scheduler": five.scheduler, "node": five.nodes[0], "clients": five.clients}[place]
    failing = _for_a_while(getattr(host, fault), host, 0.5 * _LEASE_S)
    assert await five.load(failing) == {DONE: _TRAJECTORIES}


async def test_a_slow_wire_costs_nothing(five: FiveHosts) -> None:
    slow = _for_a_while(lambda: five.scheduler.slow_down(0.1), five.scheduler, 5.0)
    assert await five.load(slow) == {DONE: _TRAJECTORIES}


async def test_a_node_that_is_deaf_for_longer_loses_its_sandboxes_by_name(five: FiveHosts) -> None:
    node = five.nodes[1]
    became = await five.load(_for_a_while(node.deafen, node, 2.5 * _LEASE_S))
    assert set(became) <= {DONE, _LOST}
    assert 0 < became[_LOST] < _TRAJECTORIES
    # It is back, and rid of what it held.
    assert await five.load(_calm) == {DONE: _TRAJECTORIES}


async def test_a_host_that_vanishes_loses_its_sandboxes_by_name(five: FiveHosts) -> None:
    async def vanish() -> None:
        five.nodes[2].cut()
        await five.managers[2].kill()

    became = await five.load(vanish)
    assert set(became) <= {DONE, _LOST}
    assert 0 < became[_LOST] < _TRAJECTORIES
    assert await five.load(_calm) == {DONE: _TRAJECTORIES}
