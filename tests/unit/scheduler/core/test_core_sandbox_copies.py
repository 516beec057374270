"""Rewards in a copy of their trajectory's sandbox: settled by the submit, in the line, and repeatable."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKind, ActionRequest, ActionState, FailureKind, SandboxCopy
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.core.words.registration import SandboxRef

from tests.support.core_requests import action_request
from tests.support.core_world import Stream, service, world_with_manager, world_with_sandbox, world_with_trajectory

SANDBOX = SandboxRef("job", "t", "reset#1")


def reward(name: str = "score", copy: SandboxCopy = SandboxCopy.IF_ANY) -> ActionRequest:
    return action_request(name, ActionKind.REWARD, "t", copy=copy, service="work")


def test_a_copy_is_ordered_and_placed_like_what_runs_in_the_sandbox() -> None:
    world, manager = world_with_sandbox()
    world.manager("other", cores=32)
    world.step("before")
    world.submit(reward())
    world.step("after", plan=True)
    assert (manager.has("before"), manager.has("score")) == (True, False)
    assert not world.propose("score", "other", cpu=1)
    manager.run("before")
    world.plan()
    assert manager.grant("score").sandbox_id == "reset#1"
    assert not manager.has("after")
    manager.run("score")
    world.plan()
    assert manager.has("after")


@pytest.mark.parametrize("copy", [SandboxCopy.IF_ANY, SandboxCopy.ALWAYS])
def test_a_reset_that_is_on_its_way_makes_the_sandbox_to_copy(copy: SandboxCopy) -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("reset", ActionKind.ENV_RESET, "t"), reward(copy=copy), plan=True)
    assert not manager.has("score")
    manager.run("reset")
    world.plan()
    assert manager.grant("score").sandbox_id == "reset#1"


def test_without_a_sandbox_a_reward_with_files_goes_anywhere_and_one_without_is_refused() -> None:
    world, manager = world_with_trajectory()
    with pytest.raises(RefusedError, match="trajectory_id: has no sandbox to begin a fresh one with"):
        world.submit(reward("nothing", SandboxCopy.ALWAYS))
    world.submit(reward(), plan=True)
    assert manager.grant("score").sandbox_id == ""
    # What comes later changes nothing of it, also not in the eyes of a scheduler that was restarted.
    world.submit(action_request("reset", ActionKind.ENV_RESET, "t"), plan=True)
    manager.run("reset")
    after = world.restart()
    assert not after.live("score").request.in_sandbox
    assert list(after.state.jobs["job"].trajectories["t"].line) == []


def test_what_is_settled_outlives_a_restart_and_so_does_that_there_was_a_sandbox() -> None:
    world, manager = world_with_sandbox()
    world.submit(reward(), plan=True)
    grant = manager.start("score")
    after = world.restart()
    manager.world, manager.stream = after, Stream()
    manager.join([manager.running(grant)], [SANDBOX])
    manager.heartbeat()
    assert after.live("score").request.copies_sandbox
    manager.end(grant)
    assert after.state_of("score") is ActionState.SUCCEEDED
    after.handle(events.SandboxLost("m", SANDBOX, "gone"))
    again = after.restart()
    again.submit(reward("later"))
    assert again.failure("later").reason == "state_lost"


def test_a_copy_may_be_made_again_after_an_infra_failure_as_long_as_its_sandbox_is_there() -> None:
    world, manager = world_with_sandbox()
    world.submit(reward())
    world.step("after", plan=True)
    manager.start("score")
    manager.fail("score")
    world.wait(1.0)
    assert (manager.grant("score").attempt, manager.has("after")) == (2, False)
    manager.start("score")
    world.handle(events.SandboxLost("m", SANDBOX, "gone"))
    manager.fail("score")
    world.wait(1.0)
    failure = world.failure("score")
    assert (failure.kind, failure.reason) == (FailureKind.INFRA, "state_lost")


def test_a_copy_that_is_given_up_costs_its_sandbox_nothing() -> None:
    world, manager = world_with_sandbox()
    world.submit(reward())
    world.step("after", plan=True)
    manager.start("score")
    world.cancel("score")
    world.wait(world.state.settings.cancel_grace + 1.0)
    assert world.state_of("score") is ActionState.CANCELLED
    assert not manager.stream.all(commands.ReleaseSandbox)
    world.plan()
    assert manager.grant("after").sandbox_id == "reset#1"


def test_a_manager_that_cannot_copy_sandboxes_is_given_none_to_copy() -> None:
    world, manager = world_with_manager("m", service(copies=False))
    world.trajectory("t")
    world.submit(action_request("reset", ActionKind.ENV_RESET, "t"), reward("early"), plan=True)
    manager.run("reset")
    world.plan()
    failure = world.failure("early")
    assert (failure.kind, failure.reason) == (FailureKind.ENV, "unservable")
    with pytest.raises(RefusedError, match="cannot copy it"):
        world.submit(reward("late"))
    # It is not the sandbox's own that is refused.
    world.step("step", plan=True)
    assert manager.has("step")
