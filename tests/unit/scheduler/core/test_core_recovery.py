"""A scheduler that continues from its journal: what is adopted, what is repeated, what is given up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKind, ActionState, TimeoutKind, Timeouts
from callsheet.scheduler.core.words.registration import SandboxRef

from tests.support.core_requests import action_request, fixed, key_of
from tests.support.core_world import (
    CoreWorld,
    FakeManager,
    Stream,
    node,
    service,
    world_with_job,
    world_with_manager,
    world_with_sandbox,
)

SANDBOX = SandboxRef("job", "t", "reset#1")


def restarted(world: CoreWorld, *managers: FakeManager) -> CoreWorld:
    """The next scheduler; the managers know its address but have not registered yet."""
    after = world.restart()
    for manager in managers:
        manager.world = after
        manager.stream = Stream()
    return after


def test_a_clock_that_was_set_back_puts_no_deadline_off() -> None:
    world = world_with_job()
    world.submit(action_request("a", timeouts=Timeouts(60.0, 60.0, 60.0), wait=True))
    world.now -= 86_400.0
    after = world.restart()
    after.watch("a", "late")
    after.wait(61.0)
    assert after.expiry("a").timeout is TimeoutKind.SCHEDULE_TO_CLOSE


def test_an_attempt_its_manager_knows_nothing_of_goes_back_to_the_queue() -> None:
    world, manager = world_with_sandbox()
    world.step("a", plan=True)
    after = restarted(world, manager)
    manager.join([], [SANDBOX])
    after.wait(1.0)
    assert manager.grant("a").attempt == 2


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("journalled", ["adopted", "dispatched", "of journal-3"])
def test_another_process_of_a_manager_cannot_know_what_the_former_one_began(
    once: bool, started: bool, journalled: str
) -> None:
    world, manager = world_with_sandbox()
    world.submit(action_request("call", kind=ActionKind.TOOL_CALL, called_once=once), plan=True)
    grant = manager.start("call") if started else manager.grant("call")
    if journalled == "of journal-3":
        call = world.journal.actions["job", "call"]
        world.journal.actions["job", "call"] = replace(call, incarnation="")
    after = restarted(world, manager)
    if journalled == "adopted":
        manager.join([manager.running(grant)], [SANDBOX])
        after = restarted(after, manager)
    after.watch("call", "client")
    manager.join(incarnation="second")
    after.wait(5.0)
    if once:
        assert after.failure("call").reason == "manager_lost"
        assert not manager.stream.all(commands.Dispatch)
    else:
        assert manager.grant("call").attempt == 2


def test_a_core_that_was_granted_before_its_holder_came_back_has_one_holder_in_the_books() -> None:
    world = CoreWorld()
    tests = world.manager("tests", service("test-suite", [ActionKind.REWARD]), on=node("shared", 2))
    tools = world.manager("tools", service("tools", [ActionKind.TOOL_CALL]), on=node("shared", 2))
    world.job()
    world.submit(action_request("reward", ActionKind.REWARD, demand=fixed(cpu=2)), plan=True)
    grant = tests.start("reward")
    after = restarted(world, tests, tools)
    tools.join()
    after.submit(action_request("tool", demand=fixed(cpu=1)), plan=True)
    tests.join([tests.running(grant)])
    assert tests.free["cpu"] == -1
    tests.end(grant)
    tools.run("tool")
    assert tools.free["cpu"] == 2
    after.submit(action_request("wide", demand=fixed(cpu=2)), plan=True)
    assert tools.grant("wide").cores == (0, 1)


def with_deadlines() -> CoreWorld:
    """A world in which "a" must start within 20 s and "b" be over within 60 s; 5 s have passed."""
    world = world_with_job()
    world.submit(
        action_request("a", wait=True, timeouts=Timeouts(20.0, 50.0, 50.0)),
        action_request("b", wait=True, timeouts=Timeouts(60.0, 50.0, 60.0)),
    )
    world.wait(5.0)
    return world


def test_deadlines_stand_still_while_no_scheduler_runs() -> None:
    world = with_deadlines()
    world.now += 86_400.0
    after = restarted(world)
    after.submit(action_request("a", wait=True, timeouts=Timeouts(20.0, 50.0, 50.0)))
    assert after.state.timers.get(("action", after.live("a").key)) == pytest.approx(after.now + 15.0, abs=0.01)
    after.wait(14.0)
    assert after.state_of("a") is ActionState.QUEUED
    after.wait(2.0)
    assert after.expiry("a").timeout is TimeoutKind.SCHEDULE_TO_START
    after.wait(38.0)
    assert after.state_of("b") is ActionState.QUEUED
    after.wait(2.0)
    assert after.state_of("b") is ActionState.EXPIRED


def test_many_restarts_put_a_deadline_off_by_no_more_than_the_time_away() -> None:
    world = with_deadlines()
    for _ in range(4):
        world.now += 1_000.0
        world = restarted(world)
        world.wait(3.0)
    assert world.state_of("a") is ActionState.QUEUED
    world.now += 1_000.0
    world = restarted(world)
    world.watch("a", "late")
    world.wait(10.5)
    assert world.expiry("a").timeout is TimeoutKind.SCHEDULE_TO_START, "3 s were left"


def test_an_action_that_had_almost_no_time_left_waits_for_managers_to_come_back() -> None:
    world = with_deadlines()
    world.wait(14.9)
    world.now += 3_600.0
    after = restarted(world)
    after.wait(9.0)
    manager = after.manager()
    after.plan()
    assert manager.has("a")


def test_a_submit_of_after_the_last_sign_of_life_does_not_gain_the_time_before_it() -> None:
    world = with_deadlines()
    world.journal.alive_at = world.now - 4.0
    world.now += 100.0
    after = restarted(world)
    assert after.live("a").away_s == 104.0
    world = with_deadlines()
    world.journal.alive_at = world.now - 50.0
    world.now += 100.0
    assert restarted(world).live("a").away_s == 105.0


@pytest.mark.parametrize("step", [-86_400.0, -3.0, 3_600.0, 86_400.0])
def test_a_wall_clock_that_was_set_meanwhile_lets_no_deadline_strike_early(step: float) -> None:
    world = with_deadlines()
    world.now += step
    after = restarted(world)
    after.wait(14.0)
    assert after.state_of("a") is ActionState.QUEUED
    after.wait(7.0)
    assert after.state_of("a") is ActionState.EXPIRED, "nor is it put off for longer than it was in all"


def test_a_journal_that_tells_no_sign_of_life_lets_deadlines_begin_anew() -> None:
    world = with_deadlines()
    world.journal.alive_at = None
    world.now += 86_400.0
    after = restarted(world)
    assert after.state.timers.get(("action", after.live("a").key)) == pytest.approx(after.now + 20.0, abs=0.01)


def test_an_adopted_attempt_must_give_signs_of_life() -> None:
    world, manager = world_with_sandbox()
    timeouts = Timeouts(1000.0, 1000.0, 1000.0, heartbeat=5.0)
    world.submit(action_request("a", ActionKind.ENV_STEP, "t", timeouts=timeouts), plan=True)
    grant = manager.start("a")
    after = restarted(world, manager)
    after.submit(action_request("a", ActionKind.ENV_STEP, "t", timeouts=timeouts))
    manager.join([manager.running(grant)], [SANDBOX])
    manager.live(4.0)
    assert after.state_of("a") is ActionState.RUNNING
    manager.live(2.0)
    assert after.failure("a").timeout is TimeoutKind.HEARTBEAT


def test_an_adopted_attempt_has_its_backstop() -> None:
    world, manager = world_with_sandbox()
    world.submit(action_request("a", timeouts=Timeouts(1000.0, 10.0, 1000.0)), plan=True)
    grant = manager.start("a")
    restarted(world, manager)
    manager.join([manager.running(grant)], [SANDBOX])
    manager.live(13.0)
    assert manager.stream.last(commands.CancelAttempt).token == grant.token


@pytest.mark.parametrize("started", [False, True])
def test_what_was_running_in_a_trajectory_when_it_was_closed_is_cancelled_after_a_restart(started: bool) -> None:
    world, manager = world_with_sandbox()
    world.step("step", plan=True)
    grant = manager.grant("step")
    world.close_trajectory("t")
    after = restarted(world, manager)
    after.submit(action_request("step", ActionKind.ENV_STEP, "t"))
    manager.join([manager.running(grant)] if started else [], [SANDBOX])
    if started:
        assert manager.stream.last(commands.CancelAttempt).token == grant.token
        manager.end(grant, events.AttemptCancelled())
    after.wait(5.0)
    assert after.state_of("step") is ActionState.CANCELLED
    assert not manager.stream.all(commands.Dispatch)
    assert manager.stream.last(commands.ReleaseSandbox).sandbox == SANDBOX
    assert manager.free == {"cpu": 4, "memory": 4096}


def test_a_cancelled_attempt_that_nobody_knows_after_a_restart_is_not_tried_again() -> None:
    world, manager = world_with_sandbox()
    world.submit(action_request("a"), plan=True)
    world.cancel("a", "no longer wanted")
    after = restarted(world, manager)
    after.watch("a", "client")
    manager.join()
    assert after.cancellation("a").reason == "no longer wanted"


def test_a_reset_that_ends_in_a_closed_trajectory_after_a_restart_leaves_no_sandbox() -> None:
    world, manager = world_with_manager()
    world.trajectory("t")
    world.reset("reset", plan=True)
    grant = manager.start("reset")
    world.close_trajectory("t")
    after = restarted(world, manager)
    manager.join([manager.running(grant)])
    manager.end(grant)
    assert after.state_of("reset").terminal
    assert manager.stream.last(commands.ReleaseSandbox).sandbox == SANDBOX
    assert manager.free == {"cpu": 4, "memory": 4096}


def test_an_outcome_that_is_known_while_recovering_is_recorded_and_delivered() -> None:
    world, manager = world_with_sandbox()
    world.step("a", plan=True)
    after = restarted(world, manager)
    manager.join()
    assert after.live("a").backoff_until > after.now
    again = restarted(after, manager)
    assert again.journal.actions["job", "a"].state == "failed"
    again.watch("a", "client")
    assert again.delivered == [("client", key_of("a"))]


def test_what_an_attempt_holds_whose_action_is_over_is_not_granted_to_others() -> None:
    world, manager = world_with_manager(cores=2)
    world.submit(action_request("a", demand=fixed(cpu=2)), plan=True)
    grant = manager.start("a")
    world.cancel("a")
    manager.live(world.settings.cancel_grace + 1.0)
    assert world.state_of("a") is ActionState.CANCELLED
    assert manager.free["cpu"] == 0, "it did not stop when it was told to"
    after = restarted(world, manager)
    manager.join([manager.running(grant)])
    assert manager.free["cpu"] == 0
    manager.end(grant, events.AttemptCancelled())
    assert manager.free["cpu"] == 2
    manager.join([manager.running(grant)])
    manager.join()
    assert manager.free["cpu"] == 2, "it is not listed any more"
    manager.join([manager.running(grant)], incarnation="second")
    assert after.state.managers["m"].strangers
    manager.join(incarnation="third")
    assert manager.free["cpu"] == 2


def test_a_time_without_a_scheduler_is_no_overhead() -> None:
    world, manager = world_with_sandbox()
    world.step("a")
    world.submit(action_request("queued", ActionKind.GENERATE, "t", demand=fixed(cpu=4)), plan=True)
    grant = manager.start("a")
    world.now += 100.0
    after = restarted(world, manager)
    manager.join([manager.running(grant)], [SANDBOX])
    after.watch("a", "client")
    after.watch("queued", "client")
    after.now += 5.0
    manager.end(grant, execution_s=25.0)
    facts = after.outcomes[key_of("a")]
    assert facts.waited_s == {"scheduler": pytest.approx(80.0)}
    assert facts.overhead_s == pytest.approx(0.0)
    after.cancel("queued")
    queued = after.outcomes[key_of("queued")]
    assert queued.overhead_s == pytest.approx(0.0)
    assert queued.queue_s + sum(queued.waited_s.values()) == pytest.approx(105.0)
