"""Jobs in which nothing happens, though somebody holds them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.service.codec.status_answers import job_status

from tests.support.core_requests import action_request, fixed, job_request, key_of, trajectory_request
from tests.support.core_world import SETTINGS, CoreWorld, Stream, world_with_job

IDLE_S = 100.0


def idle_world(own: float | None = None, *, detached: bool = False) -> CoreWorld:
    """A world whose job is held by a session, with the server's idle timeout or one of its own."""
    return world_with_job(
        replace(job_request(grace=50.0), detached=detached, idle_timeout=own, spec=b""),
        settings=replace(SETTINGS, job_idle_timeout=IDLE_S),
    )


def is_open(world: CoreWorld) -> bool:
    """Whether the job is open."""
    return "job" in world.state.jobs


@pytest.mark.parametrize(("own", "after_s"), [(None, IDLE_S), (10.0, 10.0), (1_000.0, 1_000.0)])
def test_a_held_job_in_which_nothing_happens_is_closed(own: float | None, after_s: float) -> None:
    world = idle_world(own)
    world.wait(after_s - 1.0)
    assert is_open(world)
    world.wait(2.0)
    assert not is_open(world)
    with pytest.raises(RefusedError, match=f"its job was idle for {after_s:.0f} s; open it again"):
        world.submit(action_request("a", wait=True))
    world.job()
    with pytest.raises(RefusedError, match="names no open job; open it first"):
        world.trajectory(replace(trajectory_request("t"), job_id="other"))


def test_holding_a_job_is_no_work() -> None:
    world = idle_world()
    for _ in range(11):
        world.wait(10.0)
        if is_open(world):
            world.hold()
    assert not is_open(world)


def test_every_request_about_its_work_keeps_a_job() -> None:
    world = idle_world()
    manager = world.manager()
    manager.live(90.0)
    world.trajectory("t")
    manager.live(90.0)
    world.submit(action_request("a", demand=fixed(cpu=1)), plan=True)
    manager.run("a")
    manager.live(90.0)
    world.watch("a", "late")
    manager.live(90.0)
    world.close_trajectory("t")
    manager.live(90.0)
    assert is_open(world)
    manager.live(11.0)
    assert not is_open(world)


def test_an_open_action_is_work_however_long_it_waits() -> None:
    world = idle_world()
    world.submit(action_request("a", wait=True))
    world.wait(10 * IDLE_S)
    assert is_open(world)
    world.cancel("a")
    world.wait(IDLE_S - 1.0)
    assert is_open(world)
    world.wait(2.0)
    assert not is_open(world)


def test_a_detached_job_is_idle_for_as_long_as_it_likes_unless_it_says_so() -> None:
    world = idle_world(detached=True)
    world.wait(100 * IDLE_S)
    assert is_open(world)
    world = idle_world(10.0, detached=True)
    world.wait(11.0)
    assert not is_open(world)


def test_a_restart_begins_the_time_anew() -> None:
    world = idle_world(detached=True, own=IDLE_S)
    world.wait(90.0)
    world.now += 1_000.0
    after = world.restart()
    after.wait(90.0)
    assert is_open(after)
    after.wait(11.0)
    assert not is_open(after)


def test_what_is_told_of_an_idle_job() -> None:
    world = idle_world()
    manager = world.manager()
    world.submit(action_request("a", demand=fixed(cpu=1)))
    told = job_status(world.state, world.state.jobs["job"], world.now)
    assert not told.HasField("idle_closes_in")
    world.plan()
    manager.run("a")
    manager.live(30.0)
    told = job_status(world.state, world.state.jobs["job"], world.now)
    assert (told.idle_closes_in.seconds, told.spec.idle_timeout.seconds) == (70, 100)
    manager.live(71.0)
    closed = world.state.summaries.of_closed_job(key_of("a"), world.now)
    assert closed is not None
    assert closed.reason == "its job was idle for 100 s"
    after = world.restart()
    manager.world, manager.stream = after, Stream()
    assert after.state.summaries.of_closed_job(key_of("a"), after.now) == closed
