"""A job's lease: who holds it, what its expiry gives up, and what a restart leaves of its grace."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from callsheet.scheduler.core.state.scheduler_state import CoreSettings
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKind, ActionState, TrajectoryEnd
from callsheet.scheduler.core.words.refusals import RefusalCode

from tests.support.core_requests import action_request, job_request, key_of
from tests.support.core_world import SETTINGS, CoreWorld, FakeManager, world_with_job
from tests.support.peers import Peer
from tests.support.refusals import refusal

GRACE = 60.0
EXPIRED = "its job expired: no client session held it"
LEASE = SETTINGS.manager_lease


def held_job(grace: float = GRACE, settings: CoreSettings = SETTINGS) -> CoreWorld:
    """A world with a job that one client session, "client", holds."""
    return world_with_job(job_request(grace=grace), settings=settings)


def has_expired(world: CoreWorld) -> bool:
    return world.state.jobs["job"].lease.expired


def with_work() -> tuple[CoreWorld, FakeManager]:
    """As `held_job`, with a finished, a running and a waiting action in a trajectory, and one on its own."""
    world = held_job()
    manager = world.manager()
    world.trajectory("t")
    world.reset("reset", plan=True)
    manager.run("reset")
    world.step("running")
    world.step("waiting", plan=True)
    manager.start("running")
    world.submit(action_request("alone", demand=None, service="nowhere", wait=True))
    return world, manager


def test_the_grace_begins_with_the_end_of_the_last_session() -> None:
    world = held_job()
    world.session = "second"
    world.hold()
    world.end_session("client")
    world.wait(2 * GRACE)
    assert not has_expired(world)
    world.release()
    world.wait(GRACE)
    assert has_expired(world)


@pytest.mark.parametrize("what", ["open", "hold", "trajectory", "close_trajectory", "submit", "cancel", "publish"])
def test_whatever_a_session_says_of_a_job_holds_it(what: str) -> None:
    world = held_job()
    world.trajectory("t")
    world.submit(action_request("a", wait=True, service="nowhere"))
    world.end_session()
    world.session = "second"
    ask: dict[str, Callable[[], object]] = {
        "open": lambda: world.job(job_request(grace=GRACE)),
        "hold": world.hold,
        "trajectory": lambda: world.trajectory("t"),
        "close_trajectory": lambda: world.close_trajectory("t"),
        "submit": lambda: world.submit(action_request("a", wait=True, service="nowhere")),
        "cancel": lambda: world.cancel("a"),
        "publish": lambda: world.publish(1),
    }
    ask[what]()
    world.wait(2 * GRACE)
    assert not has_expired(world)
    assert world.state.jobs["job"].lease.sessions == {Peer("second")}


def test_a_detached_job_needs_no_session() -> None:
    world = CoreWorld()
    world.session = None
    world.job()
    world.wait(1e6)
    assert not has_expired(world)
    assert not has_expired(world.restart())


def test_a_job_that_says_nothing_takes_the_grace_of_the_settings() -> None:
    world = CoreWorld(settings=CoreSettings(job_grace=7.0))
    request = job_request(grace=1.0)
    request = type(request)("job", 1.0, request.priority_class, 0, 0, b"plain")
    world.job(request)
    world.end_session()
    world.wait(6.9)
    assert not has_expired(world)
    world.wait(0.2)
    assert has_expired(world)


def test_an_unknown_job_cannot_be_held_and_what_is_not_held_can_be_released() -> None:
    world = CoreWorld()
    refusal(lambda: world.hold("none"), RefusalCode.NOT_FOUND, "no open job")
    world.release("none")


def test_the_expiry_cancels_what_is_unfinished_closes_trajectories_and_keeps_outcomes() -> None:
    world, manager = with_work()
    world.end_session()
    manager.live(GRACE + 1.0)
    job = world.state.jobs["job"]
    assert job.lease.expired
    assert (job.closed_trajectories["t"].end, job.closed_trajectories["t"].reason) == (TrajectoryEnd.ABANDONED, EXPIRED)
    assert (world.cancellation("waiting").reason, world.cancellation("alone").reason) == (EXPIRED, EXPIRED)
    assert manager.stream.last(commands.CancelAttempt).reason == EXPIRED
    manager.end("running", events.AttemptCancelled())
    assert world.cancellation("running").reason == EXPIRED
    assert manager.stream.last(commands.ReleaseSandbox).sandbox.sandbox_id == "reset#1"
    assert manager.free == {"cpu": 4, "memory": 4096}
    assert world.state_of("reset") is ActionState.SUCCEEDED


def test_an_expired_job_takes_no_new_work_from_who_does_not_hold_it() -> None:
    world = held_job()
    world.submit(action_request("known", wait=True, service="nowhere"))
    world.end_session()
    world.wait(GRACE)
    world.session = None
    for ask in (lambda: world.submit(action_request("a", ActionKind.TOOL_CALL)), lambda: world.trajectory("t")):
        refusal(ask, RefusalCode.FAILED_PRECONDITION, "has expired")
    world.submit(action_request("known", wait=True, service="nowhere"), watcher="unary")
    assert world.delivered[-1] == ("unary", key_of("known"))


def test_an_expired_job_is_closed_in_the_end() -> None:
    world = held_job(settings=CoreSettings(expired_job_lifetime=1000.0))
    world.end_session()
    world.wait(GRACE + 999.0)
    assert has_expired(world)
    world.wait(1.0)
    assert not world.state.jobs
    assert not world.journal.jobs


def test_a_restart_waits_for_clients_a_lease_and_then_goes_on_with_the_grace() -> None:
    world = held_job()
    after = world.restart()
    after.wait(LEASE + GRACE - 1.0)
    assert not has_expired(after)
    after.wait(1.0)
    assert has_expired(after)


def test_a_client_that_comes_back_after_a_restart_holds_its_job_again() -> None:
    after = held_job().restart()
    after.wait(LEASE)
    after.hold()
    after.wait(2 * GRACE)
    assert not has_expired(after)
    assert after.journal.jobs["job"].left is None


def test_the_clock_of_a_lease_stands_still_while_no_scheduler_runs() -> None:
    world = held_job()
    world.end_session()
    world.wait(GRACE / 2)
    world.now += 1e6
    after = world.restart()
    after.wait(LEASE + GRACE / 2 - 1.0)
    assert not has_expired(after)
    after.wait(1.0)
    assert has_expired(after)


def test_a_scheduler_that_restarts_often_keeps_no_dead_job_forever() -> None:
    world = held_job()
    world.end_session()
    lives = 0
    while not has_expired(world):
        world.wait(LEASE + GRACE / 4)
        world = world.restart()
        lives += 1
        assert lives < 10
    assert lives > 1, "one life is less than the grace"


def test_an_expired_job_stays_expired_over_restarts_and_its_time_to_the_close_goes_on() -> None:
    world = held_job(settings=CoreSettings(expired_job_lifetime=1000.0, manager_lease=LEASE))
    world.end_session()
    world.wait(GRACE + 500.0)
    after = world.restart()
    assert has_expired(after)
    after.wait(LEASE + 490.0)
    assert has_expired(after)
    after.wait(70.0)
    assert not after.state.jobs


def test_a_held_job_is_journalled_no_more_often_than_it_has_to_be() -> None:
    world = held_job()
    world.end_session()
    world.wait(1.0)
    before = dict(world.journal.jobs)
    world.hold()
    world.end_session()
    world.hold()
    assert world.journal.jobs == before, "a client that reconnects writes nothing"
