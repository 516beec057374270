"""The line of a trajectory's sandbox: one at a time, in the order of submits, with what the sandbox keeps."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKind, ActionState, FailureKind
from callsheet.scheduler.core.words.registration import SandboxRef

from tests.support.core_requests import action_request, elastic, fixed, kept
from tests.support.core_world import world_with_manager, world_with_sandbox, world_with_step, world_with_trajectory


def test_actions_of_a_sandbox_run_one_at_a_time_in_their_order() -> None:
    world, manager = world_with_sandbox()
    for name in ("one", "two", "three"):
        world.step(name)
    for name in ("one", "two", "three"):
        world.plan()
        waiting = {"one", "two", "three"} - {name}
        assert manager.has(name)
        manager.start(name)
        world.plan()
        assert {each for each in waiting if world.state_of(each) is ActionState.RUNNING} == set()
        manager.end(name)
    assert [grant.request.key.action_id for grant in manager.stream.all(commands.Dispatch)] == [
        "reset",
        "one",
        "two",
        "three",
    ]


def test_a_generate_of_the_trajectory_does_not_wait_for_its_sandbox() -> None:
    world, manager = world_with_sandbox()
    world.step("step")
    world.submit(action_request("generate", ActionKind.GENERATE, "t"), plan=True)
    assert manager.has("step")
    assert manager.has("generate")


def test_a_reward_in_the_sandbox_stands_in_line_and_one_outside_does_not() -> None:
    world, manager = world_with_sandbox()
    world.step("step")
    world.submit(
        action_request("inside", ActionKind.REWARD, "t", in_sandbox=True),
        action_request("outside", ActionKind.REWARD, "t"),
        plan=True,
    )
    assert (manager.has("inside"), manager.grant("outside").sandbox_id) == (False, "")
    manager.run("step")
    world.plan()
    assert manager.grant("inside").sandbox_id == "reset#1"


def test_a_step_runs_on_the_manager_of_its_sandbox_only() -> None:
    world, manager = world_with_sandbox()
    other = world.manager("other", cores=32)
    world.step("step")
    assert not world.propose("step", "other", cpu=1)
    world.plan()
    assert manager.grant("step").sandbox_id == "reset#1"
    assert not other.stream.all(commands.Dispatch)


def test_memory_is_kept_by_the_trajectory_and_cores_of_the_reset_are_not() -> None:
    world, manager = world_with_sandbox()
    assert manager.free == {"cpu": 4, "memory": 4096 - 256}
    world.close_trajectory("t")
    assert manager.free == {"cpu": 4, "memory": 4096}
    assert manager.stream.last(commands.ReleaseSandbox).sandbox == SandboxRef("job", "t", "reset#1")


def test_cores_kept_by_the_trajectory_are_lent_to_its_steps() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("reset", ActionKind.ENV_RESET, "t", demand=kept(cpu=2, memory=64)), plan=True)
    held = manager.run("reset").cores
    assert len(held) == 2
    assert manager.free == {"cpu": 2, "memory": 4096 - 64}
    world.submit(
        action_request("own", ActionKind.ENV_STEP, "t", demand=fixed()),
        action_request("more", ActionKind.ENV_STEP, "t", demand=fixed(cpu=1)),
        plan=True,
    )
    assert (manager.grant("own").cores, manager.grant("own").resources) == (held, {})
    manager.run("own")
    world.plan()
    grant = manager.grant("more")
    assert (grant.cores[:2], len(set(grant.cores))) == (held, 3)
    assert manager.free["cpu"] == 1
    manager.run("more")
    assert manager.free["cpu"] == 2
    world.close_trajectory("t")
    assert manager.free["cpu"] == 4


def test_a_second_reset_destroys_the_first_sandbox_before_it_runs() -> None:
    world, manager = world_with_sandbox()
    world.reset("again")
    assert manager.stream.last(commands.ReleaseSandbox).sandbox.sandbox_id == "reset#1"
    assert manager.free["memory"] == 4096
    world.plan()
    manager.run("again")
    world.step("step", plan=True)
    assert manager.grant("step").sandbox_id == "again#1"
    assert manager.free["memory"] == 4096 - 256


def test_a_second_reset_waits_for_the_steps_before_it() -> None:
    world, manager = world_with_sandbox()
    world.step("step")
    world.reset("again")
    world.step("after", plan=True)
    assert manager.grant("step").sandbox_id == "reset#1"
    assert not manager.stream.all(commands.ReleaseSandbox)
    manager.run("step")
    world.plan()
    manager.run("again")
    world.plan()
    assert manager.grant("after").sandbox_id == "again#1"


def test_a_failed_reset_leaves_no_sandbox_and_steps_behind_it_end_as_state_lost() -> None:
    world, manager = world_with_trajectory()
    world.reset("reset")
    world.step("step", plan=True)
    manager.start("reset")
    manager.fail("reset", FailureKind.ENV)
    assert world.failure("reset").kind is FailureKind.ENV
    assert (world.failure("step").kind, world.failure("step").reason) == (FailureKind.INFRA, "state_lost")
    assert manager.free == {"cpu": 4, "memory": 4096}


def test_a_lost_sandbox_fails_what_waits_and_what_comes_until_a_reset() -> None:
    world, manager = world_with_sandbox()
    world.step("running")
    world.step("waiting", plan=True)
    manager.start("running")
    world.handle(events.SandboxLost("m", SandboxRef("job", "t", "reset#1"), "killed"))
    assert manager.free["memory"] == 4096
    manager.fail("running")
    assert (world.failure("running").kind, world.failure("waiting").reason) == (FailureKind.INFRA, "state_lost")
    world.step("late")
    assert world.failure("late").reason == "state_lost"
    world.reset("again")
    world.step("fresh", plan=True)
    manager.run("again")
    world.plan()
    assert manager.grant("fresh").sandbox_id == "again#1"


def test_the_loss_of_a_former_sandbox_changes_nothing() -> None:
    world, manager = world_with_sandbox()
    world.reset("again", plan=True)
    manager.run("again")
    world.handle(events.SandboxLost("m", SandboxRef("job", "t", "reset#1"), "late news"))
    world.step("step", plan=True)
    assert manager.grant("step").sandbox_id == "again#1"


def test_a_sandbox_made_for_a_closed_trajectory_is_released_at_once() -> None:
    world, manager = world_with_trajectory()
    world.reset("reset", plan=True)
    manager.start("reset")
    world.close_trajectory("t")
    manager.end("reset")
    assert manager.stream.last(commands.ReleaseSandbox).sandbox.sandbox_id == "reset#1"
    assert manager.free == {"cpu": 4, "memory": 4096}
    assert not world.state.managers["m"].sandboxes


def test_a_closed_trajectory_releases_its_sandbox_while_a_step_is_in_it() -> None:
    world, manager, _ = world_with_step("step")
    world.close_trajectory("t")
    assert manager.stream.last(commands.ReleaseSandbox).sandbox.sandbox_id == "reset#1"
    manager.end("step", events.AttemptCancelled())
    assert world.cancellation("step").reason == "its trajectory was closed"
    assert manager.free == {"cpu": 4, "memory": 4096}


@pytest.mark.parametrize("cancelled", [["reset"], ["reset", "step"], ["step", "reset"]])
def test_cancelling_a_queued_reset_leaves_no_second_outcome(cancelled: list[str]) -> None:
    world, _ = world_with_trajectory()
    world.reset("reset")
    world.step("step")
    for name in cancelled:
        world.cancel(name)
    assert world.state_of("reset") is ActionState.CANCELLED
    assert world.state_of("step").terminal
    assert world.state.open_actions == 0


def test_only_a_reset_makes_a_sandbox() -> None:
    world, manager, _ = world_with_step("step")
    manager.end("step", events.AttemptSucceeded(b"odd", "invented", "t"))
    assert world.state_of("step") is ActionState.SUCCEEDED
    world.step("next", plan=True)
    assert manager.grant("next").sandbox_id == "reset#1"
    manager.run("next")
    world.close_trajectory("t")
    assert manager.free == {"cpu": 4, "memory": 4096}


def test_a_reset_that_names_no_sandbox_has_failed() -> None:
    world, manager = world_with_trajectory()
    world.reset("reset", plan=True)
    manager.start("reset")
    manager.end("reset", events.AttemptSucceeded(b"made"))
    world.wait(1.0)
    assert world.live("reset").attempts == 2
    assert "no_sandbox" in world.why("reset")


def test_an_elastic_step_keeps_its_width_within_the_free_cores() -> None:
    world, manager = world_with_sandbox()
    world.submit(action_request("wide", ActionKind.ENV_STEP, "t", demand=elastic(1, 16)), plan=True)
    assert (manager.grant("wide").resources, manager.grant("wide").cores) == ({"cpu": 4}, (0, 1, 2, 3))


def test_two_trajectories_use_the_sandboxes_of_their_own() -> None:
    world, manager = world_with_manager()
    for name in ("t", "u"):
        world.trajectory(name)
        world.reset(f"reset-{name}", name)
    world.plan()
    for name in ("t", "u"):
        manager.run(f"reset-{name}")
        world.step(f"step-{name}", name)
    world.plan()
    assert manager.grant("step-t").sandbox_id == "reset-t#1"
    assert manager.grant("step-u").sandbox_id == "reset-u#1"
