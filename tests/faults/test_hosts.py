"""Five hosts with TLS and tokens, and a wire that fails: every step ran once, and what was lost is lost by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import anyio
import pytest

from tests.support.five_hosts import HOUR_S, LEASE_S, TRAJECTORIES, FiveHosts, five_hosts
from tests.support.host_load import DONE
from tests.support.hosts import Host

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
# What becomes of a sandbox whose manager is silent for longer than its lease.
_LOST = "INFRA state_lost"


@pytest.fixture(scope="module")
async def five(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FiveHosts]:
    async with five_hosts(tmp_path_factory.mktemp("hosts")) as running:
        yield running


def _for_a_while(fault: Callable[[], None], host: Host, seconds: float) -> Callable[[], Coroutine[Any, Any, None]]:
    async def happen() -> None:
        fault()
        try:
            await anyio.sleep(seconds)
        finally:
            host.mend()

    return happen


@pytest.mark.parametrize("clock_s", [-HOUR_S, HOUR_S])
async def test_hosts_with_addresses_and_clocks_of_their_own_work(five: FiveHosts, clock_s: int) -> None:
    assert await five.load(clock_s=clock_s) == {DONE: TRAJECTORIES}


@pytest.mark.parametrize(("place", "fault"), [("scheduler", "cut"), ("node", "silence"), ("clients", "deafen")])
async def test_a_wire_that_fails_for_less_than_a_lease_costs_nothing(five: FiveHosts, fault: str, place: str) -> None:
    host = {"scheduler": five.host, "node": five.nodes[0], "clients": five.clients}[place]
    assert await five.load(_for_a_while(getattr(host, fault), host, 0.5 * LEASE_S)) == {DONE: TRAJECTORIES}


async def test_a_slow_wire_costs_nothing(five: FiveHosts) -> None:
    slow = _for_a_while(lambda: five.host.slow_down(0.1), five.host, 5.0)
    assert await five.load(slow) == {DONE: TRAJECTORIES}


async def test_a_node_that_is_deaf_for_longer_loses_its_sandboxes_by_name(five: FiveHosts) -> None:
    node = five.nodes[1]
    became = await five.load(_for_a_while(node.deafen, node, 2.5 * LEASE_S))
    assert set(became) <= {DONE, _LOST}
    assert 0 < became[_LOST] < TRAJECTORIES
    # It is back, and rid of what it held.
    assert await five.load() == {DONE: TRAJECTORIES}


async def test_a_host_that_vanishes_loses_its_sandboxes_by_name(five: FiveHosts) -> None:
    async def vanish() -> None:
        five.nodes[2].cut()
        await five.managers[2].kill()

    became = await five.load(vanish)
    assert set(became) <= {DONE, _LOST}
    assert 0 < became[_LOST] < TRAJECTORIES
    assert await five.load() == {DONE: TRAJECTORIES}
