"""Failed attempts: which kinds are tried again, after how long, how often, and what is never replayed."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKind, ActionState, FailureKind, RetryPolicy

from tests.support.core_requests import action_request, fixed, key_of
from tests.support.core_world import (
    SETTINGS,
    CoreWorld,
    FakeManager,
    world_with_manager,
    world_with_sandbox,
    world_with_trajectory,
)

FINAL = [FailureKind.POLICY, FailureKind.ENV, FailureKind.TIMEOUT, FailureKind.RESOURCE_LIMIT]


def dispatched(
    kind: ActionKind = ActionKind.TOOL_CALL, retry: RetryPolicy | None = None
) -> tuple[CoreWorld, FakeManager]:
    world, manager = world_with_trajectory()
    world.submit(action_request("a", kind, "t", retry=retry), plan=True)
    manager.start("a")
    return world, manager


@pytest.mark.parametrize("kind", FINAL)
def test_failures_that_are_not_of_the_infrastructure_are_final(kind: FailureKind) -> None:
    world, manager = dispatched()
    manager.fail("a", kind)
    assert world.state_of("a") is ActionState.FAILED
    assert world.failure("a").kind is kind
    assert world.state.jobs["job"].failure_counts == {kind.name.lower(): 1}


@pytest.mark.parametrize("kind", [ActionKind.GENERATE, ActionKind.ENV_RESET, ActionKind.TOOL_CALL, ActionKind.REWARD])
def test_an_infrastructure_failure_is_tried_again(kind: ActionKind) -> None:
    world, manager = dispatched(kind)
    first = manager.grant("a")
    manager.fail("a")
    assert world.state_of("a") is ActionState.QUEUED
    world.wait(0.25)
    second = manager.grant("a")
    assert (second.attempt, second.token > first.token) == (2, True)
    manager.run("a")
    assert world.outcomes[first.request.key].attempts == 2


def called_once() -> tuple[CoreWorld, FakeManager]:
    world, manager = world_with_trajectory()
    world.submit(action_request("a", called_once=True), plan=True)
    return world, manager


def test_a_call_that_may_have_begun_is_not_made_again() -> None:
    world, manager = called_once()
    manager.start("a")
    manager.fail("a")
    assert world.failure("a").kind is FailureKind.INFRA
    lost, manager = called_once()
    manager.start("a")
    lost.wait(SETTINGS.manager_lease + 1.0)
    assert lost.failure("a").reason == "manager_lost"


def test_a_call_that_never_began_or_that_a_quota_refused_is_made_again() -> None:
    for kind, started in ((FailureKind.INFRA, False), (FailureKind.QUOTA, True)):
        world, manager = called_once()
        manager.fail("a", kind, started=started)
        world.wait(0.25)
        assert manager.grant("a").attempt == 2


def test_the_wait_grows_from_attempt_to_attempt_up_to_its_ceiling() -> None:
    retry = RetryPolicy(max_attempts=5, initial_backoff=1.0, backoff_multiplier=3.0, max_backoff=5.0)
    world, manager = dispatched(retry=retry)
    for pause in (1.0, 3.0, 5.0, 5.0):
        attempt = manager.grant("a").attempt
        manager.fail("a")
        world.wait(pause - 0.1)
        assert world.state_of("a") is ActionState.QUEUED
        world.wait(0.2)
        assert manager.grant("a").attempt == attempt + 1
        manager.start("a")
    manager.fail("a")
    assert world.failure("a").reason == "made_to_fail"


def test_one_attempt_means_no_retry() -> None:
    world, manager = dispatched(retry=RetryPolicy(max_attempts=1))
    manager.fail("a")
    assert world.state_of("a") is ActionState.FAILED


def test_a_quota_failure_waits_for_its_retry_after() -> None:
    world, manager = dispatched()
    manager.end("a", events.AttemptFailed(FailureKind.QUOTA, "too_many_requests", retry_after=20.0))
    manager.live(19.0)
    assert world.state_of("a") is ActionState.QUEUED
    manager.live(1.5)
    assert world.state_of("a") is ActionState.DISPATCHED


def test_a_provider_that_never_wants_to_see_us_again_does_not_stop_the_clock() -> None:
    world, manager = dispatched()
    manager.end("a", events.AttemptFailed(FailureKind.QUOTA, "too_many_requests", retry_after=float("inf")))
    world.wait(1e6 + 1.0)
    assert world.state_of("a") is ActionState.EXPIRED


def test_a_backoff_without_bounds_is_no_overflow() -> None:
    policy = RetryPolicy(max_attempts=1 << 30, initial_backoff=1.0, backoff_multiplier=10.0, max_backoff=30.0)
    assert policy.backoff(5000) == 30.0
    assert RetryPolicy(initial_backoff=0.0, backoff_multiplier=1e300).backoff(3) == 0.0


def test_a_retried_action_keeps_its_place() -> None:
    world, manager = world_with_manager(cores=1)
    world.submit(*(action_request(name, demand=fixed(cpu=1)) for name in ("first", "second", "third")), plan=True)
    manager.start("first")
    manager.fail("first")
    world.wait(1.0)
    assert (manager.grant("first").attempt, manager.has("second")) == (2, False)


def test_a_retry_prefers_another_manager_and_takes_the_same_if_there_is_no_other() -> None:
    world = CoreWorld()
    managers = {name: world.manager(name) for name in ("a", "b")}
    world.job()
    world.submit(action_request("x"), plan=True)
    first = next(name for name, manager in managers.items() if manager.has("x"))
    other = "b" if first == "a" else "a"
    managers[first].start("x")
    managers[first].fail("x")
    world.wait(1.0)
    assert managers[other].grant("x").attempt == 2
    managers[first].disconnect()
    managers[other].fail("x")
    world.wait(1.0)
    assert managers[other].grant("x").attempt == 3


@pytest.mark.parametrize("reward", [False, True])
def test_what_changes_a_sandbox_is_never_replayed_once_started(reward: bool) -> None:
    world, manager = world_with_sandbox()
    kind = ActionKind.REWARD if reward else ActionKind.ENV_STEP
    world.submit(action_request("a", kind, "t", in_sandbox=True), plan=True)
    manager.start("a")
    manager.fail("a")
    assert world.failure("a").kind is FailureKind.INFRA
    world.wait(100.0)
    assert [each.attempt for each in manager.stream.all(commands.Dispatch) if each.request.key.action_id == "a"] == [1]


def test_a_step_that_never_started_is_sent_again() -> None:
    world, manager = world_with_sandbox()
    world.step("a", plan=True)
    manager.fail("a", started=False)
    world.wait(1.0)
    assert manager.grant("a").attempt == 2
    manager.run("a")
    assert world.state_of("a") is ActionState.SUCCEEDED


def test_steps_behind_a_retried_reset_wait_for_it() -> None:
    world, manager = world_with_trajectory()
    world.reset("reset")
    world.step("step", plan=True)
    manager.start("reset")
    manager.fail("reset")
    world.plan()
    assert world.state_of("step") is ActionState.QUEUED
    world.wait(1.0)
    manager.run("reset")
    world.plan()
    assert manager.grant("step").sandbox_id == "reset#2"


def test_steps_of_a_lost_manager_end_as_state_lost_and_others_are_tried_elsewhere() -> None:
    world, manager = world_with_sandbox()
    world.step("running")
    world.step("waiting")
    world.submit(action_request("free"), plan=True)
    manager.start("running")
    manager.start("free")
    spare = world.manager("spare")
    world.wait(9.0)
    spare.heartbeat()
    world.wait(2.0)
    assert "m" not in world.state.managers
    assert (world.failure("running").reason, world.failure("waiting").reason) == ("state_lost", "state_lost")
    world.wait(1.0)
    assert spare.grant("free").attempt == 2


def test_a_manager_that_ends_an_attempt_by_itself_is_an_infrastructure_failure() -> None:
    world, manager = dispatched()
    manager.end("a", events.AttemptCancelled(b"half"))
    assert world.state_of("a") is ActionState.QUEUED
    assert "stopped_by_manager" in world.why("a")


def test_an_end_with_a_stale_token_is_acknowledged_and_changes_nothing() -> None:
    world, manager = dispatched()
    first = manager.grant("a")
    manager.fail("a")
    world.wait(1.0)
    manager.start("a")
    manager.end(first, events.AttemptSucceeded(b"ghost"))
    assert world.state_of("a") is ActionState.RUNNING
    assert manager.stream.last(commands.AcknowledgeEnd).token == first.token
    second = manager.end("a")
    manager.end(second, events.AttemptSucceeded(b"twice"))
    assert world.outcomes[second.request.key].result == events.AttemptSucceeded(b"done")


def test_nobody_else_can_end_an_attempt() -> None:
    world, manager = dispatched()
    thief = world.manager("thief")
    thief.end(manager.grant("a"), events.AttemptSucceeded(b"stolen"))
    assert world.state_of("a") is ActionState.RUNNING
    manager.end("a")
    assert world.outcomes[manager.grant("a").request.key].result == events.AttemptSucceeded(b"done")


def test_the_story_tells_the_whole_life() -> None:
    world, manager = dispatched()
    manager.fail("a")
    world.wait(1.0)
    manager.run("a")
    told = [event for _, event in world.story(manager.grant("a").request.key)]
    assert told == [
        "submitted",
        "attempt 1 dispatched to m: first come, first served: the best fit",
        "attempt 1 started",
        "attempt 1 failed (made_to_fail); again in 0.2 s",
        "attempt 2 dispatched to m: first come, first served: the best fit",
        "attempt 2 started",
        "outcome: succeeded",
    ]
    times = [time for time, _ in world.story(manager.grant("a").request.key)]
    assert times == sorted(times)


def test_queue_time_counts_all_the_waiting_and_nothing_else() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("a"))
    world.wait(2.0)
    manager.start("a")
    world.wait(3.0)
    manager.fail("a")
    world.wait(1.0)
    manager.run("a")
    facts = world.outcomes[manager.grant("a").request.key]
    times = (facts.queue_s, facts.first_dispatched - facts.submitted, facts.ended - facts.submitted)
    assert times == pytest.approx((3.0, 2.0, 6.0))


def test_what_an_action_waited_for_is_no_overhead() -> None:
    world, manager = dispatched()
    world.now += 10.0
    manager.end("a", execution_s=3.0, waited_s={"cores": 4.0, "image": 2.5})
    facts = world.outcomes[key_of("a")]
    assert facts.waited_s == {"cores": 4.0, "image": 2.5}
    assert facts.overhead_s == pytest.approx(0.5)
    assert "waited 4.000 s: cores" in [event for _, event in world.story(key_of("a"))]


def test_attempts_before_the_last_one_are_told_as_such() -> None:
    world, manager = dispatched()
    world.now += 30.0
    manager.fail("a")
    world.wait(0.25)
    manager.start("a")
    world.now += 2.0
    manager.end("a", execution_s=1.5)
    facts = world.outcomes[key_of("a")]
    assert facts.waited_s == {"attempts": pytest.approx(30.0)}
    assert facts.overhead_s == pytest.approx(0.5)


def test_an_attempt_whose_manager_told_no_end_is_no_overhead() -> None:
    world, manager = called_once()
    manager.start("a")
    world.wait(SETTINGS.manager_lease + 1.0)
    facts = world.outcomes[key_of("a")]
    assert world.failure("a").reason == "manager_lost"
    assert facts.waited_s.keys() == {"attempts"}
    assert facts.overhead_s == pytest.approx(0.0)
