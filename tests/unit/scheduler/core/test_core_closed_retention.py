"""Closed trajectories and groups of an open job: kept for a while and within bounds, then forgotten for good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from callsheet.scheduler.core.state.forgotten_ids import ForgottenWork, group_entry, trajectory_entry
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionKind, GroupRequest, Opening, TrajectoryEnd, TrajectoryRequest
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError

from tests.support.closed_view import closed_view
from tests.support.core_requests import action_request, fixed, job_request, trajectory_request
from tests.support.core_world import SETTINGS, CoreWorld, world_with_job

KEPT_S = 1_600.0
GROUP = GroupRequest("g", 3, 3)
COMPLETED, ABANDONED, LOST = TrajectoryEnd.COMPLETED, TrajectoryEnd.ABANDONED, TrajectoryEnd.LOST


def world_of(*trajectories: str, kept: int = 1_000, kept_bytes: int = 1 << 20) -> CoreWorld:
    """A world whose job has had these trajectories, all completed."""
    settings = replace(SETTINGS, finished_actions=kept, finished_actions_bytes=kept_bytes, finished_actions_s=KEPT_S)
    world = world_with_job(job_request("job"), settings=settings)
    world.manager()
    for trajectory_id in trajectories:
        world.trajectory(trajectory_id)
        world.close_trajectory(trajectory_id)
    return world


def sibling(trajectory_id: str, group: GroupRequest = GROUP) -> TrajectoryRequest:
    """A member of a group."""
    return trajectory_request(trajectory_id, group=group)


def forget_all(world: CoreWorld) -> None:
    """Lets everything that is over be forgotten."""
    world.wait(KEPT_S + 120.0)


def refusal_of(ask: Callable[[], object]) -> RefusedError:
    """What is refused."""
    with pytest.raises(RefusedError) as refused:
        ask()
    return refused.value


def test_a_closed_trajectory_is_kept_for_its_time_and_then_forgotten() -> None:
    world = world_of("t")
    world.wait(KEPT_S - 10.0)
    assert world.trajectory("t").opening is Opening.CLOSED
    world.wait(130.0)
    refusal = refusal_of(lambda: world.trajectory("t"))
    assert (refusal.code, refusal.forgotten) == (RefusalCode.ALREADY_EXISTS, True)
    assert "completed" in refusal.rule
    other = refusal_of(lambda: world.trajectory(trajectory_request("t", body="other")))
    assert (other.code, other.forgotten) == (RefusalCode.ALREADY_EXISTS, False)
    job = world.state.jobs["job"]
    assert (job.closed_trajectories, job.trajectory_specs, len(job.closed), world.journal.trajectories) == (
        {},
        {},
        0,
        {},
    )
    assert (job.finished_bytes, job.open_trajectories, job.completed_trajectories) == (0, 0, 1)


def test_what_is_asked_of_a_forgotten_trajectory() -> None:
    world = world_of("t")
    forget_all(world)
    world.close_trajectory("t")
    assert refusal_of(lambda: world.close_trajectory("t", LOST)).code is RefusalCode.ALREADY_EXISTS
    world.cancel_work(trajectory_id="t")
    submitted = refusal_of(lambda: world.step("a", "t"))
    assert (submitted.code, "was closed as completed" in submitted.rule) == (RefusalCode.FAILED_PRECONDITION, True)
    assert refusal_of(lambda: world.cancel_work(trajectory_id="never")).code is RefusalCode.NOT_FOUND


def test_a_trajectory_stays_while_an_action_of_it_is_open() -> None:
    world = world_of()
    manager = world.state.managers["m"]
    world.trajectory("t")
    world.submit(action_request("a", ActionKind.GENERATE, "t", demand=fixed(cpu=1)), plan=True)
    world.close_trajectory("t")
    job = world.state.jobs["job"]
    assert (list(job.closing), job.closed_count, job.open_trajectories) == (["t"], 0, 1)
    before = closed_view(job)
    after = world.restart()
    assert closed_view(after.state.jobs["job"]) == before
    assert manager.attempts
    world.wait(SETTINGS.cancel_grace + 1.0)
    assert (job.closing, job.closed_count, job.open_trajectories) == ({}, 1, 0)
    forget_all(world)
    assert not job.closed_trajectories


def test_the_number_and_the_bytes_are_bounded_together_with_those_of_actions() -> None:
    world = world_of(*(f"t{number}" for number in range(40)), kept=32)
    for number in range(300):
        world.trajectory(f"u{number}")
        world.submit(action_request(f"a{number}", trajectory_id=f"u{number}", wait=True))
        world.close_trajectory(f"u{number}")
        world.wait(0.0)
        assert world.state.finished_actions + world.state.closed_trajectories <= 32
    assert len(world.journal.trajectories) + len(world.journal.actions) <= 32
    large = world_of(kept_bytes=2_000)
    for number in range(100):
        large.trajectory(trajectory_request(f"t{number}", body="x" * 100))
        large.close_trajectory(f"t{number}")
        large.wait(0.0)
        assert large.state.finished_bytes <= 2_000


def test_a_group_is_kept_until_all_its_members_are_closed_and_goes_as_a_whole() -> None:
    world = world_of()
    for name in ("a", "b", "c"):
        world.trajectory(sibling(name))
    world.close_trajectory("a")
    world.close_trajectory("b", ABANDONED)
    forget_all(world)
    job = world.state.jobs["job"]
    assert set(job.closed_trajectories) == {"a", "b"}
    assert job.open_trajectories == 3
    world.close_trajectory("c")
    after = world.restart()
    assert closed_view(after.state.jobs["job"]) == closed_view(job)
    forget_all(world)
    assert (job.groups, job.closed_trajectories) == ({}, {})
    for name in ("a", "d"):
        refusal = refusal_of(lambda: world.trajectory(sibling(name)))  # noqa: B023
        assert (refusal.code, refusal.forgotten) == (RefusalCode.ALREADY_EXISTS, True)
    world.cancel_work("g")
    assert refusal_of(lambda: world.cancel_work("never")).code is RefusalCode.NOT_FOUND


def test_a_member_that_comes_late_keeps_its_siblings() -> None:
    world = world_of()
    world.trajectory(sibling("a"))
    world.close_trajectory("a")
    world.wait(KEPT_S - 60.0)
    world.trajectory(sibling("b"))
    forget_all(world)
    group = world.state.jobs["job"].groups["g"]
    assert (set(group.members), group.completed, group.unfinished) == ({"a", "b"}, 1, 1)
    world.close_trajectory("b")
    world.wait(KEPT_S - 60.0)
    assert world.state.jobs["job"].closed_count == 2
    forget_all(world)
    assert not world.state.jobs["job"].groups


def test_lost_members_of_an_open_group_are_forgotten_alone() -> None:
    world = world_of()
    world.trajectory(sibling("a"))
    for number in range(20):
        world.trajectory(sibling(f"lost{number}"))
        world.close_trajectory(f"lost{number}", LOST)
    forget_all(world)
    job = world.state.jobs["job"]
    assert (set(job.trajectory_specs), job.groups["g"].lost) == ({"a"}, {})
    assert refusal_of(lambda: world.trajectory(sibling("lost3"))).forgotten
    assert world.trajectory(sibling("b")).opening is Opening.CREATED


def test_a_cancelled_group_that_lost_all_its_members_stays_cancelled() -> None:
    world = world_of()
    for name in ("a", "b"):
        world.trajectory(sibling(name))
        world.close_trajectory(name, LOST)
        world.wait(100.0)
    world.cancel_work("g")
    world.wait(KEPT_S - 100.0)
    assert list(world.state.jobs["job"].groups["g"].lost) == ["b"]
    after = world.restart()
    assert "was cancelled" in refusal_of(lambda: after.trajectory(sibling("c"))).rule
    after.wait(200.0)
    assert refusal_of(lambda: after.trajectory(sibling("c"))).forgotten


def test_a_closed_job_forgets_its_trajectories_too() -> None:
    world = world_of("t", "u", kept=1)
    world.wait(0.0)
    world.close_job()
    state = world.state
    assert (state.closed_trajectories, state.open_trajectories, state.spec_bytes, state.finished_bytes) == (0, 0, 0, 0)
    world.job(job_request("job"))
    assert world.trajectory("t").opening is Opening.CREATED


@pytest.mark.parametrize("bound", ["max_open_trajectories", "max_job_open_trajectories", "max_open_bytes"])
def test_open_trajectories_are_bounded(bound: str) -> None:
    few: dict[str, Any] = {bound: 200 if bound == "max_open_bytes" else 2}
    world = world_with_job(job_request("job"), settings=replace(SETTINGS, **few))
    for name in ("a", "b"):
        world.trajectory(sibling(name))
    world.close_trajectory("a")
    refusal = refusal_of(lambda: world.trajectory(sibling("c")))
    assert (refusal.code, refusal.retry_after) == (RefusalCode.RESOURCE_EXHAUSTED, SETTINGS.full_retry_after)
    world.close_trajectory("b")
    assert world.trajectory(sibling("c")).opening is Opening.CREATED


def test_open_jobs_and_what_describes_them_are_bounded() -> None:
    world = CoreWorld(settings=replace(SETTINGS, max_open_jobs=2))
    for job_id in ("a", "b", "b"):
        world.job(job_request(job_id))
    refused = refusal_of(lambda: world.job(job_request("c")))
    assert (refused.code, refused.field) == (RefusalCode.RESOURCE_EXHAUSTED, "job.job_id")
    world.close_job("a")
    large = replace(job_request("c"), spec=b"x" * (1 << 17))
    assert refusal_of(lambda: world.job(large)).code is RefusalCode.INVALID_ARGUMENT
    huge = GroupRequest("g", 10_001, 1)
    assert refusal_of(lambda: world.trajectory(trajectory_request("t", job_id="b", group=huge))).field == (
        "trajectory.group.size"
    )


def test_a_step_forgets_a_bounded_number_of_trajectories() -> None:
    world = world_of(*(f"t{number}" for number in range(600)))
    world.now += 2 * KEPT_S
    kept = [world.state.closed_trajectories]
    while kept[-1]:
        world.handle(events.TimerFired())
        kept.append(world.state.closed_trajectories)
    assert kept == [600, 344, 88, 0]


def test_entries_of_one_id_are_told_apart() -> None:
    forgotten = ForgottenWork()
    forgotten.add(trajectory_entry("a", b"spec", ABANDONED))
    assert ("a" in forgotten, forgotten.has_group("a"), len(forgotten)) == (False, False, 0)
    assert forgotten.recall_trajectory("a", b"spec") == (ABANDONED, True)
    assert forgotten.recall_trajectory("a", b"other") == (ABANDONED, False)
    forgotten.add(group_entry("a"))
    assert (forgotten.has_group("a"), "a" in forgotten) == (True, False)
