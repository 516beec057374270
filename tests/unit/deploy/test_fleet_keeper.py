"""A fleet's keeper concludes nothing from what it cannot read, and does what it is told."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from callsheet.deploy.fleet import keeper as keeping
from callsheet.deploy.fleet.decisions import ManagerSeen, RoleWanted
from callsheet.deploy.fleet.keeper import FleetKeeper, SchedulerSeen
from callsheet.deploy.fleet.node import FleetNode, NodeOrder, NodePhase
from callsheet.deploy.fleet.notes import FleetFiles, Orders
from callsheet.deploy.fleet.provider import NoNodeRoomError, Provider, ThisMachine, UnreadableError
from callsheet.deploy.fleet.settings import FleetSettings, RoleSettings

from tests.support.waiting import until

pytestmark = pytest.mark.anyio

ROLE = RoleSettings(role="noop", nodes=(1, 3), cores=1, memory_mib=64)
FLEET = FleetSettings(roles={"noop": ROLE}, patience_s=0.0, cooldown_s=0.0)


class ScriptedWorld(Provider):
    """A provider and a scheduler that show what a test says, and note what they are asked."""

    def __init__(self) -> None:
        self.there: dict[str, FleetNode] = {}
        self.managers: dict[str, ManagerSeen] = {}
        self.asked: list[str] = []
        self.wanted = RoleWanted(0, {}, {})
        self.unreadable: set[str] = set()
        self.busy: set[str] = set()
        self.end_slowly = False
        self.known: set[str] = set()
        self.looks = 0
        self.room = 3

    def open(self) -> ThisMachine:
        return ThisMachine("127.0.0.1", has_others=False)

    def nodes(self) -> Sequence[FleetNode]:
        self.looks += 1
        if "nodes" in self.unreadable:
            raise UnreadableError("the list of nodes")
        return list(self.there.values())

    def start(self, role: RoleSettings, orders: Sequence[NodeOrder], *, within_s: float | None) -> None:
        if len(self.there) + len(orders) > self.room:
            raise NoNodeRoomError("no room")
        for order in orders:
            self.known.add(order.name)
            self.asked.append(f"start {order.name}")
            self.there[order.name] = FleetNode(order.name, role.role, NodePhase.SERVING)
            self.managers[order.name] = ManagerSeen(connected=True, leaving=False)

    def stop(self, name: str, grace_s: float) -> None:
        self.asked.append(f"stop {name}")
        del self.there[name]

    def want(self, nodes: Mapping[str, int], roles: Mapping[str, RoleSettings]) -> None:
        self.asked.append(f"want {nodes['noop']}")

    def close(self) -> None:
        self.asked.append("close")

    async def look(self) -> SchedulerSeen:
        if "scheduler" in self.unreadable:
            raise UnreadableError("the scheduler")
        return SchedulerSeen(dict(self.managers), frozenset(), {"noop": self.wanted})

    async def drain(self, manager_id: str, deadline_s: float | None) -> None:
        self.asked.append(f"drain {manager_id} {deadline_s if deadline_s is None else round(deadline_s)}")
        if manager_id in self.busy:
            leaves_by = None if deadline_s is None else time.time() + deadline_s
            self.managers[manager_id] = ManagerSeen(connected=True, leaving=True, leaves_by=leaves_by)
            return
        del self.managers[manager_id]
        if not self.end_slowly:
            self.there[manager_id] = FleetNode(manager_id, "noop", NodePhase.ENDED)

    async def more_looks(self, count: int = 3) -> None:
        goal = self.looks + count
        await until(lambda: self.looks >= goal)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "LOOK_S", 0.01)


def keeper_of(world: ScriptedWorld, data_dir: Path, shown: list[str] | None = None) -> FleetKeeper:
    def order(role: RoleSettings, name: str) -> NodeOrder:
        return NodeOrder(name=name, role=role.role, cores=1, arguments=(), log_path=data_dir / name)

    def retain(names: Collection[str]) -> None:
        if "tokens" in world.unreadable:
            raise UnreadableError("the file of tokens")
        world.known &= set(names)

    told = shown if shown is not None else []
    files = FleetFiles(data_dir)
    return FleetKeeper(FLEET, world, world, files, order=order, retain=retain, drain_s=0.0, show=told.append)


@asynccontextmanager
async def keeping_a_fleet(
    world: ScriptedWorld, data_dir: Path, shown: list[str] | None = None
) -> AsyncIterator[FleetKeeper]:
    """Runs a keeper until the end of the block."""
    keeper = keeper_of(world, data_dir, shown)
    await keeper.start()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeper.run)
        yield keeper
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("unreadable", ["nodes", "scheduler", "tokens"])
async def test_an_unreadable_list_is_not_an_empty_one(tmp_path: Path, unreadable: str) -> None:
    world, shown = ScriptedWorld(), list[str]()
    async with keeping_a_fleet(world, tmp_path, shown):
        before = list(world.asked)
        await world.more_looks()
        told = json.loads((tmp_path / "fleet/state.json").read_text())
        world.unreadable.add(unreadable)
        # A look that has begun may have read the list before.
        await until(lambda: any("not as it is wanted" in each for each in shown))
        world.wanted = RoleWanted(9, {}, {"cpu": 9})
        await world.more_looks()
        assert world.asked == before, "nothing is started, drained or stopped on a failed look"
        failed = json.loads((tmp_path / "fleet/state.json").read_text())
        assert (failed["nodes"], bool(failed["problem"])) == (told["nodes"], True)
        world.unreadable.clear()
        await until(lambda: len(world.there) == 3)


async def test_unreadable_orders_leave_the_former_ones(tmp_path: Path) -> None:
    world, files = ScriptedWorld(), FleetFiles(tmp_path)
    async with keeping_a_fleet(world, tmp_path):
        files.ask(Orders({"noop": 2}))
        await until(lambda: len(world.there) == 2)
        (tmp_path / "fleet/orders.json").write_text("{")
        await world.more_looks()
        assert len(world.there) == 2
        files.ask(Orders())
        await until(lambda: len(world.there) == 1)
    assert "drain noop-2 None" in world.asked


async def test_down_drains_all_and_ends(tmp_path: Path) -> None:
    world = ScriptedWorld()
    keeper = keeper_of(world, tmp_path)
    await keeper.start()
    FleetFiles(tmp_path).ask(Orders(down_within_s=7.0))
    with anyio.fail_after(60):
        await keeper.run()
        await keeper.close()
    assert world.asked == ["want 1", "start noop-1", "drain noop-1 7", "want 0", "stop noop-1", "close"]
    assert FleetFiles(tmp_path).note() is None


async def test_too_little_room_is_told_at_the_start_and_waited_for_later(tmp_path: Path) -> None:
    world = ScriptedWorld()
    world.room = 0
    with pytest.raises(NoNodeRoomError):
        await keeper_of(world, tmp_path).start()
    world.room = 1
    async with keeping_a_fleet(world, tmp_path):
        world.wanted = RoleWanted(9, {}, {"cpu": 9})
        await world.more_looks()
        assert len(world.there) == 1
        world.room = 3
        await until(lambda: len(world.there) == 3)


@pytest.mark.parametrize("leaves_in", [None, 40.0])
async def test_a_scheduler_that_was_started_again_is_told_of_drains(tmp_path: Path, leaves_in: float | None) -> None:
    world, files = ScriptedWorld(), FleetFiles(tmp_path)
    async with keeping_a_fleet(world, tmp_path):
        files.ask(Orders({"noop": 3}))
        await until(lambda: len(world.there) == 3)
        world.busy = {"noop-1"}
        leaves_by = None if leaves_in is None else time.time() + leaves_in
        world.managers["noop-1"] = ManagerSeen(connected=True, leaving=True, leaves_by=leaves_by)
        files.ask(Orders({"noop": 2}))
        await world.more_looks()
        before = list(world.asked)
        forgotten = {name: ManagerSeen(connected=True, leaving=False, sandboxes=1) for name in world.managers}
        world.managers = {name: each for name, each in forgotten.items() if name == "noop-2"}
        await world.more_looks()
        assert world.asked == before, "it is leaving until it is back, and no other one leaves in its place"
        world.managers = forgotten
        await until(lambda: world.managers["noop-1"].leaving)
        await world.more_looks()
        assert world.asked == [*before, f"drain noop-1 {None if leaves_in is None else 40}"]


async def test_nodes_that_are_gone_are_known_no_longer(tmp_path: Path) -> None:
    world, files = ScriptedWorld(), FleetFiles(tmp_path)
    world.known = {"noop-7"}
    async with keeping_a_fleet(world, tmp_path) as keeper:
        assert world.known == {"noop-1"}, "those of a keeper that was killed are none of ours"
        files.ask(Orders({"noop": 2}))
        await until(lambda: world.known == {"noop-1", "noop-2"})
        files.ask(Orders({"noop": 1}))
        await until(lambda: world.known == {"noop-1"})
    await keeper.close()
    assert world.known == set()


async def test_no_other_node_leaves_while_one_that_has_left_still_ends(tmp_path: Path) -> None:
    world, files = ScriptedWorld(), FleetFiles(tmp_path)
    async with keeping_a_fleet(world, tmp_path):
        files.ask(Orders({"noop": 3}))
        await until(lambda: len(world.there) == 3)
        world.end_slowly = True
        files.ask(Orders({"noop": 1}))
        await until(lambda: len(world.managers) == 1)
        await world.more_looks()
        assert [each for each in world.asked if each.startswith("drain")] == ["drain noop-3 None", "drain noop-2 None"]
