"""Groups with a quorum, staleness, and trajectories that nobody uses."""

from __future__ import annotations

from functools import partial

import pytest
from callsheet.scheduler.core.words import commands
from callsheet.scheduler.core.words.model import (
    GroupRequest,
    OnInfra,
    Opened,
    Opening,
    TrajectoryEnd,
)
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError

from tests.support.core_requests import job_request, trajectory_request
from tests.support.core_world import CoreWorld, FakeManager, world_with_job, world_with_manager
from tests.support.refusals import refusal

GROUP = GroupRequest("g", 3, 2)


def group_of_three() -> tuple[CoreWorld, FakeManager]:
    world, manager = world_with_manager()
    world.trajectories("a", "b", "c", group=GROUP)
    return world, manager


def test_abandoned_siblings_do_not_count() -> None:
    world, _ = group_of_three()
    world.close_trajectory("a", TrajectoryEnd.ABANDONED)
    world.close_trajectory("b")
    assert set(world.state.jobs["job"].trajectories) == {"c"}
    world.close_trajectory("b")
    assert set(world.state.jobs["job"].trajectories) == {"c"}, "one sibling counts once"


def test_groups_of_two_jobs_with_one_name_are_two_groups() -> None:
    world, _ = group_of_three()
    world.job(job_request("other"))
    world.trajectory(trajectory_request("x", job_id="other", group=GroupRequest("g", 1, 1)))
    world.close_trajectory("x", job_id="other")
    assert len(world.state.jobs["job"].trajectories) == 3


def test_the_count_of_a_group_survives_a_restart() -> None:
    world, _ = group_of_three()
    world.close_trajectory("a")
    after = world.restart()
    after.close_trajectory("b")
    assert not after.state.jobs["job"].trajectories


def test_a_lost_member_leaves_its_seat_to_another_also_over_a_restart() -> None:
    world, _ = group_of_three()
    with pytest.raises(RefusedError, match="has all its trajectories"):
        world.trajectory(trajectory_request("d", group=GROUP))
    world.close_trajectory("a", TrajectoryEnd.LOST)
    after = world.restart()
    assert after.trajectory(trajectory_request("d", group=GROUP)) == Opened(Opening.CREATED)
    with pytest.raises(RefusedError, match="has all its trajectories"):
        after.trajectory(trajectory_request("e", group=GROUP))
    after.close_trajectory("b")
    assert set(after.state.jobs["job"].trajectories) == {"c", "d"}, "a lost member is not counted as completed"
    after.close_trajectory("c")
    assert not after.state.jobs["job"].trajectories


def test_a_cancelled_group_closes_its_members_and_takes_no_more_also_after_a_restart() -> None:
    world, _ = world_with_manager()
    world.trajectories("a", "b", group=GROUP)
    world.trajectory("apart")
    world.reset("reset", "b")
    world.close_trajectory("a")
    world.cancel_work("g", reason="the prompt is bad")
    assert set(world.state.jobs["job"].trajectories) == {"apart"}
    assert world.cancellation("reset").reason == "the prompt is bad"
    assert world.state.jobs["job"].closed_trajectories["a"].end is TrajectoryEnd.COMPLETED
    for each in (world, world.restart()):
        refusal(
            partial(each.trajectory, trajectory_request("c", group=GROUP)),
            RefusalCode.FAILED_PRECONDITION,
            "was cancelled",
        )
        each.cancel_work("g")
        assert each.state.jobs["job"].closed_trajectories["b"].reason == "the prompt is bad"


def test_a_cancelled_trajectory_is_closed_as_abandoned_and_a_closed_one_stays_as_it_is() -> None:
    world, _ = group_of_three()
    world.cancel_work(trajectory_id="a")
    assert world.state.jobs["job"].closed_trajectories["a"].reason == "cancelled by its client"
    world.close_trajectory("b")
    world.cancel_work(trajectory_id="b")
    assert world.state.jobs["job"].closed_trajectories["b"].end is TrajectoryEnd.COMPLETED
    for what in ({"trajectory_id": "none"}, {"group_id": "none"}):
        assert refusal(partial(world.cancel_work, **what), RefusalCode.NOT_FOUND, "names no").field == next(iter(what))


def test_a_trajectory_remembers_the_version_it_began_with_over_a_restart() -> None:
    world = world_with_job(job_request(max_staleness=1))
    world.trajectory("old")
    world.publish(1)
    world.trajectory("new")
    after = world.restart()
    after.publish(2)
    assert set(after.state.jobs["job"].trajectories) == {"new"}


def test_an_idle_trajectory_is_closed_and_its_sandbox_released() -> None:
    world, manager = world_with_manager()
    world.trajectory(trajectory_request("t", idle_timeout=30.0))
    manager.live(20.0)
    world.reset("reset", plan=True)
    manager.start("reset")
    manager.live(60.0)
    assert "t" in world.state.jobs["job"].trajectories, "it is not idle while it has an action"
    manager.end("reset")
    manager.live(29.0)
    assert "t" in world.state.jobs["job"].trajectories
    manager.live(32.0)
    assert world.state.jobs["job"].closed_trajectories["t"].end is TrajectoryEnd.ABANDONED
    assert manager.stream.all(commands.ReleaseSandbox)


def test_a_trajectory_past_its_deadline_is_closed_whatever_it_does_and_a_restart_does_not_put_it_off() -> None:
    world, manager = world_with_manager()
    world.trajectory(trajectory_request("t", idle_timeout=30.0, deadline=100.0))
    world.reset("reset", plan=True)
    grant = manager.start("reset")
    manager.live(60.0)
    after = world.restart()
    manager.world = after
    manager.join([manager.running(grant)])
    manager.live(39.0)
    assert "t" in after.state.jobs["job"].trajectories
    manager.live(2.0)
    closed = after.state.jobs["job"].closed_trajectories["t"]
    assert (closed.end, closed.reason) == (TrajectoryEnd.ABANDONED, "its trajectory reached its deadline of 100 s")
    assert manager.stream.last(commands.CancelAttempt).reason == closed.reason


def group_that(on_infra: OnInfra, size: int = 3, quorum: int = 3, budget: int | None = None) -> CoreWorld:
    world = world_with_job()
    world.trajectories(*"abc"[:size], group=GroupRequest("g", size, quorum, on_infra, budget))
    return world


def test_a_masked_member_counts_towards_the_quorum_and_has_no_result() -> None:
    world = group_that(OnInfra.MASK)
    world.close_trajectory("a", TrajectoryEnd.LOST)
    world.finish("b")
    taker = world.take("one", 2)
    world.finish("c")
    group = world.state.jobs["job"].groups["g"]
    assert (group.masked, group.has_quorum, taker.given) == ({"a"}, True, ["one"])
    assert world.restart().state.jobs["job"].groups["g"].masked == {"a"}


@pytest.mark.parametrize("on_infra", OnInfra)
def test_beyond_its_budget_a_lost_member_has_failed_and_keeps_its_seat(on_infra: OnInfra) -> None:
    world = group_that(on_infra, budget=1)
    world.finish("a")
    world.close_trajectory("b", TrajectoryEnd.LOST)
    world.close_trajectory("c", TrajectoryEnd.LOST)
    group = world.state.jobs["job"].groups["g"]
    replaced = on_infra is OnInfra.REPLACE
    assert list(group.lost) == (["b"] if replaced else [])
    assert (len(group.masked), len(group.dropped)) == (on_infra is OnInfra.MASK, on_infra is OnInfra.DROP)
    assert not group.has_quorum
    taker = world.take("one")
    assert taker.given == ([] if replaced else ["one"])
    if replaced:
        request = GroupRequest("g", 3, 3, on_infra, 1)
        world.trajectory(trajectory_request("d", group=request))
        world.close_trajectory("d", TrajectoryEnd.LOST)
        with pytest.raises(RefusedError, match="has all its trajectories"):
            world.trajectory(trajectory_request("e", group=request))
        assert taker.given == ["one"]
