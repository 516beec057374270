"""A sandbox that died while a command ran in it: what runs there may have brought that about."""

from __future__ import annotations

import pytest
from callsheet.cli.output import failures_of
from callsheet.client import JobDescription, JobStatus
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionKind, FailureKind
from callsheet.scheduler.core.words.registration import SandboxRef

from tests.support.core_requests import action_request, job_request
from tests.support.core_world import CoreWorld, FakeManager, world_with_job

DIED = events.AttemptFailed(FailureKind.ENV, "state_lost", "the sandbox died while a command ran in it")
LOST = events.SandboxLost("m", SandboxRef("job", "t", "reset#1"), "the process is gone")


def running(*, infra: bool = False) -> tuple[CoreWorld, FakeManager]:
    """A world where one step runs and another waits."""
    world = world_with_job(job_request(dead_sandbox_is_infra=infra))
    manager = world.manager("m")
    world.trajectory("t")
    world.reset("reset", plan=True)
    manager.run("reset")
    world.step("step")
    world.step("waiting", plan=True)
    manager.start("step")
    return world, manager


@pytest.mark.parametrize(("infra", "kind"), [(False, FailureKind.ENV), (True, FailureKind.INFRA)])
@pytest.mark.parametrize("told_first", [True, False])
def test_its_action_and_those_behind_it_fail_as_their_job_wants_it(
    *, infra: bool, kind: FailureKind, told_first: bool
) -> None:
    world, manager = running(infra=infra)
    if told_first:
        world.handle(LOST)
        manager.end("step", DIED)
    else:
        manager.end("step", DIED)
        world.handle(LOST)
    world.step("late")
    for name in ("step", "waiting", "late"):
        assert (world.failure(name).kind, world.failure(name).reason) == (kind, "state_lost"), name
    assert world.state.jobs["job"].dead_sandboxes == 1
    assert world.state.jobs["job"].failure_counts == {kind.name.lower(): 3}


@pytest.mark.parametrize("told_first", [True, False])
def test_a_restart_of_the_scheduler_does_not_forget_it(*, told_first: bool) -> None:
    world, manager = running()
    if told_first:
        world.handle(LOST)
    manager.end("step", DIED)
    if not told_first:
        world.handle(LOST)
    again = world.restart()
    again.step("late")
    assert (again.failure("late").kind, again.failure("late").reason) == (FailureKind.ENV, "state_lost")


def test_one_that_ran_out_of_memory_is_the_same_for_those_behind() -> None:
    world, manager = running()
    world.handle(LOST)
    manager.end("step", events.AttemptFailed(FailureKind.RESOURCE_LIMIT, "out_of_memory"))
    assert world.failure("step").kind is FailureKind.RESOURCE_LIMIT
    assert (world.failure("waiting").kind, world.state.jobs["job"].dead_sandboxes) == (FailureKind.ENV, 0)


def test_a_reset_begins_anew_and_what_outside_ends_is_nobodys_fault() -> None:
    world, manager = running()
    world.handle(LOST)
    manager.end("step", DIED)
    world.reset("again", plan=True)
    manager.run("again")
    world.handle(events.SandboxLost("m", SandboxRef("job", "t", "again#1"), "its machine is gone"))
    world.step("after")
    assert world.failure("after").kind is FailureKind.INFRA


def test_a_reward_in_a_sandbox_of_its_own_is_tried_again_only_where_nobody_inside_is_to_blame() -> None:
    for infra in (True, False):
        world = world_with_job(job_request(dead_sandbox_is_infra=infra))
        manager = world.manager("m")
        world.submit(action_request("reward", ActionKind.REWARD), plan=True)
        manager.start("reward")
        manager.end("reward", DIED)
        assert ("reward" in [key.action_id for key in world.outcomes]) == (not infra)


def test_their_share_is_told() -> None:
    job = JobStatus(JobDescription("job"), actions={"succeeded": 37, "failed": 3, "queued": 9}, failures={"env": 3})
    assert failures_of(job) == "env 3"
    job = JobStatus(job.spec, actions=job.actions, failures=job.failures, dead_sandboxes=2)
    assert failures_of(job) == "env 3; sandbox died 2 (5.0%)"
