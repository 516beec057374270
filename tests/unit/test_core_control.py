"""What operators do: pause, resume, resize, drain."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core import commands, events
from callsheet.scheduler.core.entities import MAX_STORY
from callsheet.scheduler.core.model import ActionKind, ActionState
from callsheet.scheduler.core.plan import Assignment, GrantPrediction, Plan
from callsheet.scheduler.core.refusals import RefusalCode, RefusedError

from tests.support.core_requests import action_request, elastic, fixed, kept, key_of
from tests.support.core_world import CoreWorld, FakeManager, Stream, world_with_trajectory


def running(least: int = 1, most: int = 4, *, cores: int = 4, given: int = 2) -> tuple[CoreWorld, FakeManager]:
    world = CoreWorld()
    manager = world.manager(cores=cores)
    world.job()
    world.submit(action_request("a", ActionKind.REWARD, demand=elastic(least, most)))
    world.propose("a", "m", cpu=given)
    manager.start("a")
    return world, manager


def refusal_of_resize(world: CoreWorld, units: int, resource: str = "cpu") -> RefusedError:
    with pytest.raises(RefusedError) as refused:
        world.resize("a", units, resource)
    return refused.value


def test_a_wider_grant_gets_more_cores_and_keeps_those_it_has() -> None:
    world, manager = running()
    before = manager.grant("a").cores
    world.resize("a", 4)
    resized = manager.stream.last(commands.ResizeAttempt)
    assert (resized.resources, resized.cores[:2]) == ({"cpu": 4}, before)
    assert sorted(resized.cores) == [0, 1, 2, 3]
    assert manager.free["cpu"] == 0
    manager.end("a")
    assert manager.free["cpu"] == 4


def test_a_narrower_grant_gives_cores_back_at_once() -> None:
    world, manager = running(given=4)
    world.resize("a", 1)
    resized = manager.stream.last(commands.ResizeAttempt)
    assert (resized.resources, len(resized.cores)) == ({"cpu": 1}, 1)
    assert manager.free["cpu"] == 3
    world.submit(action_request("b", demand=fixed(cpu=3)))
    world.plan()
    assert set(manager.grant("b").cores).isdisjoint(resized.cores)


def test_a_resize_stays_within_the_demand_and_the_node() -> None:
    world, manager = running()
    assert "1 to 4" in refusal_of_resize(world, 5).rule
    assert refusal_of_resize(world, 0).code is RefusalCode.INVALID_ARGUMENT
    assert refusal_of_resize(world, 1, "memory").field == "resource"
    world.submit(action_request("b", demand=fixed(cpu=2)))
    world.plan()
    short = refusal_of_resize(world, 3)
    assert (short.code, short.rule) == (
        RefusalCode.FAILED_PRECONDITION,
        "needs 1 more cores than the node has free (0)",
    )
    assert not manager.stream.all(commands.ResizeAttempt)


def test_a_resize_names_lent_cores_too() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("reset", ActionKind.ENV_RESET, "t", demand=kept(cpu=1)))
    world.plan()
    held = manager.run("reset").cores
    world.submit(action_request("a", ActionKind.ENV_STEP, "t", demand=elastic(1, 3)))
    world.propose("a", "m", cpu=1)
    manager.start("a")
    world.resize("a", 2)
    cores = manager.stream.last(commands.ResizeAttempt).cores
    assert (cores[:1], len(set(cores))) == (held, 3)


def test_only_what_runs_is_resized_or_paused() -> None:
    world = CoreWorld()
    manager = world.manager()
    world.job()
    world.submit(action_request("a", demand=elastic(1, 2)))
    with pytest.raises(RefusedError, match="it is queued") as refused:
        world.resize("a", 2)
    assert refused.value.code is RefusalCode.FAILED_PRECONDITION
    for paused in (True, False):
        with pytest.raises(RefusedError, match="it is queued"):
            world.pause("a", paused=paused)
    world.plan()
    manager.run("a")
    with pytest.raises(RefusedError, match="it is succeeded"):
        world.pause("a")
    with pytest.raises(RefusedError) as unknown:
        world.pause("b")
    assert unknown.value.code is RefusalCode.NOT_FOUND


def test_pause_and_resume_reach_the_manager_and_keep_the_grant() -> None:
    world, manager = running()
    world.pause("a")
    assert world.state_of("a") is ActionState.PAUSED
    assert manager.stream.last(commands.PauseAttempt).paused
    assert manager.free["cpu"] == 2
    with pytest.raises(RefusedError, match="it is paused"):
        world.pause("a")
    manager.live(3.0)
    world.pause("a", paused=False)
    assert not manager.stream.last(commands.PauseAttempt).paused
    assert world.state_of("a") is ActionState.RUNNING
    manager.live(1.0)
    manager.end("a")
    assert world.outcomes[manager.grant("a").request.key].paused_s == pytest.approx(3.0)


def test_a_paused_attempt_can_end_and_be_cancelled() -> None:
    world, manager = running()
    world.pause("a")
    world.cancel("a")
    assert manager.stream.all(commands.CancelAttempt)
    manager.live(6.0)
    assert world.state_of("a") is ActionState.CANCELLED
    manager.end("a", events.AttemptCancelled())
    assert manager.free["cpu"] == 4


def test_an_attempt_on_a_manager_that_is_away_cannot_be_steered() -> None:
    world, manager = running()
    manager.disconnect()
    with pytest.raises(RefusedError, match="on a manager"):
        world.pause("a")
    with pytest.raises(RefusedError, match="on a manager"):
        world.resize("a", 3)


def test_what_a_broken_stream_swallowed_is_said_again() -> None:
    world, manager = running()
    grant = manager.grant("a")
    world.pause("a")
    manager.disconnect()
    manager.join([manager.running(grant)])
    assert manager.stream.last(commands.PauseAttempt).paused
    assert not manager.stream.all(commands.ResizeAttempt)
    manager.live(1.0)
    world.pause("a", paused=False)
    world.resize("a", 3)
    manager.disconnect()
    manager.join([manager.running(grant, paused=True)])
    assert not manager.stream.last(commands.PauseAttempt).paused
    assert manager.stream.last(commands.ResizeAttempt).resources == {"cpu": 3}
    kinds = [type(command) for command in manager.stream.sent]
    assert kinds[0] is commands.AcceptManager


@pytest.mark.parametrize("known", [True, False], ids=["submitted", "submitted_again"])
def test_a_paused_attempt_is_still_paused_after_a_restart_of_the_scheduler(known: bool) -> None:
    world, manager = running()
    grant = manager.grant("a")
    world.pause("a")
    if not known:
        world.journal.actions.clear()
    restarted = world.restart()
    manager.world, manager.stream = restarted, Stream()
    manager.join([manager.running(grant, paused=True)])
    if not known:
        restarted.submit(grant.request)
    assert restarted.state_of("a") is ActionState.PAUSED
    assert not manager.stream.all(commands.PauseAttempt)
    manager.live(1.0)
    restarted.watch("a", "client")
    restarted.pause("a", paused=False)
    assert not manager.stream.last(commands.PauseAttempt).paused
    manager.end(grant)
    assert restarted.outcomes[key_of("a")].paused_s == pytest.approx(1.0)


def test_a_manager_that_paused_what_is_not_to_be_paused_is_told_to_resume() -> None:
    world, manager = running()
    manager.disconnect()
    manager.join([manager.running(manager.grant("a"), paused=True)])
    assert not manager.stream.last(commands.PauseAttempt).paused
    assert world.state_of("a") is ActionState.RUNNING


def test_predictions_reach_the_manager() -> None:
    world = CoreWorld()
    manager = world.manager("m")
    world.job()
    world.submit(action_request("a", demand=elastic(1, 4)))
    prediction = GrantPrediction(execution_s=3.5, use=1.2)
    world.handle(events.PlanReady(Plan((Assignment(key_of("a"), "m", {"cpu": 2}, prediction),))))
    assert manager.grant("a").prediction is prediction
    attempt = world.live("a").attempt
    assert attempt is not None
    assert attempt.prediction is prediction


def test_a_draining_manager_finishes_and_gets_nothing_new() -> None:
    world, manager = running(given=1)
    world.submit(action_request("b"))
    world.drain("m")
    assert manager.stream.all(commands.DrainManager)
    world.plan()
    assert not manager.has("b")
    manager.end("a")
    assert world.state_of("a") is ActionState.SUCCEEDED
    assert "m" in world.state.managers
    manager.disconnect()
    assert "m" not in world.state.managers
    with pytest.raises(RefusedError) as refused:
        world.drain("m")
    assert refused.value.code is RefusalCode.NOT_FOUND


def test_a_draining_manager_that_leaves_early_has_its_lease() -> None:
    world, manager = running()
    world.handle(events.ManagerDraining("m", manager.stream))
    manager.disconnect()
    assert "m" in world.state.managers
    manager.join([manager.running(manager.grant("a"))])
    world.submit(action_request("b"))
    world.plan()
    assert manager.has("b"), "it registered again, so it takes attempts again"


def test_a_manager_that_was_told_to_drain_is_told_again_when_it_comes_back() -> None:
    world, manager = running()
    manager.disconnect()
    world.drain("m")
    manager.join([manager.running(manager.grant("a"))])
    assert manager.stream.all(commands.DrainManager)
    world.submit(action_request("b"))
    world.plan()
    assert not manager.has("b")


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
    for _ in range(MAX_STORY):
        world.pause("a")
        world.pause("a", paused=False)
    story = world.story(key_of("a"))
    assert len(story) == MAX_STORY
    assert (story[0][1], story[-1][1]) == ("submitted", "resumed")
