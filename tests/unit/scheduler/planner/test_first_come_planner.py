"""The first planner: order, best fit, backfilling, and the hold for an older wide action."""

from __future__ import annotations

from callsheet.scheduler.core.words.model import ActionKind, Demand, PriorityClass, ResourceDemand, SpeedUp
from callsheet.scheduler.planner.first_come import FirstComePlanner

from tests.support.core_requests import action_request, elastic, fixed, job_request
from tests.support.core_world import CoreWorld, FakeManager, world_with_job


def world_with(cores: int = 4, **planner: float) -> tuple[CoreWorld, FakeManager]:
    world = world_with_job(planner=FirstComePlanner(hold_after=planner.get("hold_after", 5.0)))
    manager = world.manager(cores=cores)
    return world, manager


def order(world: CoreWorld) -> list[str]:
    """Actions as the planner would dispatch them."""
    return [assignment.key.action_id for assignment in world.planner.plan(world.state, world.now).assignments]


def test_first_come_first_served_over_all_classes() -> None:
    world, _ = world_with()
    kinds = [ActionKind.TOOL_CALL, ActionKind.GENERATE, ActionKind.REWARD, ActionKind.GENERATE, ActionKind.TOOL_CALL]
    world.submit(*(action_request(f"a{index}", kind) for index, kind in enumerate(kinds)))
    assert order(world) == ["a0", "a1", "a2", "a3", "a4"]


def test_evaluation_goes_before_training_and_batch_last() -> None:
    world, _ = world_with()
    for priority in (PriorityClass.BATCH, PriorityClass.TRAIN, PriorityClass.EVAL):
        world.job(job_request(priority.name, priority=priority))
        world.submit(action_request("a", job_id=priority.name))
    plan = world.planner.plan(world.state, world.now)
    assert [assignment.key.job_id for assignment in plan.assignments] == ["EVAL", "TRAIN", "BATCH"]


def test_planning_changes_nothing() -> None:
    world, manager = world_with()
    world.submit(action_request("a", demand=fixed(cpu=2)))
    assert world.planner.plan(world.state, world.now) == world.planner.plan(world.state, world.now)
    assert manager.free["cpu"] == 4


def test_an_action_goes_where_it_leaves_the_least_behind() -> None:
    world = CoreWorld()
    world.manager("large", cores=16)
    world.manager("small", cores=4)
    world.job()
    world.submit(action_request("narrow", demand=fixed(cpu=2)), action_request("wide", demand=fixed(cpu=8)))
    plan = world.plan()
    assert {each.key.action_id: each.manager_id for each in plan.assignments} == {"narrow": "small", "wide": "large"}


def test_actions_without_units_go_to_the_least_busy_manager() -> None:
    world = CoreWorld()
    for name in ("a", "b"):
        world.manager(name)
    world.job()
    world.submit(*(action_request(f"g{index}", ActionKind.GENERATE) for index in range(6)))
    assert sorted(each.manager_id for each in world.plan().assignments) == ["a"] * 3 + ["b"] * 3


def test_a_hold_keeps_what_is_needed_on_one_node_only() -> None:
    world = CoreWorld()
    near, far = world.manager("near", cores=4), world.manager("far", cores=4)
    world.job()
    for name, manager, cores in (("x", near, 1), ("y", far, 3)):
        world.submit(action_request(name, demand=fixed(cpu=cores)))
        world.propose(name, manager.manager_id, cpu=cores)
    world.submit(action_request("wide", demand=fixed(cpu=4)))
    for _ in range(3):
        near.live(2.0)
        far.heartbeat()
    world.submit(
        action_request("narrow", demand=fixed(cpu=1)), action_request("unitless", ActionKind.GENERATE), plan=True
    )
    assert far.has("narrow"), "near lacks less for the wide action, so near is held"
    assert near.has("unitless") or far.has("unitless")
    near.run("x")
    world.plan()
    assert near.has("wide")


def test_a_hold_lets_pinned_actions_through() -> None:
    world, manager = world_with(cores=2)
    world.trajectory("t")
    world.reset("reset", plan=True)
    manager.run("reset")
    world.submit(action_request("busy", demand=fixed(cpu=1)), plan=True)
    world.submit(action_request("wide", demand=fixed(cpu=2)))
    manager.live(6.0)
    world.step("step", plan=True)
    assert manager.has("step")


def test_what_is_held_widens_nobody() -> None:
    world, manager = world_with(cores=4)
    world.submit(action_request("busy", demand=fixed(cpu=1)), plan=True)
    world.submit(action_request("wide", demand=fixed(cpu=4)))
    manager.live(6.0)
    world.submit(action_request("elastic", demand=Demand((ResourceDemand("cpu", 0, 3, SpeedUp()),))), plan=True)
    assert manager.grant("elastic").resources == {}


def test_an_elastic_action_of_zero_or_more_starts_with_nothing_where_nothing_is_free() -> None:
    world, manager = world_with(cores=1)
    world.submit(action_request("busy", demand=fixed(cpu=1)), plan=True)
    world.submit(
        action_request("a", demand=elastic(0, 2)), action_request("b", demand=elastic(0, 2, resource="gpu")), plan=True
    )
    assert (manager.grant("a").resources, manager.grant("b").resources) == ({}, {})


def test_classes_without_members_are_dropped() -> None:
    world, _ = world_with()
    world.submit(action_request("a"))
    world.cancel("a")
    world.plan()
    assert not world.state.ready.classes
