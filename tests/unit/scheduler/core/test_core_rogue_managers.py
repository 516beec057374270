"""What a manager says of what it was not given changes nothing: attempts, sandboxes and queued actions of others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKind, ActionState, Token
from callsheet.scheduler.core.words.registration import RunningAttempt, SandboxRef

from tests.support.core_requests import action_request, key_of
from tests.support.core_world import CoreWorld, ended, service, world_with_manager, world_with_sandbox

SANDBOX = SandboxRef("job", "t", "reset#1")


def claim_of(world: CoreWorld, action: str, token: Token) -> RunningAttempt:
    """What a manager says that knows an action's body and claims to run it."""
    request = world.live(action).request
    return RunningAttempt(token, request.key, 1, True, {"cpu": 1}, (0,), request.body_hash)


def test_a_running_attempt_stays_with_who_was_given_it() -> None:
    world, victim = world_with_sandbox()
    world.step("a", plan=True)
    grant = victim.start("a")
    rogue = world.manager("rogue", join=False)
    rogue.join([replace(victim.running(grant), execution_s=1e300)])
    # It reads no payload of what is not its, and is told to leave it.
    assert not world.state.managers["rogue"].attempts
    assert rogue.stream.last(commands.CancelAttempt).token == grant.token
    assert not victim.stream.all(commands.CancelAttempt)
    assert world.state_of("a") is ActionState.RUNNING
    world.handle(ended("rogue", grant, events.AttemptSucceeded(b"forged")))
    assert key_of("a") not in world.outcomes
    victim.end(grant)
    assert world.outcomes[key_of("a")].result == events.AttemptSucceeded(b"done")
    assert victim.free["cpu"] == rogue.free["cpu"] == 4


def test_a_reset_gives_its_sandbox_to_who_made_it() -> None:
    world, victim = world_with_manager()
    world.trajectory("t")
    world.reset("reset", plan=True)
    grant = victim.start("reset")
    rogue = world.manager("rogue", join=False)
    rogue.join([victim.running(grant)])
    victim.end(grant)
    world.step("a", plan=True)
    assert (victim.has("a"), rogue.has("a")) == (True, False)


def test_after_a_restart_an_attempt_waits_for_who_was_given_it() -> None:
    world, victim = world_with_sandbox()
    world.step("a", plan=True)
    grant = victim.start("a")
    after = world.restart()
    rogue = after.manager("rogue", join=False)
    rogue.join([victim.running(grant)])
    after.handle(ended("rogue", grant, events.AttemptSucceeded(b"forged")))
    assert after.state_of("a") is ActionState.DISPATCHED
    after.step("a")
    victim.world = after
    victim.join([victim.running(grant)], [SANDBOX])
    victim.end(grant)
    assert after.outcomes[key_of("a")].result == events.AttemptSucceeded(b"done")


def test_only_who_has_a_sandbox_loses_it() -> None:
    world, victim = world_with_sandbox()
    world.manager("rogue")
    world.handle(events.SandboxLost("rogue", SANDBOX, "because I say so"))
    world.step("a", plan=True)
    victim.run("a")
    assert world.outcomes[key_of("a")].result == events.AttemptSucceeded(b"done")
    world.handle(events.SandboxLost("m", SANDBOX, "it died"))
    world.step("b")
    assert world.failure("b").reason == "state_lost"


@pytest.mark.parametrize("says", ["it runs", "it ended"])
@pytest.mark.parametrize("why_not", ["the sandbox is another's", "it has no service for it", "nobody gave that token"])
def test_a_queued_action_is_not_for_who_knows_its_body(why_not: str, says: str) -> None:
    world, victim = world_with_sandbox()
    world = world.restart()
    victim.world = world
    victim.join([], [SANDBOX])
    kind, trajectory = (ActionKind.ENV_STEP, "t") if "sandbox" in why_not else (ActionKind.REWARD, "")
    world.submit(action_request("a", kind, trajectory))
    tools = [service("tools", [ActionKind.TOOL_CALL])] if "service" in why_not else []
    rogue = world.manager("rogue", *tools, join=False)
    claim = claim_of(world, "a", Token(99, 1) if "token" in why_not else Token(1, 50))
    if says == "it runs":
        rogue.join([claim])
    else:
        rogue.join()
        forged = events.AttemptSucceeded(b"forged")
        world.handle(events.AttemptEnded("rogue", claim.token, claim.key, 1, forged, True, 1.0, claim.body_hash))
    assert world.state_of("a") is ActionState.QUEUED
    assert key_of("a") not in world.outcomes
