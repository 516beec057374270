"""How long each call holds the scheduler's loop, with 10,000 nodes and 100,000 actions known."""

from __future__ import annotations

import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import grpc
from callsheet.scheduler.core.step import MAX_EVENTS_PER_STEP, MAX_PARTS_PER_STEP
from callsheet.scheduler.core.words import events
from callsheet.v1 import (
    action_pb2,
    admin_service_pb2,
    client_service_pb2,
    common_pb2,
    job_pb2,
)

from tests.soak.busy_core import (
    BUFFERED,
    CALL,
    EXPIRING,
    GROUPED,
    LARGE,
    OTHER,
    STALE,
    Busy,
    Held,
    Size,
    busy_scheduler,
    job,
    lines_of,
    manager_name,
    submit,
)
from tests.support.measurements import Measured
from tests.support.waiting import until

Table = list[tuple[str, Held]]
# A part of what ends many things writes some four, and an event as many.
MOST_RECORDS = 4 * (MAX_EVENTS_PER_STEP + MAX_PARTS_PER_STEP)
FULL, SMALL = Size(10_000, 100_000, 1_000), Size(50, 500, 5)
admin, client = admin_service_pb2, client_service_pb2


def key(job_id: str, action_id: str) -> common_pb2.ActionKey:
    return common_pb2.ActionKey(job_id=job_id, action_id=action_id)


class Asking:
    """Asks, and notes how long the loop was held until all that came of it was done."""

    def __init__(self, busy: Busy) -> None:
        self.busy = busy
        self.table: Table = []
        self.asked: set[str] = set()

    async def timed(self, name: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        held = self.busy.watch.begin()
        answer = await ask()
        await self.busy.idle()
        held.collected_s = self.busy.watch.collected_s
        self.table.append((name, held))
        return answer

    async def rpc(self, service: str, rpc: str, request: Any, note: str = "", *, refused: bool = False) -> Any:
        self.asked.add(f"{service}/{rpc}")
        answer = await self.timed(f"{rpc} {note}".strip(), lambda: self.busy.call(service, rpc, request))
        assert isinstance(answer, grpc.RpcError) == refused, f"{rpc}: {answer}"
        return answer

    async def admin(self, rpc: str, request: Any, note: str = "", *, refused: bool = False) -> Any:
        return await self.rpc("admin_service_pb2_grpc", rpc, request, note, refused=refused)

    async def client(self, rpc: str, request: Any, note: str = "", *, refused: bool = False) -> Any:
        return await self.rpc("client_service_pb2_grpc", rpc, request, note, refused=refused)

    async def events(self, name: str, *happened: events.Event) -> None:
        async def post() -> None:
            self.busy.loop.post(happened)

        await self.timed(name, post)


async def nothing() -> None:
    await anyio.sleep(1.0)


async def look(asking: Asking, size: Size) -> None:
    """What only reads."""
    await asking.timed("nothing, for a second", nothing)
    await asking.admin("GetStatus", admin.GetStatusRequest())
    for what in ("q0", "run-t000001", "wait-t000001", "reset-t000001"):
        await asking.admin("Explain", admin.ExplainRequest(key=key(LARGE, what)), what)
    await asking.admin("Explain", admin.ExplainRequest(key=key("", "q0")), "without a job")
    await asking.admin("ListActions", admin.ListActionsRequest(job_id=LARGE, page_size=1000), "of the large job")
    await asking.admin("ListActions", admin.ListActionsRequest(job_id=OTHER, page_size=1000), "of the other job")
    waiting = admin.ListActionsRequest(job_id=EXPIRING, page_size=1000)
    await asking.admin("ListActions", waiting, "of a job that waits")
    for what in ("e0", f"e{size.trajectories - 1}"):
        await asking.admin("Explain", admin.ExplainRequest(key=key(EXPIRING, what)), what)
    trajectories = admin.ListTrajectoryHistoryRequest(job_id=LARGE, page_size=1000)
    await asking.admin("ListTrajectoryHistory", trajectories, "of the large job")
    await asking.admin("ListActionHistory", admin.ListActionHistoryRequest(job_id=LARGE, page_size=1000))
    await asking.admin("ListClosedJobs", admin.ListClosedJobsRequest(page_size=1000))
    await asking.admin("WhatIf", admin.WhatIfRequest(pool="n00001", nodes=10_000), "of 10,000 nodes")
    await asking.admin("WhatIf", admin.WhatIfRequest(pool="n00001", nodes=1), "of one node")
    drain = admin.DrainManagerRequest(manager_id=manager_name(1), dry_run=True)
    await asking.admin("DrainManager", drain, "as a dry run")
    await asking.admin("HealManager", admin.HealManagerRequest(manager_id=manager_name(1)), refused=True)
    await asking.client("GetServerInfo", client.GetServerInfoRequest(client_version="0"))
    await asking.client("ListJobs", client.ListJobsRequest())
    for job_id in (LARGE, GROUPED, STALE):
        await asking.client("ListTrajectories", client.ListTrajectoriesRequest(job_id=job_id, page_size=10_000), job_id)
    grouped = client.ListTrajectoriesRequest(job_id=GROUPED, group_id="g", page_size=10_000)
    await asking.client("ListTrajectories", grouped, "of a group")
    await asking.client("ListGroups", client.ListGroupsRequest(job_id=GROUPED, page_size=10_000))
    await asking.client("ListBuffer", client.ListBufferRequest(job_id=BUFFERED, page_size=10_000))
    await asking.client("GetOutcome", client.GetOutcomeRequest(key=key(LARGE, "r0")))
    await asking.timed("the page of metrics", lambda: anyio.to_thread.run_sync(read, asking.busy.metrics))


def read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=600.0) as page:
        content: bytes = page.read()
        return content


async def change_little(asking: Asking, size: Size) -> None:
    """What changes one thing."""
    await asking.client("OpenJob", client.OpenJobRequest(job=job_pb2.JobSpec(job_id="one", detached=True)))
    opened = job_pb2.TrajectorySpec(job_id="one", trajectory_id="t")
    await asking.client("OpenTrajectory", client.OpenTrajectoryRequest(trajectory=opened))
    spec = action_pb2.ActionSpec(job_id="one", action_id="a", trajectory_id="t", **CALL)
    await asking.client("SubmitAction", client.SubmitActionRequest(action=spec))
    await asking.client("CancelAction", client.CancelActionRequest(key=key("one", "a")))
    await asking.client("CloseTrajectory", client.CloseTrajectoryRequest(job_id="one", trajectory_id="t"))
    await asking.client("CloseJob", client.CloseJobRequest(job_id="one"), "of a small job")
    await asking.client("TakeBatch", client.TakeBatchRequest(job_id=BUFFERED, batch_id="b"))
    await asking.client("SettleBatch", client.SettleBatchRequest(job_id=BUFFERED, batch_id="b"))
    await asking.admin("DrainManager", admin.DrainManagerRequest(manager_id=manager_name(2)))


async def streams(asking: Asking, size: Size) -> None:
    """What comes on streams."""
    busy = asking.busy

    async def submit_many() -> None:
        await busy.say(*(submit(OTHER, f"s{number}") for number in range(1024)))

    await asking.timed("a client's message of 1,024 submits", submit_many)

    async def open_many() -> None:
        await busy.say(*(job(f"more{number}") for number in range(1024)))

    await asking.timed("1,024 jobs that are opened", open_many)
    name = manager_name(3)
    await asking.events("a heartbeat", events.ManagerHeartbeat(name, busy.streams[name]))

    async def beat() -> None:
        busy.loop.post([events.ManagerHeartbeat(each, stream) for each, stream in busy.streams.items()])

    await asking.timed("a heartbeat of each manager", beat)

    async def one_more() -> None:
        busy.register(size.nodes)

    await asking.timed("one more node", one_more)
    await asking.events("a stream of a manager breaks", events.ManagerDisconnected(busy.streams[name], name))

    async def again() -> None:
        busy.register(3)

    await asking.timed("that manager comes back", again)
    await asking.timed("a round of ends", lambda: ends(busy, 256))


async def ends(busy: Busy, most: int) -> None:
    """So many tool calls end at once."""
    chosen = {
        attempt.token
        for attempt in [*busy.state.attempts.values()][-most:]
        if attempt.action.attempt is attempt and not attempt.action.trajectory
    }
    is_chosen = lambda action: action.attempt is not None and action.attempt.token in chosen  # noqa: E731
    busy.report(is_chosen, is_chosen)


async def lose(busy: Busy, names: list[str]) -> None:
    """Has managers be silent for too long."""
    for name in names:
        busy.state.managers[name].last_seen = -1e9
        busy.state.timers.set(("manager", name), busy.loop.clock.now())
    busy.loop.wake()
    await until(lambda: busy.state.managers.keys().isdisjoint(names), every_s=0.05)


async def change_much(asking: Asking, size: Size) -> None:
    """What ends thousands of things."""
    busy = asking.busy
    await asking.timed("a node that is lost", lambda: lose(busy, [manager_name(4)]))
    many = [manager_name(number) for number in range(5, 5 + min(1000, size.nodes // 10))]
    await asking.timed("a tenth of the nodes, at most 1,000, lost at once", lambda: lose(busy, many))
    await asking.client("CancelWork", client.CancelWorkRequest(job_id=GROUPED, group_id="g"), "of a group")
    published = client.PublishPolicyVersionRequest(job_id=STALE, version=9)
    await asking.client("PublishPolicyVersion", published, "that ends all")
    closed = client.ListTrajectoriesRequest(job_id=GROUPED, closed=True, page_size=10_000)
    await asking.client("ListTrajectories", closed, "that are closed")

    async def expire() -> None:
        await busy.say(client.ClientItem(release_job=EXPIRING))
        await until(lambda: busy.state.jobs[EXPIRING].lease.expired, every_s=0.05)

    await asking.timed("a job that expires", expire)
    await asking.client("CancelWork", client.CancelWorkRequest(job_id=OTHER), "of a job")
    busy.state.settings = replace(busy.state.settings, finished_actions_s=0.0)
    busy.state.timers.set(("retention", ""), busy.loop.clock.now())
    await asking.events("all that is over forgotten")
    await asking.client("CloseJob", client.CloseJobRequest(job_id=LARGE), "of the large job")
    await asking.client("CloseJob", client.CloseJobRequest(job_id=BUFFERED), "with a buffer")
    busy.loop.post([events.SessionEnded(busy.client)])
    await asking.events("a client's stream that ends")
    for rest in (OTHER, STALE, GROUPED, EXPIRING):
        await asking.client("CloseJob", client.CloseJobRequest(job_id=rest), rest)


async def test_no_call_holds_the_loop(nightly: bool, measured: Measured, tmp_path: Path) -> None:
    size = FULL if nightly else SMALL
    async with busy_scheduler(tmp_path, size) as busy:
        asking = Asking(busy)
        for part in (look, change_little, streams, change_much):
            await part(asking, size)
        for line in lines_of(asking.table):
            measured(line)
        measured(f"at most {busy.records} records in a step")
        assert asking.asked == unary_rpcs()
        assert busy.records <= MOST_RECORDS


def unary_rpcs() -> set[str]:
    """What clients and operators may ask for but on streams."""
    services = {
        "admin_service_pb2_grpc": admin.DESCRIPTOR.services_by_name["AdminService"],
        "client_service_pb2_grpc": client.DESCRIPTOR.services_by_name["ClientService"],
    }
    methods = [(module, each) for module, service in services.items() for each in service.methods]
    return {f"{module}/{each.name}" for module, each in methods if each.name != "ClientSession"}
