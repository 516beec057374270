"""A planner's fleet follows the core's node by node, and is then as if it were looked at anew."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from callsheet.scheduler.core.state import scheduler_state
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.state.entities import Manager
from callsheet.scheduler.core.state.ledger import Node
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.registration import NodeDescription
from callsheet.scheduler.planner.answers import what_if
from callsheet.scheduler.planner.answers.what_if import ask_in_parts
from callsheet.scheduler.planner.fleet import pools
from callsheet.scheduler.planner.fleet.likeness import Host, hosts_of
from callsheet.scheduler.planner.fleet.placed import PlacedActions
from callsheet.scheduler.planner.fleet.pools import Fleet
from callsheet.scheduler.planner.predictors import Predictors

from tests.support.core_requests import action_request, fixed
from tests.support.core_world import CoreWorld, FakeManager, node, service

SHAPES = {
    "small": (service("suite", [ActionKind.REWARD]), 2),
    "large": (service("suite", [ActionKind.REWARD]), 8),
    "slots": (service("model", [ActionKind.GENERATE], slots=3), 2),
    "shares": (service("suite", [ActionKind.REWARD], shared={"cpu": 4}), 4),
}


def world_of(count: int) -> tuple[CoreWorld, dict[str, FakeManager]]:
    world = CoreWorld(checked=False)
    return world, {f"m{number}": joined(world, number, "small") for number in range(count)}


def joined(world: CoreWorld, number: int, shape: str) -> FakeManager:
    offered, cores = SHAPES[shape]
    return world.manager(f"m{number}", offered, on=node(f"n{number}", cores))


def look(fleet: Fleet, world: CoreWorld) -> None:
    fleet.refresh(world.state, PlacedActions(), lambda _: 1.0)


def seen_by(fleet: Fleet) -> Counter[Any]:
    """What a fleet knows of each node, whatever the order of its pools and nodes."""
    found: Counter[Any] = Counter()
    for pool in fleet.pools:
        for index, each in enumerate(pool.nodes):
            managers = tuple(manager.manager_id for manager in pool.managers[index])
            rows = [getattr(pool, name)[index] for name in pools._BY_NODE]
            found[each.node_id, pool.hosts, pool.columns, managers, tuple(np.hstack(rows).tolist())] += 1
            assert [service.description.name for service in pool.services[index]] == [
                host.service for host in pool.hosts
            ]
        assert {len(getattr(pool, name)) for name in pools._BY_NODE} == {len(pool.nodes)}
        assert (
            pool.capacity.tolist()
            == [units // len(pool.nodes) for units in fleet.row_capacity][pool.first_row :][: len(pool.columns)]
        )
    return found


def change(world: CoreWorld, managers: dict[str, FakeManager], draw: random.Random) -> None:
    """Something happens to some manager, or runs there."""
    name = f"m{draw.randrange(12)}"
    manager = managers.get(name)
    if manager is None or name not in world.state.managers:
        managers[name] = joined(world, int(name[1:]), draw.choice(list(SHAPES)))
        return
    match draw.randrange(6):
        case 0:
            world.drain(name)
        case 1:
            manager.disconnect()
        case 2:
            manager.disconnect()
            if name in world.state.managers:
                world.state.managers[name].last_seen = -1e9
                world.state.timers.set(("manager", name), world.now)
                world.handle(events.TimerFired())
        case 3:
            manager.join()
        case 4:
            world.handle(events.ManagerDraining(name, manager.stream))
        case _:
            action = f"a{draw.getrandbits(60):x}"
            world.submit(action_request(action, ActionKind.REWARD, demand=fixed(cpu=1), wait=True))
            world.propose(action, name, cpu=1)


@pytest.mark.parametrize("seed", range(12))
def test_a_fleet_that_follows_knows_what_one_does_that_looks_anew(seed: int) -> None:
    draw = random.Random(seed)
    world, managers = world_of(3)
    world.job()
    follows = Fleet()
    for _ in range(60):
        for _ in range(draw.randrange(1, 4)):
            change(world, managers, draw)
        look(follows, world)
        anew = Fleet(watches=False)
        for _ in anew.look_once(world.state, PlacedActions(), lambda _: 1.0):
            pass
        assert seen_by(follows) == seen_by(anew)


def test_nodes_that_nothing_happened_to_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = world_of(50)
    fleet = Fleet()
    look(fleet, world)
    seen = list[object]()

    def noted(managers: tuple[Manager, ...]) -> tuple[Host, ...]:
        seen.append(managers)
        return hosts_of(managers)

    monkeypatch.setattr(pools, "hosts_of", noted)
    joined(world, 50, "small")
    look(fleet, world)
    assert len(seen) == 1
    assert sum(len(pool.nodes) for pool in fleet.pools) == 51


def test_changes_that_nobody_remembers_are_looked_for_on_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    world, managers = world_of(5)
    fleet = Fleet()
    look(fleet, world)
    for _ in range(scheduler_state.MOST_CHANGED_NODES // 2 + 1):
        managers["m1"].disconnect()
        managers["m1"].join(heartbeat=False)
    look(fleet, world)
    assert {each.node_id for pool in fleet.pools for each in pool.nodes} == {"n0", "n2", "n3", "n4"}


def test_more_nodes_are_asked_about_without_making_them(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = world_of(3)
    world.job()
    world.submit(*(action_request(f"a{number}", ActionKind.REWARD, demand=fixed(cpu=1)) for number in range(30)))
    made = list[NodeDescription]()

    def noted(description: NodeDescription) -> Node:
        made.append(description)
        return Node(description)

    monkeypatch.setattr(what_if, "Node", noted)
    found = at_once(ask_in_parts(world.state, "n1", 10_000, world.now, Predictors())).answer()
    assert len(made) == 1
    assert (found.before.waiting.start_now, found.after.waiting.start_now) == (6, 30)


def test_a_question_takes_no_news_from_the_planner() -> None:
    world, _ = world_of(3)
    fleet = Fleet()
    look(fleet, world)
    before = world.state.nodes["n0"].changed
    at_once(ask_in_parts(world.state, "n1", 7, world.now, Predictors()))
    assert world.state.nodes["n0"].changed is before


@pytest.mark.parametrize(("mine", "others"), [(3, 3), (3, 1), (1, 3), (3, 0)])
def test_another_core_is_looked_at_anew(mine: int, others: int) -> None:
    fleet, (world, _), (other, _) = Fleet(), world_of(mine), world_of(others)
    look(fleet, world)
    look(fleet, other)
    assert [each for pool in fleet.pools for each in pool.nodes] == list(other.state.nodes.values())
