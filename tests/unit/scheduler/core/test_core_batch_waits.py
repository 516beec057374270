"""Who waits for batches and keeps their place, leases that nobody has, and groups that would never be whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.scheduler.core.jobs.batches import GROUP_IDLE_S
from callsheet.scheduler.core.state.waiting_takers import MAX_TAKERS, PLACE_KEPT_S
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import GroupRequest, OnInfra, TrajectoryEnd
from callsheet.scheduler.core.words.refusals import RefusedError

from tests.support.core_requests import JOB, job_request, trajectory_request
from tests.support.core_world import SETTINGS, CoreWorld, world_with_job

GROUP = GroupRequest("g", 2, 2)
KEPT_S = 1_600.0


def world_with(*finished: str, kept_s: float = SETTINGS.finished_actions_s) -> CoreWorld:
    world = world_with_job(job_request(), settings=replace(SETTINGS, finished_actions_s=kept_s))
    for name in finished:
        world.trajectory(name)
        world.finish(name)
    return world


def finish(world: CoreWorld, name: str) -> None:
    world.trajectory(name)
    world.finish(name)


def with_a_free_seat(world: CoreWorld) -> CoreWorld:
    """Its group has a finished member, and one that was lost and that nobody replaces."""
    world.trajectories("done", "lost", group=GROUP)
    world.finish("done")
    world.close_trajectory("lost", TrajectoryEnd.LOST)
    return world


def ids_of(world: CoreWorld, batch_id: str) -> list[str]:
    buffer = world.state.jobs[JOB].buffer
    return [each.trajectory_id for each in buffer.members_of(buffer.batches[batch_id])]


def test_who_asks_again_keeps_the_place() -> None:
    world = world_with()
    first, second = world.take("first", 1), world.take("second", 1)
    again = world.take("first", 1)
    finish(world, "a")
    assert (first.given, again.given, second.given) == ([], ["first"], [])


def test_a_place_outlives_its_rpc_for_a_while() -> None:
    world = world_with()
    first, second = world.take("first", 2), world.take("second", 2)
    first.gone = True
    finish(world, "a")
    world.wait(PLACE_KEPT_S / 2)
    again = world.take("first", 2)
    finish(world, "b")
    assert (again.given, second.given) == (["first"], [])
    second.gone = True
    finish(world, "c")
    world.wait(PLACE_KEPT_S)
    third = world.take("third", 2)
    late = world.take("second", 2)
    finish(world, "d")
    assert (third.given, late.given) == (["third"], [])


def test_places_of_ended_rpcs_are_bounded() -> None:
    world = world_with()
    for number in range(3 * MAX_TAKERS):
        world.take(f"b{number}").gone = True
    assert len(world.state.jobs[JOB].buffer.takers) == 0
    assert (
        sum(world.state.jobs[JOB].buffer.takers.has(f"b{number}") for number in range(3 * MAX_TAKERS)) <= MAX_TAKERS + 1
    )


def test_a_batch_that_was_leased_to_a_request_without_answer_goes_back() -> None:
    world = world_with("a")
    missed = world.take("one")
    world.handle(events.BatchMissed(JOB, "one", missed))
    assert world.journal.batches == {}
    assert world.take("two").given == ["two"]


def test_a_batch_that_was_asked_for_again_stays_with_the_newer_request() -> None:
    world = world_with("a")
    missed, newer = world.take("one"), world.take("one")
    world.handle(events.BatchMissed(JOB, "one", missed))
    assert newer.given == ["one"]
    assert ids_of(world, "one") == ["a"]
    world.handle(events.BatchMissed("closed", "one", missed))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_group_without_open_members_ends_after_a_while(restarted: bool) -> None:
    world = with_a_free_seat(world_with())
    if restarted:
        world = world.restart()
    taker = world.take("one")
    world.wait(GROUP_IDLE_S - 1.0)
    assert taker.given == []
    world.wait(1.0)
    assert taker.given == ["one"]
    assert ids_of(world, "one") == ["done"]
    with pytest.raises(RefusedError, match="was cancelled"):
        world.trajectory(trajectory_request("late", group=GROUP))
    assert ids_of(world.restart(), "one") == ["done"]


def test_a_group_whose_member_is_open_does_not_end() -> None:
    world = with_a_free_seat(world_with())
    world.wait(GROUP_IDLE_S / 2)
    world.trajectory(trajectory_request("another", group=GROUP))
    world.wait(GROUP_IDLE_S)
    assert not world.state.jobs[JOB].groups["g"].cancelled
    world.close_trajectory("another", TrajectoryEnd.LOST)
    world.wait(GROUP_IDLE_S - 1.0)
    assert not world.state.jobs[JOB].groups["g"].cancelled
    world.wait(1.0)
    assert world.state.jobs[JOB].groups["g"].cancelled


def test_who_waits_is_given_what_finished_of_a_group_that_is_forgotten() -> None:
    world = with_a_free_seat(world_with(kept_s=KEPT_S))
    taker = world.take("one")
    world.wait(KEPT_S + 100.0)
    assert "g" not in world.state.jobs[JOB].groups
    assert taker.given == ["one"]


def test_a_loss_beyond_the_budget_keeps_its_seat_over_a_restart_though_others_are_forgotten() -> None:
    world = world_with(kept_s=KEPT_S)
    group = GroupRequest("g", 3, 3, OnInfra.REPLACE, 1)
    world.trajectories("open", "lost-first", "lost-second", group=group)
    world.close_trajectory("lost-first", TrajectoryEnd.LOST)
    world.close_trajectory("lost-second", TrajectoryEnd.LOST)
    world.trajectory(trajectory_request("third", group=group))
    world.wait(2 * KEPT_S)
    for each in (world, world.restart()):
        with pytest.raises(RefusedError, match="has all its trajectories"):
            each.trajectory(trajectory_request("fourth", group=group))
    world.close_trajectory("third", TrajectoryEnd.LOST)
    with pytest.raises(RefusedError, match="has all its trajectories"):
        world.trajectory(trajectory_request("fourth", group=group))
    world.close_trajectory("open", TrajectoryEnd.ABANDONED)
    world.wait(2 * KEPT_S)
    assert not world.state.jobs[JOB].closed_trajectories
