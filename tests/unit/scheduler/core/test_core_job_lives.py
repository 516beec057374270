"""A job that is closed and opened again under its id has nothing of its former life."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKind, ActionState
from callsheet.scheduler.core.words.records import JobOpened
from callsheet.scheduler.core.words.registration import SandboxRef
from callsheet.scheduler.service.opening_jobs import HeldDispatches

from tests.support.core_requests import action_request, fixed, key_of
from tests.support.core_world import CoreWorld, FakeManager, Stream, ended, world_with_manager, world_with_sandbox

OLD_SANDBOX = SandboxRef("job", "t", "reset#1")
CALL = action_request("a", ActionKind.TOOL_CALL, demand=fixed(cpu=1), wait=True)


def away_with_an_attempt(*, restarted: bool) -> tuple[CoreWorld, FakeManager, commands.Dispatch]:
    """A manager runs an attempt and is lost, its job is closed and opened again, and the same action submitted."""
    world, manager = world_with_manager()
    world.submit(CALL, plan=True)
    grant = manager.start("a")
    manager.disconnect()
    world.close_job()
    if restarted:
        world = world.restart()
        manager.world, manager.stream = world, Stream()
    else:
        world.wait(11.0)
    world.outcomes.clear()
    world.job()
    world.submit(CALL)
    return world, manager, grant


@pytest.mark.parametrize("restarted", [False, True])
def test_a_running_attempt_of_the_former_life_is_stopped_and_not_adopted(restarted: bool) -> None:
    world, manager, former = away_with_an_attempt(restarted=restarted)
    manager.join([manager.running(former)])
    assert world.state_of("a") is ActionState.QUEUED
    assert manager.stream.last(commands.CancelAttempt).token == former.token
    assert manager.free["cpu"] == 3, "it still holds its core"
    world.plan()
    grant = manager.start("a")
    assert grant.token != former.token
    manager.end(former, events.AttemptSucceeded(b"of the former life"))
    assert world.state_of("a") is ActionState.RUNNING
    manager.end(grant)
    assert world.outcomes[key_of("a")].result == events.AttemptSucceeded(b"done")
    assert manager.free["cpu"] == 4


@pytest.mark.parametrize("restarted", [False, True])
def test_an_end_that_was_kept_since_the_former_life_is_no_outcome(restarted: bool) -> None:
    world, manager, former = away_with_an_attempt(restarted=restarted)
    manager.join(heartbeat=False)
    manager.end(former, events.AttemptSucceeded(b"of the former life"))
    manager.heartbeat()
    assert manager.stream.last(commands.AcknowledgeEnd).token == former.token
    assert world.state_of("a") is ActionState.QUEUED
    world.plan()
    assert manager.run("a").token != former.token
    assert world.outcomes[key_of("a")].result == events.AttemptSucceeded(b"done")


def test_an_attempt_that_is_reported_before_the_job_is_open_again_is_stopped() -> None:
    world, manager = world_with_manager()
    world.submit(CALL, plan=True)
    former = manager.start("a")
    world.close_job()
    after = world.restart()
    manager.world, manager.stream = after, Stream()
    manager.join([manager.running(former)])
    after.job()
    after.submit(CALL)
    assert after.state_of("a") is ActionState.QUEUED
    assert manager.stream.last(commands.CancelAttempt).token == former.token


def test_a_reset_of_the_former_life_gives_its_sandbox_to_nobody() -> None:
    world, manager = world_with_sandbox()
    world.reset("again", plan=True)
    former = manager.start("again")
    manager.disconnect()
    world.close_job()
    world.wait(11.0)
    world.job()
    world.trajectory("t")
    world.submit(action_request("again", ActionKind.ENV_RESET, "t", wait=True))
    made = ended("m", former)
    manager.join([manager.running(former)], [OLD_SANDBOX, SandboxRef("job", "t", "again#1")])
    world.handle(made)
    world.plan()
    manager.heartbeat()
    released = {each.sandbox.sandbox_id for each in manager.stream.all(commands.ReleaseSandbox)}
    assert released == {"reset#1", "again#1"}
    assert world.live("again").trajectory is not None
    assert manager.start("again").token != former.token


def test_within_one_life_a_manager_that_was_given_up_brings_its_attempt_back() -> None:
    world, manager = world_with_manager()
    world.submit(action_request("a", demand=fixed(cpu=1), wait=True), plan=True)
    grant = manager.start("a")
    manager.disconnect()
    world.wait(11.0)
    manager.join([manager.running(grant)])
    assert world.state_of("a") is ActionState.RUNNING
    manager.end(grant)
    assert world.outcomes[key_of("a")].attempts == 1


@pytest.mark.parametrize("once", [False, True], ids=["the job is not committed", "it may begin only once"])
def test_a_dispatch_waits_for_a_commit_and_all_else_of_its_attempt_behind_it(once: bool) -> None:
    world = CoreWorld()
    manager = world.manager()
    held = HeldDispatches()
    opened = JobOpened("job", b"")
    world.job()
    world.submit(replace(CALL, called_once=once), plan=True)
    dispatch = manager.grant("a")
    assert held.holds(dispatch) == once
    if not once:
        held.persists(opened)
        assert held.holds(dispatch)
        held.committed(opened)
    cancel = commands.CancelAttempt(dispatch.session, dispatch.token, "")
    assert held.holds(cancel), "the dispatch has not gone out yet"
    held.carried_out(dispatch)
    assert held.holds(cancel), "another one waits already"
    held.carried_out(cancel)
    held.carried_out(cancel)
    assert held.holds(dispatch) == once
    if once:
        held.carried_out(dispatch)
    assert not held.holds(cancel)
