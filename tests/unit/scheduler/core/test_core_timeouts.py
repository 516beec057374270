"""The four timeouts, and the lease of a manager."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.machine import next_deadline
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import (
    ActionKind,
    ActionState,
    FailureKind,
    RetryPolicy,
    TimeoutKind,
    Timeouts,
)
from callsheet.scheduler.core.words.registration import SandboxRef

from tests.support.core_requests import action_request, key_of
from tests.support.core_world import (
    CoreWorld,
    FakeManager,
    world_with_sandbox,
    world_with_trajectory,
)

ONCE = RetryPolicy(max_attempts=1)


def running(timeouts: Timeouts, kind: ActionKind = ActionKind.TOOL_CALL) -> tuple[CoreWorld, FakeManager]:
    world, manager = world_with_sandbox()
    world.submit(action_request("a", kind, "t", timeouts=timeouts), plan=True)
    manager.start("a")
    return world, manager


UNSET = Timeouts(30.0, 600.0, 3600.0, execution_given=False, close_given=False)


def world_with_default(command_timeout: float) -> tuple[CoreWorld, FakeManager]:
    """A world whose trajectory has a sandbox with a default execution timeout."""
    world, manager = world_with_trajectory()
    world.submit(action_request("reset", ActionKind.ENV_RESET, "t", command_timeout=command_timeout), plan=True)
    manager.run("reset")
    return world, manager


def test_commands_without_an_execution_timeout_take_that_of_their_sandbox_also_after_a_restart() -> None:
    world, manager = world_with_default(45.0)
    world.submit(
        action_request("a", ActionKind.ENV_STEP, "t", timeouts=UNSET),
        action_request("own", ActionKind.ENV_STEP, "t", timeouts=Timeouts(30.0, 5.0, 60.0)),
        action_request("apart", ActionKind.REWARD, "t", timeouts=UNSET),
        plan=True,
    )
    assert manager.run("a").start_to_close == 45.0
    assert manager.grant("apart").start_to_close == 600.0
    after = world.restart()
    manager.world = after
    manager.join([], [SandboxRef("job", "t", "reset#1")])
    after.submit(action_request("score", ActionKind.REWARD, "t", timeouts=UNSET, in_sandbox=True), plan=True)
    assert manager.run("own").start_to_close == 5.0
    after.plan()
    assert manager.grant("score").start_to_close == 45.0


def test_the_newest_reset_says_which_execution_timeout_commands_take() -> None:
    world, manager = world_with_default(45.0)
    world.reset("again")
    world.submit(action_request("a", ActionKind.ENV_STEP, "t", timeouts=UNSET), plan=True)
    manager.run("again")
    world.plan()
    assert manager.grant("a").start_to_close == 600.0


def test_a_default_execution_timeout_is_bounded_by_a_schedule_to_close_that_was_given() -> None:
    given = Timeouts(30.0, 600.0, 100.0, execution_given=False)
    assert given.with_default_execution(7200.0) == Timeouts(30.0, 100.0, 100.0, execution_given=False)
    grown = UNSET.with_default_execution(7200.0)
    assert (grown.start_to_close, grown.schedule_to_close) == (7200.0, 7230.0)


def test_schedule_to_start_leaves_a_retried_action_alone() -> None:
    world, manager = running(Timeouts(5.0, 100.0, 100.0))
    manager.live(4)
    manager.fail("a")
    manager.live(4)
    assert world.state_of("a") is ActionState.DISPATCHED


def test_schedule_to_close_does_not_wait_for_a_manager_that_does_not_stop() -> None:
    world, manager = running(Timeouts(20.0, 100.0, 20.0), ActionKind.ENV_STEP)
    manager.live(26)
    assert world.expiry("a").timeout is TimeoutKind.SCHEDULE_TO_CLOSE
    manager.end("a")
    assert world.expiry("a").timeout is TimeoutKind.SCHEDULE_TO_CLOSE
    assert world.state.nodes["node-m"].free == {"cpu": 4, "memory": 4096}


def test_the_backstop_fails_what_its_manager_did_not_stop_in_time() -> None:
    world, manager = running(Timeouts(100.0, 10.0, 100.0))
    manager.live(11)
    assert not manager.stream.all(commands.CancelAttempt), "the manager has its grace"
    manager.live(2)
    assert len(manager.stream.all(commands.CancelAttempt)) == 1
    manager.end("a", events.AttemptCancelled(b"half"))
    failed = world.failure("a")
    assert (failed.kind, failed.timeout, failed.partial) == (
        FailureKind.TIMEOUT,
        TimeoutKind.START_TO_CLOSE,
        b"half",
    )


def test_the_backstop_counts_from_the_start_of_the_attempt() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("a", timeouts=Timeouts(100.0, 10.0, 100.0)), plan=True)
    manager.live(10)
    manager.start("a")
    manager.live(11)
    assert not manager.stream.all(commands.CancelAttempt)


def test_a_silent_attempt_is_given_up_and_tried_again() -> None:
    world, manager = running(Timeouts(1000.0, 1000.0, 1000.0, heartbeat=5.0))
    manager.live(4)
    manager.progress("a")
    manager.live(4)
    assert world.state_of("a") is ActionState.RUNNING
    manager.live(3)
    grants = [each for each in manager.stream.all(commands.Dispatch) if each.request.key == key_of("a")]
    assert [grant.attempt for grant in grants] == [1, 2]
    assert manager.stream.all(commands.CancelAttempt)[0].token == grants[0].token
    manager.end(grants[0])
    assert world.state_of("a") is ActionState.DISPATCHED
    manager.run("a")
    assert world.outcomes[key_of("a")].attempts == 2


def test_a_silent_step_fails_with_its_sandbox() -> None:
    world, manager = running(Timeouts(1000.0, 1000.0, 1000.0, heartbeat=5.0), ActionKind.ENV_STEP)
    world.step("behind")
    manager.live(6)
    failed = world.failure("a")
    assert (failed.kind, failed.timeout) == (FailureKind.INFRA, TimeoutKind.HEARTBEAT)
    assert world.failure("behind").reason == "state_lost"
    assert manager.stream.all(commands.ReleaseSandbox)


def test_a_silent_reset_is_tried_again_after_its_backoff() -> None:
    world, manager = running(Timeouts(1000.0, 1000.0, 1000.0, heartbeat=5.0), ActionKind.ENV_RESET)
    world.step("behind")
    first = manager.grant("a")
    manager.live(6)
    assert manager.grant("a").attempt == 2
    manager.run("a")
    world.plan()
    assert manager.grant("behind").sandbox_id == "a#2"
    manager.end(first)
    assert manager.stream.last(commands.ReleaseSandbox).sandbox.sandbox_id == "a#1"


def test_an_attempt_that_never_says_it_started_is_silent_too() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("a", timeouts=Timeouts(1000.0, 1000.0, 1000.0, heartbeat=5.0), retry=ONCE), plan=True)
    manager.live(6)
    assert world.failure("a").timeout is TimeoutKind.HEARTBEAT


def test_heartbeats_renew_the_lease_and_silence_ends_it() -> None:
    world, manager = world_with_trajectory()
    manager.live(30)
    assert "m" in world.state.managers
    world.wait(8.5)
    assert "m" in world.state.managers
    world.wait(1.0)
    assert "m" not in world.state.managers
    assert not world.state.nodes
    assert manager.stream.last(commands.RefuseManager).refusal.rule == "its lease ran out"
    manager.join()
    assert "m" in world.state.managers


def test_every_sign_of_life_renews_the_lease() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("a"), plan=True)
    world.wait(6.0)
    manager.start("a")
    world.wait(6.0)
    manager.progress("a")
    world.wait(6.0)
    manager.end("a")
    world.wait(6.0)
    assert "m" in world.state.managers


def test_deadlines_are_known_to_the_shell() -> None:
    world, _ = world_with_trajectory()
    world.submit(action_request("a", timeouts=Timeouts(3.0, 50.0, 100.0)))
    assert next_deadline(world.state) == pytest.approx(world.now + 3.0)


def test_time_that_was_not_granted_does_not_count_against_the_execution_timeout() -> None:
    world, manager = running(Timeouts(1000.0, 10.0, 1000.0))
    told = 0.0
    for clock in (5.0, 7.5, 8.0, 8.0, 9.0):
        manager.live(10.0 - told)
        told = clock
        manager.progress("a", told)
    assert world.state_of("a") is ActionState.RUNNING
    assert not manager.stream.all(commands.CancelAttempt)
    # The clock was at 9 s when it was told last; the grace is 2 s.
    manager.live(2.5)
    assert not manager.stream.all(commands.CancelAttempt)
    manager.live(1.0)
    assert manager.stream.all(commands.CancelAttempt)


def test_a_clock_told_by_a_registration_counts() -> None:
    _, manager = running(Timeouts(1000.0, 10.0, 1000.0))
    manager.live(9.0)
    manager.disconnect()
    manager.join([manager.running(manager.grant("a"), execution_s=1.0)])
    manager.live(10.5)
    assert not manager.stream.all(commands.CancelAttempt)
    manager.live(1.0)
    assert manager.stream.all(commands.CancelAttempt)
