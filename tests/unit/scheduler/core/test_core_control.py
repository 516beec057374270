"""What plans do to running attempts, and draining."""

from __future__ import annotations

from callsheet.scheduler.core.state.entities import MAX_STORY
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.plan import Assignment, GrantPrediction, Plan

from tests.support.core_requests import action_request, elastic, fixed, kept, key_of
from tests.support.core_world import CoreWorld, FakeManager, world_with_manager, world_with_trajectory


def running(least: int = 1, most: int = 4, *, cores: int = 4, given: int = 2) -> tuple[CoreWorld, FakeManager]:
    world, manager = world_with_manager(cores=cores)
    world.submit(action_request("a", ActionKind.REWARD, demand=elastic(least, most)))
    world.propose("a", "m", cpu=given)
    manager.start("a")
    return world, manager


def test_a_wider_grant_gets_more_cores_and_keeps_those_it_has() -> None:
    world, manager = running()
    before = manager.grant("a").cores
    world.resize("a", 4)
    resized = manager.stream.last(commands.ResizeAttempt)
    assert (resized.resources, resized.cores[:2], sorted(resized.cores)) == ({"cpu": 4}, before, [0, 1, 2, 3])
    assert manager.free["cpu"] == 0
    manager.end("a")
    assert manager.free["cpu"] == 4


def test_a_narrower_grant_gives_cores_back_at_once() -> None:
    world, manager = running(given=4)
    world.resize("a", 1)
    resized = manager.stream.last(commands.ResizeAttempt)
    assert (resized.resources, len(resized.cores)) == ({"cpu": 1}, 1)
    assert manager.free["cpu"] == 3
    world.submit(action_request("b", demand=fixed(cpu=3)), plan=True)
    assert set(manager.grant("b").cores).isdisjoint(resized.cores)


def test_a_resize_names_lent_cores_too() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("reset", ActionKind.ENV_RESET, "t", demand=kept(cpu=1)), plan=True)
    held = manager.run("reset").cores
    world.submit(action_request("a", ActionKind.ENV_STEP, "t", demand=elastic(1, 3)))
    world.propose("a", "m", cpu=1)
    manager.start("a")
    world.resize("a", 2)
    cores = manager.stream.last(commands.ResizeAttempt).cores
    assert (cores[:1], len(set(cores))) == (held, 3)


def test_what_a_broken_stream_swallowed_is_said_again() -> None:
    world, manager = running()
    grant = manager.grant("a")
    manager.disconnect()
    manager.join([manager.running(grant)])
    assert not manager.stream.all(commands.ResizeAttempt)
    world.resize("a", 3)
    manager.disconnect()
    manager.join([manager.running(grant)])
    assert manager.stream.last(commands.ResizeAttempt).resources == {"cpu": 3}
    assert type(manager.stream.sent[0]) is commands.AcceptManager


def test_predictions_reach_the_manager() -> None:
    world, manager = world_with_manager("m")
    world.submit(action_request("a", demand=elastic(1, 4)))
    prediction = GrantPrediction(execution_s=3.5, use=1.2)
    world.handle(events.PlanReady(Plan((Assignment(key_of("a"), "m", {"cpu": 2}, prediction),))))
    assert manager.grant("a").prediction is prediction
    attempt = world.live("a").attempt
    assert attempt is not None
    assert attempt.prediction is prediction


def test_a_draining_manager_that_leaves_early_has_its_lease() -> None:
    world, manager = running()
    world.handle(events.ManagerDraining("m", manager.stream))
    manager.disconnect()
    assert "m" in world.state.managers
    manager.join([manager.running(manager.grant("a"))])
    world.submit(action_request("b"), plan=True)
    assert manager.has("b"), "it registered again, so it takes attempts again"


def test_a_manager_that_was_told_to_drain_is_told_again_when_it_comes_back() -> None:
    world, manager = running()
    manager.disconnect()
    world.drain("m", deadline=0.0)
    running_still = manager.running(manager.grant("a"))
    manager.join([running_still])
    assert manager.stream.all(commands.DrainManager)
    world.submit(action_request("b"), plan=True)
    assert not manager.has("b")
    manager.disconnect()
    stream = manager.join([running_still])
    assert stream.all(commands.DrainManager), "the first one may have been lost with its stream"


def test_a_plan_that_does_not_fit_is_refused_without_effect() -> None:
    world = CoreWorld()
    manager = world.manager("m", cores=2)
    world.manager("away").disconnect()
    world.job()
    world.submit(action_request("a", demand=elastic(1, 4)))
    for units in ({"cpu": 0}, {"cpu": 3}, {"cpu": 5}, {"cpu": -1}, {"gpu": 1}, {"cpu": 1, "gpu": 1}, {}):
        assert not world.propose("a", "m", **units)
    assert not world.propose("a", "nobody", cpu=1)
    assert not world.propose("a", "away", cpu=1)
    assert not world.propose("b", "m", cpu=1)
    assert manager.free["cpu"] == 2
    assert world.propose("a", "m", cpu=2)
    assert not world.propose("a", "m", cpu=1), "it has been dispatched"


def test_the_story_of_an_action_is_bounded() -> None:
    world, _ = running()
    for turn in range(2 * MAX_STORY):
        world.resize("a", 3 + turn % 2)
    story = world.story(key_of("a"))
    assert len(story) == MAX_STORY
    assert (story[0][1], story[-1][1]) == ("submitted", "resized to 4 cores")
