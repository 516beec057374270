"""Managers: who may join, what happens when they break off, and what services reserve."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKey, ActionKind, ActionState, Token
from callsheet.scheduler.core.words.refusals import RefusalCode
from callsheet.scheduler.core.words.registration import NodeDescription, RunningAttempt, SandboxRef
from callsheet.scheduler.core.work.attempts import SMALL_RESULT

from tests.support.core_requests import action_request, fixed, key_of
from tests.support.core_world import (
    CoreWorld,
    FakeManager,
    Stream,
    node,
    service,
    world_with_call,
    world_with_manager,
    world_with_sandbox,
    world_with_step,
    world_with_trajectory,
)


def test_managers_of_one_node_must_describe_it_alike() -> None:
    world = CoreWorld()
    world.manager("one", on=node("shared", 4))
    refused = world.manager("two", on=node("shared", 5))
    refusal = refused.stream.last(commands.RefuseManager).refusal
    assert (refusal.code, refusal.field) == (RefusalCode.FAILED_PRECONDITION, "registration.node")
    assert "['one']" in refusal.rule
    assert "4 cores" in refusal.rule
    assert set(world.state.managers) == {"one"}
    world.manager("three", on=node("shared", 4))
    assert world.state.nodes["shared"].managers == {"one", "three"}


def test_a_node_may_come_back_changed_once_nobody_is_on_it() -> None:
    world = CoreWorld()
    world.manager("one", on=node("shared", 4))
    world.wait(11.0)
    assert world.manager("two", on=node("shared", 6)).free["cpu"] == 6


def test_managers_of_one_node_share_its_units() -> None:
    world = CoreWorld()
    one = world.manager("one", service("a", [ActionKind.REWARD]), on=node("shared", 2))
    two = world.manager("two", service("b", [ActionKind.TOOL_CALL]), on=node("shared", 2))
    world.job()
    world.submit(
        action_request("reward", ActionKind.REWARD),
        action_request("tool", demand=fixed(cpu=1)),
        action_request("tool-2", demand=fixed(cpu=1)),
        plan=True,
    )
    assert set(one.grant("reward").cores).isdisjoint(two.grant("tool").cores)
    assert not two.has("tool-2")


def test_reserved_cores_come_from_the_end_of_the_list() -> None:
    world = CoreWorld()
    description = NodeDescription("n", {}, ((0, 2, 4), (1, 3, 5)))
    world.manager("engine", service("model", [ActionKind.GENERATE], reserved={"cpu": 2}), on=description)
    manager = world.manager("m", service("work", [ActionKind.TOOL_CALL]), on=description)
    world.job()
    world.submit(action_request("a", demand=fixed(cpu=4)), plan=True)
    assert (manager.grant("a").cores, manager.free["cpu"]) == ((0, 1, 2, 4), 0)


def test_a_reserve_on_a_busy_node_is_a_debt_that_ends_pay() -> None:
    world, manager = world_with_manager("m", service("work", [ActionKind.TOOL_CALL]), on=node("n", 4))
    world.submit(*(action_request(name, demand=fixed(cpu=2)) for name in ("a", "b")), plan=True)
    engine = world.manager("engine", service("model", [ActionKind.GENERATE], reserved={"cpu": 2}), on=node("n", 4))
    assert manager.free["cpu"] == -2
    world.submit(action_request("c", demand=fixed(cpu=2)))
    manager.run("a")
    assert manager.free["cpu"] == 0
    world.plan()
    assert not manager.has("c")
    manager.run("b")
    world.plan()
    assert manager.grant("c").cores == (0, 1)
    engine.disconnect()
    manager.live(11.0)
    assert manager.free["cpu"] == 2, "the reserve is given back with its manager"


def test_slots_bound_a_service_whatever_its_node_has() -> None:
    world, manager = world_with_manager("m", service("engine", [ActionKind.GENERATE], slots=2))
    world.submit(*(action_request(name, ActionKind.GENERATE) for name in ("a", "b", "c")), plan=True)
    assert [manager.has(name) for name in ("a", "b", "c")] == [True, True, False]
    assert not world.propose("c", "m")
    manager.run("a")
    world.plan()
    assert manager.has("c")


def test_nothing_is_sent_before_the_first_heartbeat() -> None:
    world, manager = world_with_trajectory(manager=False)
    manager.join(heartbeat=False)
    world.submit(action_request("a"), plan=True)
    assert not manager.has("a")
    manager.heartbeat()
    world.plan()
    assert manager.has("a")


def test_an_end_that_was_kept_counts_before_the_first_heartbeat() -> None:
    world, manager, grant = world_with_step()
    manager.disconnect()
    manager.join([], [SandboxRef("job", "t", "reset#1")], heartbeat=False)
    manager.end(grant)
    manager.heartbeat()
    assert world.state_of("a") is ActionState.SUCCEEDED


def test_a_late_heartbeat_of_a_replaced_stream_is_not_the_first_one_of_the_new_stream() -> None:
    world, manager, grant = world_with_step()
    replaced = manager.stream
    manager.join([], [SandboxRef("job", "t", "reset#1")], heartbeat=False)
    assert replaced.last(commands.RefuseManager).refusal.rule == "registered again on another stream"
    world.handle(events.ManagerHeartbeat("m", replaced), events.ManagerDraining("m", replaced))
    world.wait(1.0)
    manager.end(grant)
    manager.heartbeat()
    assert world.state_of("a") is ActionState.SUCCEEDED
    assert world.state.managers["m"].accepting


def test_a_second_process_under_an_id_waits_until_the_first_is_silent() -> None:
    world, manager, _ = world_with_step("step")
    other = FakeManager(world, "m", manager.node, manager.services, incarnation="second")
    for _ in range(3):
        other.join(heartbeat=False)
        (refused,) = other.stream.all(commands.RefuseManager)
        assert refused.refusal.code is RefusalCode.ALREADY_EXISTS
        assert "another process that answers" in refused.refusal.rule
        manager.live(5.0)
    assert world.state.managers["m"].session is manager.stream
    step = world.state.find_action(key_of("step"))
    assert step is not None
    assert step.state is ActionState.RUNNING
    # Its machine is gone: the stream stands, and nobody speaks.
    world.wait(world.state.settings.manager_lease / 2.0 + 0.1)
    other.join()
    assert (world.state.managers["m"].incarnation, world.failure("step").reason) == ("second", "state_lost")


def test_the_break_of_a_refused_stream_changes_nothing() -> None:
    world, manager = world_with_trajectory()
    other = FakeManager(world, "m", manager.node, manager.services, incarnation="second")
    other.join(heartbeat=False)
    other.heartbeat()
    other.disconnect()
    assert world.state.managers["m"].accepting
    assert world.state.managers["m"].session is manager.stream


def test_a_manager_that_is_given_up_and_comes_back_runs_its_attempt_on() -> None:
    world, manager, grant = world_with_call()
    manager.disconnect()
    world.wait(10.05)
    assert world.state_of("a") is ActionState.QUEUED
    manager.join([manager.running(grant)])
    assert world.state_of("a") is ActionState.RUNNING
    world.wait(2.0)
    manager.end(grant)
    assert world.state_of("a") is ActionState.SUCCEEDED
    assert manager.free == {"cpu": 4, "memory": 4096}


def test_a_manager_that_comes_back_too_late_is_told_to_stop_after_its_registration_is_answered() -> None:
    world, manager, grant = world_with_call()
    manager.disconnect()
    spare = world.manager("spare")
    spare.live(12.0)
    assert spare.has("a")
    manager.join([manager.running(grant)], heartbeat=False)
    assert [type(command) for command in manager.stream.sent] == [commands.AcceptManager, commands.CancelAttempt]
    manager.end(grant, events.AttemptSucceeded(b"late"))
    assert manager.stream.last(commands.AcknowledgeEnd).token == grant.token
    spare.run("a")
    assert world.outcomes[key_of("a")].result == events.AttemptSucceeded(b"done")


@pytest.mark.parametrize(("size", "patient"), [(0, True), (SMALL_RESULT, True), (SMALL_RESULT + 1, False)])
def test_the_acknowledgement_of_a_small_end_may_wait_until_its_manager_drains(size: int, patient: bool) -> None:
    world, manager = world_with_trajectory()
    for action in ("a", "b"):
        world.submit(action_request(action), plan=True)
        if action == "b":
            world.handle(events.ManagerDraining("m", manager.stream))
        manager.end(manager.start(action), events.AttemptSucceeded(bytes(size)))
        assert manager.stream.last(commands.AcknowledgeEnd).patient is (patient and action == "a")


def test_sandboxes_that_belong_to_nobody_are_released_at_the_first_heartbeat() -> None:
    _, manager = world_with_sandbox()
    manager.disconnect()
    listed = [SandboxRef("job", "t", "reset#1"), SandboxRef("job", "t", "former"), SandboxRef("gone", "x", "y")]
    manager.join([], listed, heartbeat=False)
    assert not manager.stream.all(commands.ReleaseSandbox)
    manager.heartbeat()
    assert [each.sandbox for each in manager.stream.all(commands.ReleaseSandbox)] == listed[1:]


def test_strays_stay_while_an_attempt_of_unknown_origin_may_have_made_them() -> None:
    world, manager = world_with_trajectory(manager=False)
    manager.world = world.restart()
    stray = SandboxRef("job", "u", "s")
    unknown = RunningAttempt(Token(1, 7), ActionKey("job", "unknown"), 1, True, {}, (), b"hash")
    manager.join([unknown], [stray])
    assert not manager.stream.all(commands.ReleaseSandbox)
    manager.live(61.0)
    assert manager.stream.last(commands.CancelAttempt).token == unknown.token
    manager.heartbeat()
    assert manager.stream.last(commands.ReleaseSandbox).sandbox == stray


def test_events_of_unknown_managers_are_ignored() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("a"), plan=True)
    grant = manager.grant("a")
    stranger = Stream()
    for event in (
        events.ManagerHeartbeat("x"),
        events.ManagerDraining("x"),
        events.ManagerDisconnected(stranger, "x"),
        events.AttemptStarted("x", grant.token),
        events.AttemptProgressed("x", grant.token),
        events.AttemptEnded("x", grant.token, grant.request.key, 1, events.AttemptCancelled(), True, 0.0, b""),
    ):
        assert world.handle(event) == []
    assert world.state_of("a") is ActionState.DISPATCHED


def test_a_running_attempt_with_units_its_node_has_not_makes_no_units_out_of_nothing() -> None:
    world, manager = world_with_trajectory(manager=False)
    manager.world = world = world.restart()
    odd = RunningAttempt(
        Token(1, 7), ActionKey("job", "a"), 1, True, {"gpu": 2, "cpu": 1}, (0, 99), action_request("a").body_hash
    )
    manager.join([odd])
    world.submit(action_request("a"))
    assert world.state_of("a") is ActionState.RUNNING
    done = events.AttemptSucceeded(b"done")
    world.handle(events.AttemptEnded("m", odd.token, odd.key, 1, done, True, 0.0, odd.body_hash))
    assert manager.free == {"cpu": 4, "memory": 4096}
    world.submit(action_request("b", demand=fixed(gpu=1), wait=True), plan=True)
    assert world.state_of("b") is ActionState.QUEUED


def test_a_stray_is_released_though_its_trajectory_is_being_reset_elsewhere() -> None:
    world, manager = world_with_sandbox()
    manager.disconnect()
    world.wait(11.0)
    spare = world.manager("spare")
    world.reset("again", plan=True)
    spare.start("again")
    manager.join([], [SandboxRef("job", "t", "reset#1")])
    assert manager.stream.last(commands.ReleaseSandbox).sandbox.sandbox_id == "reset#1"


def test_a_stray_of_a_trajectory_that_is_reset_on_the_same_manager_is_released_after_the_reset() -> None:
    world, manager = world_with_sandbox()
    world.reset("again", plan=True)
    grant = manager.start("again")
    manager.disconnect()
    listed = [SandboxRef("job", "t", "reset#1"), SandboxRef("job", "t", "again#1")]
    manager.join([manager.running(grant)], listed)
    assert not manager.stream.all(commands.ReleaseSandbox)
    manager.end(grant)
    manager.heartbeat()
    assert [each.sandbox for each in manager.stream.all(commands.ReleaseSandbox)] == listed[:1]
