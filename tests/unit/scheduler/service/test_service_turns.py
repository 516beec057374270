"""Long answers give way to others between their parts, and one peer has one of them at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.service import turns
from callsheet.scheduler.service.limits.peer_limits import PeerLimits
from callsheet.scheduler.service.limits.settings import LimitSettings
from callsheet.scheduler.service.loop import Clock
from callsheet.scheduler.service.rpc.admin_servicer import AdminServicer
from callsheet.scheduler.service.rpc.client_servicer import ClientServicer
from callsheet.scheduler.service.rpc.manager_servicer import ManagerServicer
from callsheet.scheduler.service.sessions import ClientStream, ManagerStream
from callsheet.scheduler.service.turns import in_turns, made_of
from callsheet.scheduler.web.tally import Tally
from callsheet.v1 import admin_service_pb2, client_service_pb2, common_pb2, job_pb2, manager_service_pb2

from tests.support.core_requests import action_request, fixed
from tests.support.core_world import CoreWorld, node

MANY = 40
NOBODY: Any = None


class Loop:
    """What servicers need of the loop: a core that stands still."""

    def __init__(self, world: CoreWorld) -> None:
        self.state, self.clock, self.posted = world.state, Clock(), 0
        self.tally = Tally()

    def post(self, happened: list[object]) -> None:
        self.posted += len(happened)


class Asked:
    """A call, as far as servicers look at it."""

    def __init__(self, peer: str = "ipv4:10.0.0.1:1") -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> CoreWorld:
    """A core with so many nodes and jobs, and with so many actions that wait for any node."""
    monkeypatch.setattr(job_pb2.JobSpec, "FromString", lambda _: job_pb2.JobSpec(job_id="job"), raising=False)
    made = CoreWorld(checked=False)
    for number in range(MANY):
        made.manager(f"m{number}", on=node(f"n{number}", 1))
    made.job()
    for number in range(3 * MANY):
        made.submit(action_request(f"a{number}", demand=fixed(cpu=1)))
    made.plan()
    return made


@pytest.fixture(autouse=True)
def shortest_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn is over after one thing."""
    monkeypatch.setattr(turns, "TURN_S", 0.0)


async def turns_of_others(ask: Callable[[], Awaitable[object]]) -> int:
    """How often others on the loop had their turns until an answer was there."""
    count = 0

    async def others() -> None:
        nonlocal count
        while True:
            await anyio.lowlevel.checkpoint()
            count += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        await anyio.lowlevel.checkpoint()
        count = 0
        with anyio.fail_after(60.0):
            await ask()
        tasks.cancel_scope.cancel()
    return count


def servicers(world: CoreWorld) -> tuple[AdminServicer, ClientServicer]:
    limits, loop = PeerLimits(LimitSettings()), cast("Any", Loop(world))
    admin = AdminServicer(loop, Predictors(), FirstComePlanner(), NOBODY, limits, history=NOBODY)
    return admin, ClientServicer(loop, NOBODY, limits, NOBODY, NOBODY)


def asking(world: CoreWorld, context: Any) -> dict[str, tuple[Callable[[], Awaitable[object]], int]]:
    """The calls with long answers, and how many things each of them tells of or looks at."""
    admin, client = servicers(world)
    waiting = common_pb2.ActionKey(job_id="job", action_id=f"a{3 * MANY - 1}")
    explain = admin_service_pb2.ExplainRequest(key=waiting)
    listed = admin_service_pb2.ListActionsRequest(job_id="job", page_size=1000)
    more = admin_service_pb2.WhatIfRequest(pool="n0", nodes=10_000)
    return {
        "GetStatus": (lambda: admin.GetStatus(admin_service_pb2.GetStatusRequest(), context), 3 * MANY),
        "Explain": (lambda: admin.Explain(explain, context), MANY),
        "ListActions": (lambda: admin.ListActions(listed, context), 3 * MANY),
        "WhatIf": (lambda: admin.WhatIf(more, context), MANY),
        "ListJobs": (lambda: client.ListJobs(client_service_pb2.ListJobsRequest(), context), 1),
    }


@pytest.mark.parametrize("rpc", ["GetStatus", "Explain", "ListActions", "WhatIf", "ListJobs"])
async def test_others_have_their_turns_between_the_parts_of_an_answer(world: CoreWorld, rpc: str) -> None:
    ask, things = asking(world, cast("Any", Asked()))[rpc]
    assert await turns_of_others(ask) >= things


async def test_a_page_of_trajectories_is_told_in_turns(world: CoreWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_pb2.TrajectorySpec, "FromString", lambda _: job_pb2.TrajectorySpec(), raising=False)
    for number in range(MANY):
        world.trajectory(f"t{number}")
    _, client = servicers(world)
    request = client_service_pb2.ListTrajectoriesRequest(job_id="job")
    assert await turns_of_others(lambda: client.ListTrajectories(request, cast("Any", Asked()))) >= MANY


async def test_long_messages_are_read_in_turns(world: CoreWorld) -> None:
    loop = cast("Any", Loop(world))
    client = servicers(world)[1]
    client._loop, client._audit = loop, cast("Any", _NoAudit())
    items = [client_service_pb2.ClientItem(sequence=each + 1, hold_job="job") for each in range(MANY)]
    told = client_service_pb2.ClientSessionRequest(items=items)
    assert await turns_of_others(lambda: client._read(ClientStream(), told, "peer")) >= MANY
    beats = [manager_service_pb2.ManagerItem(heartbeat=manager_service_pb2.Heartbeat())] * MANY
    manager = ManagerServicer(loop, NOBODY, NOBODY)
    assert await turns_of_others(lambda: manager._read(ManagerStream("m0"), beats)) >= MANY
    assert loop.posted == 2 * MANY


class _NoAudit:
    """Notes nothing."""

    def of_item(self, item: object, peer: str) -> None:
        """Nobody else feels it."""


async def test_one_peer_has_one_long_answer_at_a_time_and_others_come_between() -> None:
    limits, order = PeerLimits(LimitSettings()), list[str]()

    async def ask(peer: str) -> None:
        async with limits.question(peer), limits.one_answer:
            order.append(peer)
            await in_turns(made_of(range(3), str))

    async with anyio.create_task_group() as tasks:
        for peer in ("greedy", "greedy", "greedy", "other"):
            tasks.start_soon(ask, peer)
            await anyio.lowlevel.checkpoint()
    assert order.index("other") == 1, "the others of the first peer wait behind its first"


async def test_what_goes_wrong_in_a_part_goes_wrong_in_the_answer() -> None:
    def parts() -> Generator[None, None, int]:
        yield
        raise ValueError("of ours")

    with pytest.raises(ValueError, match="of ours"):
        await in_turns(parts())
