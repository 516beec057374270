"""Cores of a wide running action go to who would wait for them, and come back."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKind, ActionState
from callsheet.scheduler.core.words.plan import CoreChange, Plan
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.solvers.cp_sat import Budget

from tests.support.core_requests import action_request, elastic, fixed, key_of
from tests.support.core_world import CoreWorld, FakeManager, node, service

SANDBOX_KINDS = [ActionKind.ENV_RESET, ActionKind.ENV_STEP]


@pytest.fixture(params=[0, 1], ids=["first-come", "elastic"])
def world(request: pytest.FixtureRequest) -> CoreWorld:
    planner = (
        FirstComePlanner()
        if request.param == 0
        else ElasticPlanner(ElasticSettings(budget=Budget(seconds=0.5, deterministic=True)))
    )
    return CoreWorld(planner=planner)


def plan_all(world: CoreWorld) -> None:
    while world.plan().truncated:
        pass


def two_sandboxes(world: CoreWorld, cores: int = 4) -> FakeManager:
    manager = world.manager(cores=cores)
    world.job()
    for name in ("wide", "narrow"):
        world.trajectory(name)
        world.reset(f"reset-{name}", name)
        plan_all(world)
        manager.run(f"reset-{name}")
    return manager


def start_wide(world: CoreWorld, manager: FakeManager, least: int = 1, most: int = 4) -> None:
    world.submit(action_request("wide", ActionKind.ENV_STEP, "wide", demand=elastic(least, most)))
    plan_all(world)
    manager.start("wide")


def sizes(manager: FakeManager) -> list[int]:
    """The widths that were sent, in order."""
    return [each.resources["cpu"] for each in manager.stream.all(commands.ResizeAttempt)]


def test_no_more_is_taken_than_its_demand_allows(world: CoreWorld) -> None:
    manager = two_sandboxes(world)
    start_wide(world, manager, least=3)
    world.submit(action_request("two", ActionKind.ENV_STEP, "narrow", demand=fixed(cpu=2)))
    plan_all(world)
    assert sizes(manager) == []
    assert world.state_of("two") is ActionState.QUEUED
    manager.end("wide")
    plan_all(world)
    assert manager.grant("two").resources == {"cpu": 2}


def test_a_reset_takes_a_core_and_a_reward_waits(world: CoreWorld) -> None:
    manager = two_sandboxes(world)
    start_wide(world, manager)
    world.submit(action_request("reward", ActionKind.REWARD, demand=fixed(cpu=1)))
    plan_all(world)
    assert sizes(manager) == []
    world.trajectory("new")
    world.reset("reset-new", "new")
    plan_all(world)
    assert sizes(manager)[0] == 3
    # Whom the freed core goes to is for the planner to say; in the end the reset has one.
    if manager.has("reward"):
        manager.start("reward")
        plan_all(world)
    assert manager.has("reset-new")


def test_a_change_that_does_not_fit_the_state_of_now_is_dropped(world: CoreWorld) -> None:
    manager = two_sandboxes(world)
    start_wide(world, manager, least=2, most=3)
    for key, cores in (("wide", 1), ("wide", 5), ("wide", 3), ("nobody", 2)):
        world.handle(events.PlanReady(Plan(core_changes=(CoreChange(key_of(key), cores),))))
    assert sizes(manager) == []
    manager.end("wide")
    world.handle(events.PlanReady(Plan(core_changes=(CoreChange(key_of("wide"), 2),))))
    assert sizes(manager) == []


def test_nothing_is_given_back_to_an_attempt_whose_manager_is_away(world: CoreWorld) -> None:
    manager = two_sandboxes(world)
    start_wide(world, manager)
    world.step("short", "narrow")
    plan_all(world)
    manager.run("short")
    manager.disconnect()
    plan = world.plan()
    assert plan.empty
    assert not plan.truncated, "the core refuses such a change, so the next round would propose it again"


def test_nothing_is_taken_of_an_attempt_whose_manager_is_away(world: CoreWorld) -> None:
    shared = node("shared", 4)
    sandboxes = world.manager("sandboxes", service("sandbox", SANDBOX_KINDS), on=shared)
    tests = world.manager("tests", service("tests", [ActionKind.REWARD]), on=shared)
    world.job()
    world.trajectory("t")
    world.reset("reset")
    plan_all(world)
    sandboxes.run("reset")
    world.submit(action_request("wide", ActionKind.REWARD, demand=elastic(1, 4)))
    plan_all(world)
    tests.start("wide")
    tests.disconnect()
    world.step("short")
    plan = world.plan()
    assert plan.empty
    assert not plan.truncated
    tests.join([tests.running(tests.grant("wide"))])
    plan_all(world)
    assert sandboxes.has("short")
