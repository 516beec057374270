"""Attempts whose submits were lost with a scheduler: kept for their clients to submit again, or stopped."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKind, ActionState, FailureKind, Timeouts
from callsheet.scheduler.core.words.registration import SandboxRef

from tests.support.core_requests import action_request, key_of
from tests.support.core_world import (
    SETTINGS,
    CoreWorld,
    FakeManager,
    Stream,
    world_with_manager,
    world_with_sandbox,
    world_with_trajectory,
)

SANDBOX = SandboxRef("job", "t", "reset#1")


def uncommitted(
    kind: ActionKind = ActionKind.ENV_STEP, before: tuple[CoreWorld, FakeManager] | None = None
) -> tuple[CoreWorld, FakeManager, commands.Dispatch]:
    """A submit was dispatched but not committed when the scheduler died; its client has no answer yet."""
    world, manager = before or world_with_sandbox()
    saved = deepcopy(world.journal)
    world.submit(action_request("a", kind, "t"), plan=True)
    grant = manager.start("a")
    after = world.restart(saved)
    manager.world, manager.stream = after, Stream()
    return after, manager, grant


def test_an_orphan_is_adopted_when_its_submit_comes_again() -> None:
    after, manager, grant = uncommitted()
    manager.join([manager.running(grant)], [SANDBOX])
    after.wait(1.0)
    after.step("a")
    assert after.state_of("a") is ActionState.RUNNING
    assert manager.free["cpu"] == 3
    after.plan()
    assert not manager.has("a")
    manager.end(grant)
    assert after.outcomes[key_of("a")].result == events.AttemptSucceeded(b"done")
    assert manager.free["cpu"] == 4


def test_an_orphan_that_ended_waits_for_its_submit() -> None:
    after, manager, grant = uncommitted()
    manager.join([], [SANDBOX], heartbeat=False)
    manager.end(grant)
    manager.heartbeat()
    assert not manager.stream.all(commands.AcknowledgeEnd)
    after.step("a")
    assert after.outcomes[key_of("a")].result == events.AttemptSucceeded(b"done")
    assert (manager.stream.last(commands.AcknowledgeEnd).token, manager.free["cpu"]) == (grant.token, 4)


@pytest.mark.parametrize("kind", [ActionKind.ENV_STEP, ActionKind.ENV_RESET])
def test_results_of_orphans_are_bounded_and_none_runs_again_for_that(kind: ActionKind) -> None:
    world, manager = world_with_sandbox()
    world.settings = replace(world.settings, max_orphan_bytes=4_000)
    after, manager, grant = uncommitted(kind, (world, manager))
    manager.join([], [SANDBOX], heartbeat=False)
    made = ("made", "t") if kind is ActionKind.ENV_RESET else ()
    manager.end(grant, events.AttemptSucceeded(b"x" * 10_000, *made))
    manager.heartbeat()
    assert after.state.orphan_bytes < 4_000
    released = [each.sandbox.sandbox_id for each in manager.stream.all(commands.ReleaseSandbox)]
    assert ("made" in released) == (kind is ActionKind.ENV_RESET)
    after.submit(action_request("a", kind, "t"))
    assert after.state.orphan_bytes == 0
    if kind is ActionKind.ENV_RESET:
        # It may be repeated, so its client need not even know.
        assert after.state_of("a") is ActionState.QUEUED
        return
    result = after.outcomes[key_of("a")].result
    assert isinstance(result, events.AttemptFailed)
    assert (result.kind, result.reason) == (FailureKind.INFRA, "result_dropped")


def test_an_attempt_that_does_not_end_keeps_no_body_of_an_action_that_is_over() -> None:
    world, manager = world_with_manager()
    world.submit(replace(action_request("a"), spec=b"x" * 100_000), plan=True)
    grant = manager.start("a")
    world.cancel("a")
    manager.live(SETTINGS.cancel_grace + 1.0)
    assert world.outcomes[key_of("a")].state is ActionState.CANCELLED
    assert world.state.attempts[grant.token].action.request.spec == b""


def test_an_end_of_an_orphan_after_its_submit_is_its_outcome() -> None:
    after, manager, grant = uncommitted()
    after.step("a")
    manager.join([], [SANDBOX], heartbeat=False)
    manager.end(grant)
    assert after.outcomes[key_of("a")].result == events.AttemptSucceeded(b"done")


def test_an_orphaned_reset_brings_its_sandbox() -> None:
    after, manager, grant = uncommitted(ActionKind.ENV_RESET, world_with_trajectory())
    manager.join([], [SandboxRef("job", "t", "a#1")], heartbeat=False)
    manager.end(grant)
    manager.heartbeat()
    assert not manager.stream.all(commands.ReleaseSandbox)
    after.reset("a")
    after.step("step", plan=True)
    assert manager.grant("step").sandbox_id == "a#1"
    assert manager.free["memory"] == 4096 - 256


def test_an_orphan_of_another_body_is_stopped_and_not_adopted() -> None:
    after, manager, grant = uncommitted()
    manager.join([manager.running(grant)], [SANDBOX])
    after.submit(action_request("a", ActionKind.ENV_STEP, "t", body="other"), plan=True)
    assert manager.grant("a").token != grant.token
    manager.run("a")
    assert after.outcomes[key_of("a")].attempts == 1


def test_an_orphan_nobody_submits_again_is_stopped() -> None:
    after, manager, grant = uncommitted()
    manager.join([manager.running(grant)], [SANDBOX])
    manager.live(61.0)
    assert manager.stream.last(commands.CancelAttempt).token == grant.token
    manager.end(grant, events.AttemptCancelled())
    manager.live(61.0)
    assert manager.stream.last(commands.AcknowledgeEnd).token == grant.token
    assert not after.state.orphans


def test_orphans_of_a_lost_manager_are_forgotten() -> None:
    after, manager, grant = uncommitted()
    manager.join([manager.running(grant)], [SANDBOX])
    after.wait(11.0)
    assert not after.state.orphans
    after.step("a")
    assert after.failure("a").reason == "state_lost"


def test_of_two_orphans_of_one_action_the_later_attempt_counts() -> None:
    world, manager = world_with_sandbox()
    spare = world.manager("spare")
    saved = deepcopy(world.journal)
    timeouts = Timeouts(1000.0, 1000.0, 1000.0, heartbeat=5.0)
    request = action_request("a", ActionKind.GENERATE, timeouts=timeouts)
    world.submit(request)
    world.propose("a", "m")
    first = manager.start("a")
    for _ in range(6):
        manager.live(1.0)
        spare.heartbeat()
    second = spare.start("a")
    after = world.restart(saved)
    for each in (manager, spare):
        each.world, each.stream = after, Stream()
    spare.join([spare.running(second)])
    manager.join([manager.running(first)], [SANDBOX])
    assert manager.stream.last(commands.CancelAttempt).token == first.token
    after.submit(request)
    spare.end(second)
    assert after.outcomes[key_of("a")].attempts == 2


def test_an_adopted_attempt_is_in_the_journal_so_its_cancel_outlives_another_restart() -> None:
    world, manager = world_with_manager()
    world.submit(action_request("a"))
    without_dispatch = deepcopy(world.journal)
    world.plan()
    grant = manager.start("a")
    after = manager.world = world.restart(without_dispatch)
    manager.join([manager.running(grant)])
    assert after.state_of("a") is ActionState.RUNNING
    after.cancel("a")
    again = manager.world = after.restart()
    again.watch("a", "late")
    manager.join([manager.running(grant)])
    assert manager.stream.last(commands.CancelAttempt).token == grant.token
    manager.end(grant, events.AttemptCancelled())
    assert again.cancellation("a")
