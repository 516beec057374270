"""What stays of the actions of a closed job, for how long, and what explain says of them."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest
from callsheet.scheduler.core.state.summaries import MAX_CLOSED_JOBS, Summaries
from callsheet.scheduler.core.words.model import ActionKey, FailureKind
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.service.codec.admin_explain import explanation_of
from callsheet.v1 import admin_service_pb2, common_pb2

from tests.support.core_requests import action_request, job_request, key_of
from tests.support.core_world import SETTINGS, CoreWorld, world_with_job, world_with_manager


def explained(world: CoreWorld, action: str, job: str = "job") -> admin_service_pb2.ExplainResponse:
    asked = common_pb2.ActionKey(job_id=job, action_id=action)
    return anyio.run(explanation_of, world.state, asked, world.now, Predictors(), FirstComePlanner())


def refusal(world: CoreWorld, action: str, job: str = "job") -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        explained(world, action, job)
    return caught.value


def world_with_closed_job(kept: int = 10_000) -> CoreWorld:
    """Its job had the actions "done" and "failed" with an outcome, and "waits" without one."""
    world = world_with_job(settings=replace(SETTINGS, closed_actions=kept, closed_actions_s=3600.0))
    manager = world.manager("m")
    for name in ("done", "failed"):
        world.submit(action_request(name))
        world.propose(name, "m")
    manager.run("done")
    manager.start("failed")
    manager.fail("failed", FailureKind.ENV)
    world.submit(action_request("waits"))
    world.close_job()
    return world


def test_an_open_jobs_action_is_known_after_a_restart_and_a_close() -> None:
    world, manager = world_with_manager("m")
    world.submit(action_request("a"))
    world.propose("a", "m")
    manager.run("a")
    after = world.restart()
    assert explained(after, "a").explanation.startswith("it has its outcome: succeeded; ")
    after.close_job()
    assert explained(after, "a").job_closed


def test_an_hour_later_it_is_forgotten() -> None:
    world = world_with_closed_job()
    world.wait(3599.0)
    assert explained(world, "done").job_closed
    world.wait(1.0)
    told = refusal(world, "done")
    assert (told.code, told.rule) == (RefusalCode.NOT_FOUND, "is forgotten: its job was closed more than 1 h ago")
    assert "jobs closed within 1 h" in refusal(world, "done", job="").rule


def test_what_was_never_seen_is_not_called_forgotten() -> None:
    world = world_with_closed_job()
    assert refusal(world, "done", job="other").rule.startswith("names no action of an open job")
    assert "or never was" in refusal(world, "never").rule


def test_none_are_kept_where_none_are_wanted() -> None:
    world = world_with_closed_job(kept=0)
    assert world.journal.closed == []
    assert "more than 0 actions of closed jobs came after" in refusal(world, "done").rule


def test_two_closed_jobs_with_one_action_id_must_be_told_apart() -> None:
    world = world_with_closed_job()
    world.job(job_request("second"))
    world.submit(action_request("done", job_id="second"))
    world.close_job("second")
    told = refusal(world, "done", job="")
    assert (told.code, told.field) == (RefusalCode.FAILED_PRECONDITION, "key.job_id")
    assert "job, second" in told.rule


def test_a_job_that_is_opened_and_closed_again_has_the_newer_action() -> None:
    world = world_with_closed_job()
    world.outcomes.clear()
    world.job()
    world.submit(action_request("done"))
    world.close_job()
    assert explained(world, "done").state == admin_service_pb2.ACTION_STATE_CANCELLED
    assert explained(world.restart(), "done").state == admin_service_pb2.ACTION_STATE_CANCELLED


def test_ids_of_closed_jobs_are_bounded() -> None:
    summaries = Summaries(kept=3, kept_s=10.0)
    for number in range(MAX_CLOSED_JOBS + 2):
        summaries.close_job(f"job-{number}", [], float(number))
    assert [summaries.closed_at(f"job-{number}") for number in range(4)] == [None, None, 2.0, 3.0]
    assert summaries.of_closed_job(ActionKey("job-4", "a"), 5.0) is None
    assert summaries.of_open_job(key_of("a")) is None


def test_a_failure_says_its_kind_and_reason() -> None:
    found = explained(world_with_closed_job(), "failed")
    assert found.state == admin_service_pb2.ACTION_STATE_FAILED
    assert "failed (ENV " in found.explanation
