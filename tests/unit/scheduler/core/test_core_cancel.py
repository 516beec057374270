"""Cancels: of what waits, of what runs, and of what does not answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKind, ActionState

from tests.support.core_requests import LONG, action_request, key_of
from tests.support.core_world import SETTINGS, world_with_call, world_with_sandbox, world_with_trajectory


def test_a_queued_action_is_cancelled_at_once() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("a"))
    world.cancel("a", "enough")
    assert world.cancellation("a").reason == "enough"
    world.plan()
    assert not manager.has("a")


def test_an_action_in_backoff_is_cancelled_at_once() -> None:
    world, manager, _ = world_with_call()
    manager.fail("a")
    world.cancel("a")
    assert world.cancellation("a").reason == "cancelled by its client"
    world.wait(10.0)
    assert len(manager.stream.all(commands.Dispatch)) == 1


@pytest.mark.parametrize("looks_at_s", [1.0, 4.0, 1000.0])
def test_a_manager_that_ignores_a_cancel_has_the_grace_and_no_more(looks_at_s: float) -> None:
    """Whenever the scheduler looks at the action's own deadline meanwhile."""
    world, manager = world_with_trajectory()
    world.submit(
        action_request("a", timeouts=replace(LONG, schedule_to_start=looks_at_s, start_to_close=1000.0)), plan=True
    )
    manager.start("a")
    world.cancel("a", "enough")
    manager.live(SETTINGS.cancel_grace - 1.0)
    assert world.state_of("a") is ActionState.RUNNING
    manager.live(2.0)
    assert world.cancellation("a").reason == "enough"


def test_an_action_that_ends_well_before_its_cancel_arrives_has_succeeded() -> None:
    world, manager, _ = world_with_call()
    world.cancel("a")
    manager.end("a")
    assert world.state_of("a") is ActionState.SUCCEEDED


def test_an_action_that_fails_on_its_cancel_is_cancelled_and_not_tried_again() -> None:
    world, manager, _ = world_with_call()
    world.cancel("a", "enough")
    manager.fail("a")
    assert world.cancellation("a").reason == "enough"


@pytest.mark.parametrize("kind", [ActionKind.ENV_STEP, ActionKind.GENERATE])
def test_an_attempt_that_does_not_stop_is_left_behind_and_keeps_its_units(kind: ActionKind) -> None:
    world, manager = world_with_sandbox()
    world.submit(action_request("a", kind, "t"))
    world.step("behind", plan=True)
    manager.start("a")
    free = dict(manager.free)
    world.cancel("a", "enough")
    world.wait(4.0)
    assert world.state_of("a") is ActionState.RUNNING
    manager.heartbeat()
    world.wait(2.0)
    assert world.cancellation("a").reason == "enough"
    assert manager.free["cpu"] == free["cpu"]
    if kind is ActionKind.ENV_STEP:
        assert manager.stream.last(commands.ReleaseSandbox).sandbox.sandbox_id == "reset#1"
        assert world.failure("behind").reason == "state_lost"
    grant = manager.end("a")
    assert manager.stream.last(commands.AcknowledgeEnd).token == grant.token
    assert world.cancellation("a").reason == "enough"


def test_a_reset_that_does_not_stop_and_ends_late_has_its_sandbox_destroyed() -> None:
    world, manager = world_with_trajectory()
    world.reset("reset", plan=True)
    manager.start("reset")
    world.cancel("reset")
    manager.heartbeat()
    world.wait(6.0)
    assert world.state_of("reset") is ActionState.CANCELLED
    manager.end("reset")
    assert manager.stream.last(commands.ReleaseSandbox).sandbox.sandbox_id == "reset#1"
    assert manager.free == {"cpu": 4, "memory": 4096}


def test_the_next_reset_does_not_wait_for_an_attempt_that_does_not_stop() -> None:
    world, manager = world_with_sandbox()
    world.step("stuck")
    world.reset("again", plan=True)
    manager.start("stuck")
    world.cancel("stuck")
    manager.heartbeat()
    world.wait(6.0)
    manager.run("again")
    world.step("step", plan=True)
    assert manager.grant("step").sandbox_id == "again#1"
    manager.end("stuck")
    assert world.state_of("stuck") is ActionState.CANCELLED


def test_a_cancelled_action_of_a_lost_manager_is_cancelled_and_not_tried_again() -> None:
    world, _, _ = world_with_call()
    world.wait(9.0)
    world.cancel("a", "enough")
    world.wait(2.0)
    assert "m" not in world.state.managers
    assert world.cancellation("a").reason == "enough"


def test_a_cancel_that_its_manager_may_have_missed_is_repeated_when_it_is_back() -> None:
    world, manager, grant = world_with_call()
    manager.disconnect()
    world.cancel("a", "enough")
    manager.join([manager.running(grant)])
    assert [each.token for each in manager.stream.all(commands.CancelAttempt)] == [grant.token]
    manager.end(grant, events.AttemptCancelled())
    assert world.outcomes[key_of("a")].state is ActionState.CANCELLED


def test_cancelling_the_first_in_line_lets_the_next_run() -> None:
    world, manager = world_with_sandbox()
    world.step("one")
    world.step("two")
    world.cancel("one")
    world.plan()
    assert manager.has("two")


def test_cancelling_in_the_middle_of_the_line_keeps_the_order_of_the_rest() -> None:
    world, manager = world_with_sandbox()
    for name in ("one", "two", "three"):
        world.step(name)
    world.plan()
    world.cancel("two")
    manager.run("one")
    world.plan()
    assert manager.has("three")
