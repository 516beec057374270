"""A manager that is to leave serves its sandboxes to their ends, or to a deadline; one that is lost is remembered."""

from __future__ import annotations

from math import inf

import pytest
from callsheet.scheduler.core.fleet.loss import MOST_LOST
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKind, ActionState
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.core.words.registration import SandboxRef

from tests.support.core_requests import action_request
from tests.support.core_world import CoreWorld, FakeManager, Stream, world_with_sandbox, world_with_step


def told_to_leave(manager: FakeManager) -> bool:
    return bool(manager.stream.all(commands.DrainManager))


def test_a_trajectory_goes_on_to_its_end_on_a_manager_that_is_to_leave() -> None:
    world, manager = world_with_sandbox()
    other = world.manager("other")
    world.drain("m")
    for turn in range(3):
        world.step(f"step-{turn}", plan=True)
        manager.run(f"step-{turn}")
        manager.heartbeat()
        assert world.state_of(f"step-{turn}") is ActionState.SUCCEEDED
        assert not told_to_leave(manager)
    world.trajectory("new")
    world.reset("new-reset", "new")
    world.submit(action_request("score", ActionKind.REWARD), plan=True)
    assert other.has("new-reset")
    assert other.has("score")
    world.close_trajectory("t")
    manager.heartbeat()
    assert told_to_leave(manager)
    manager.disconnect()
    assert "m" not in world.state.managers
    assert not world.state.lost_managers


@pytest.mark.parametrize("kind", [ActionKind.ENV_RESET, ActionKind.REWARD, ActionKind.GENERATE])
def test_nothing_new_waits_for_a_manager_that_is_to_leave(kind: ActionKind) -> None:
    world, manager = world_with_sandbox()
    world.drain("m")
    world.trajectory("new")
    trajectory = "new" if kind is ActionKind.ENV_RESET else ""
    world.submit(action_request("a", kind, trajectory), plan=True)
    assert world.state_of("a") is ActionState.QUEUED
    world.propose("a", "m", cpu=1)
    assert not manager.has("a"), "not even where a plan says so"


def test_a_deadline_ends_the_wait_for_sandboxes() -> None:
    world, manager, _ = world_with_step("step")
    world.drain("m", deadline=10.0)
    manager.live(9.0)
    assert not told_to_leave(manager)
    manager.live(2.0)
    assert told_to_leave(manager)
    manager.end("step")
    manager.disconnect()
    assert "m" not in world.state.managers
    world.step("next")
    assert world.failure("next").reason == "state_lost"


def test_a_later_request_moves_the_deadline() -> None:
    world, manager = world_with_sandbox()
    world.drain("m", deadline=5.0)
    world.drain("m", deadline=inf)
    manager.live(20.0)
    assert not told_to_leave(manager)
    world.drain("m", deadline=0.0)
    assert told_to_leave(manager)


@pytest.mark.parametrize(("incarnation", "leaves"), [("first", True), ("second", False)])
@pytest.mark.parametrize("deadline", [10.0, inf])
def test_a_drain_survives_restarts_of_the_scheduler_and_no_other_process_of_its_manager(
    deadline: float, incarnation: str, leaves: bool
) -> None:
    world, manager = world_with_sandbox()
    world.drain("m", deadline=deadline)
    leaves_by = world.now + deadline
    for _ in range(2):
        world = world.restart()
        manager.world, manager.stream = world, Stream()
    manager.join(sandboxes=[SandboxRef("job", "t", "reset#1")] if leaves else [], incarnation=incarnation)
    assert world.state.managers["m"].leaves_by == (leaves_by if leaves else None)
    manager.live(9.0)
    assert not told_to_leave(manager)
    manager.live(2.0)
    assert told_to_leave(manager) == (leaves and deadline < inf)
    manager.disconnect()
    world.wait(world.state.settings.manager_lease + 1.0)
    assert not world.journal.drains


def test_a_dry_run_changes_nothing_and_refuses_what_is_not_there() -> None:
    world, manager = world_with_sandbox()
    world.drain("m", deadline=0.0, dry_run=True)
    manager.heartbeat()
    assert not told_to_leave(manager)
    assert world.state.managers["m"].accepting
    with pytest.raises(RefusedError, match="names no registered manager"):
        world.drain("nobody", dry_run=True)


def test_a_manager_without_anything_leaves_at_once() -> None:
    world = CoreWorld()
    manager = world.manager("m")
    world.drain("m")
    assert told_to_leave(manager)


def test_a_lost_manager_is_remembered_with_its_time_until_it_comes_back() -> None:
    world, manager, _ = world_with_step("step")
    manager.disconnect()
    world.wait(world.state.settings.manager_lease + 1.0)
    (lost,) = world.state.lost_managers.values()
    assert (lost.manager_id, lost.node_id, lost.attempts, lost.sandboxes) == ("m", "node-m", 1, 1)
    assert world.now - 1.0 <= lost.lost_at <= world.now
    assert world.failure("step").reason == "state_lost"
    manager.join(incarnation="second")
    assert not world.state.lost_managers


def test_one_that_does_not_come_back_after_a_restart_is_lost_too() -> None:
    world, _ = world_with_sandbox()
    world.drain("m")
    after = world.restart()
    after.wait(after.state.settings.manager_lease + 1.0)
    (lost,) = after.state.lost_managers.values()
    assert (lost.manager_id, lost.node_id, lost.sandboxes) == ("m", "", 1)
    assert not after.journal.drains


def test_the_newest_lost_ones_are_remembered() -> None:
    world = CoreWorld(checked=False)
    for number in range(MOST_LOST + 2):
        world.manager(f"m-{number}").disconnect()
    world.handle(events.TimerFired())
    world.wait(world.state.settings.manager_lease + 1.0)
    assert len(world.state.lost_managers) == MOST_LOST
    assert "m-0" not in world.state.lost_managers
