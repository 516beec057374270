"""Set-ups that are kept somewhere: how they are named, what managers say of them, and what the planner makes of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from callsheet.scheduler.core.state.ledger import Node
from callsheet.scheduler.core.state.set_up_index import SetUpIndex
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.registration import NodeDescription, ServiceDescription, ServiceState
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.fleet.placement import MOST_BEGUN, BegunSetUps
from callsheet.scheduler.planner.fleet.pools import MOST_SET_UPS
from callsheet.scheduler.planner.solvers.cp_sat import Budget
from callsheet.v1 import action_pb2
from callsheet.v1.set_ups import set_up_name
from google.protobuf import text_format

from tests.support.core_requests import action_request, kept
from tests.support.core_world import CoreWorld, FakeManager, service, world_with_job

SANDBOXES = service("sandbox", [ActionKind.ENV_RESET, ActionKind.ENV_STEP])


def make_world() -> CoreWorld:
    return world_with_job(planner=ElasticPlanner(ElasticSettings(budget=Budget(seconds=0.5, deterministic=True))))


def tell(world: CoreWorld, manager: FakeManager, **took_s: float) -> None:
    state = ServiceState("sandbox", 0.0, 0, took_s)
    world.handle(events.ManagerHeartbeat(manager.manager_id, manager.stream, (state,)))


def reset(world: CoreWorld, set_up: str, *names: str, service_name: str = "") -> None:
    """Opens trajectories whose sandboxes begin with a set-up."""
    world.trajectories(*names)
    demand = kept(memory=256, start_cpu=1)
    for name in names:
        request = action_request(name, ActionKind.ENV_RESET, name, demand=demand, service=service_name)
        world.submit(replace(request, set_up=set_up))


def numbered(name: str, count: int) -> list[str]:
    return [f"{name}{index}" for index in range(count)]


def plan_all(world: CoreWorld) -> Counter[str]:
    """Plans until no round asks for another one; returns how many assignments each manager got."""
    homes: Counter[str] = Counter()
    while True:
        plan = world.plan()
        homes.update(each.manager_id for each in plan.assignments)
        if not plan.truncated:
            return homes


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("disk_mib: 64 max_processes: 9 guaranteed_memory: true", True),
        ('files { path: "a" mode: 493 }', False),
        ('network: "example.org:443"', False),
        ('files { path: "b" }', False),
        ('set_up { shell: "make more" }', False),
    ],
)
def test_the_name_follows_from_what_a_sandbox_begins_with(change: str, same: bool) -> None:
    asked = text_format.Parse('image: "i" files { path: "a" } set_up { shell: "make" }', action_pb2.EnvResetInput())
    other = action_pb2.EnvResetInput()
    other.CopyFrom(asked)
    text_format.Merge(change, other)
    assert (set_up_name(other) == set_up_name(asked)) is same


def test_what_is_never_kept_has_no_name() -> None:
    files = [action_pb2.SandboxFile(path="a")]
    assert set_up_name(action_pb2.EnvResetInput(files=files))
    assert not set_up_name(action_pb2.EnvResetInput(files=files, repeat_set_up=True))
    assert not set_up_name(action_pb2.EnvResetInput(image="i"))


def test_a_set_up_is_known_for_as_long_as_anybody_keeps_it() -> None:
    kept_set_ups = SetUpIndex()
    kept_set_ups.change({}, {"x": 4.0, "y": 1.0})
    kept_set_ups.change({}, {"x": 6.0})
    assert kept_set_ups.took_s("x") == 6.0
    kept_set_ups.change({"x": 4.0, "y": 1.0}, {})
    assert [name in kept_set_ups for name in "xy"] == [True, False]
    kept_set_ups.change({"x": 6.0}, {})
    assert ("x" in kept_set_ups, kept_set_ups.took_s("x")) == (False, 0.0)


def test_the_scheduler_forgets_what_lost_managers_kept() -> None:
    world = make_world()
    first, second = world.manager("a", SANDBOXES), world.manager("b", replace(SANDBOXES, kept_set_ups={"x": 5.0}))
    tell(world, first, x=5.0, y=2.0)
    first.disconnect()
    world.wait(1000.0)
    assert "y" not in world.state.kept_set_ups
    assert "x" not in world.state.kept_set_ups, "the other one was silent as well"
    second.join()
    assert "x" in world.state.kept_set_ups
    tell(world, second)
    assert "x" not in world.state.kept_set_ups


def test_one_that_is_kept_nowhere_or_everywhere_changes_nothing() -> None:
    world = make_world()
    managers = {name: world.manager(name, SANDBOXES, cores=8, memory=10_000) for name in ("a", "b", "c")}
    for manager in managers.values():
        tell(world, manager, x=30.0)
    for place, set_up in (("nowhere", "z"), ("everywhere", "x")):
        reset(world, set_up, *numbered(place, 3))
        assert plan_all(world) == {"a": 1, "b": 1, "c": 1}, place


def test_resets_follow_the_last_one_with_their_set_up_where_that_crowds_no_node() -> None:
    world = make_world()
    large = {name: world.manager(name, SANDBOXES, cores=256, memory=100_000) for name in ("a", "b", "c")}
    for name in "xyz":
        reset(world, name, *numbered(name, 6))
    assert plan_all(world) == {"a": 6, "b": 6, "c": 6}
    for name in "xyz":
        reset(world, name, f"{name}6")
    plan_all(world)
    for name in "xyz":
        home = next(each for each in large.values() if each.has(f"{name}0"))
        assert all(home.has(each) for each in numbered(name, 7))


def test_of_many_set_ups_those_that_began_last_are_remembered() -> None:
    begun = BegunSetUps()
    first, second = (Node(NodeDescription(name, {}, ())) for name in ("a", "b"))
    for index in range(MOST_BEGUN):
        begun.begin(str(index), first)
    begun.begin("0", second)
    begun.begin("one more", first)
    begun.begin("", first)
    assert [begun.node_of(name) for name in ("0", "1", "2", "")] == [second, None, first, None]


def test_on_small_nodes_siblings_with_one_set_up_are_spread() -> None:
    world = make_world()
    for name in ("a", "b", "c"):
        world.manager(name, SANDBOXES, cores=4, memory=10_000)
    reset(world, "x", *numbered("x", 6))
    assert plan_all(world) == {"a": 2, "b": 2, "c": 2}


def test_a_sandbox_does_not_begin_again_where_it_failed_for_the_sake_of_a_set_up() -> None:
    world = make_world()
    first, second = (world.manager(name, SANDBOXES, cores=256, memory=10_000) for name in ("a", "b"))
    reset(world, "x", "x0", "x1")
    world.plan()
    world.propose("x0", "b", cpu=1, memory=256)
    world.propose("x1", "a", cpu=1, memory=256)
    second.fail("x0")
    first.fail("x1")
    world.wait(5.0)
    assert (first.has("x0"), second.has("x1")) == (True, True)


def test_a_node_whose_cores_are_spoken_for_is_not_crowded_for_the_sake_of_a_set_up() -> None:
    world = make_world()
    managers = {name: world.manager(name, SANDBOXES, cores=2, memory=100_000) for name in ("a", "b")}
    tell(world, managers["a"], x=5.0)
    for index in range(12):
        reset(world, "x", f"x{index}")
        for name, count in plan_all(world).items():
            assert count == 1
            managers[name].run(f"x{index}")
    assert len(world.state.managers["b"].sandboxes) >= 4


def test_with_images_the_set_up_counts_at_the_images_service() -> None:
    world = make_world()
    image = ServiceDescription("sandbox:i", frozenset({ActionKind.ENV_RESET}), 0, {}, setup_s=0.0, instances=64)
    for name in ("a", "b"):
        there = replace(image, kept_set_ups={"x": 20.0} if name == "b" else {})
        world.manager(name, SANDBOXES, there, cores=8, memory=10_000)
    reset(world, "x", *numbered("x", 3), service_name="sandbox:i")
    assert plan_all(world) == {"b": 3}


def test_more_set_ups_than_a_pool_knows_places_of_are_served_all_the_same() -> None:
    world = make_world()
    names = [f"s{index}" for index in range(MOST_SET_UPS + 40)]
    manager = world.manager("a", SANDBOXES, cores=256, memory=1_000_000)
    world.manager("b", SANDBOXES, cores=256, memory=1_000_000)
    tell(world, manager, **dict.fromkeys(names, 30.0))
    for name in names:
        reset(world, name, name)
    assert plan_all(world).total() == len(names)
    reset(world, names[-1], "again")
    assert plan_all(world) == {"a": 1}, "those that were asked for before made room"


def test_only_what_is_kept_somewhere_makes_a_class_of_its_own() -> None:
    world = make_world()
    manager = world.manager("a", SANDBOXES)
    tell(world, manager, x=3.0)
    for index, set_up in enumerate(("x", "x", "y", "z", "")):
        reset(world, set_up, f"r{index}")
    world.plan()
    assert Counter({key.set_up: ready.count for key, ready in world.state.ready.classes.items()}) == {"x": 2, "": 3}
