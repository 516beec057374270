"""The buffer of finished trajectories, and the batches that trainers take from it."""

from __future__ import annotations

from functools import partial

import pytest
from callsheet.scheduler.core.state.buffer import KEPT_ACKNOWLEDGED, KEPT_RETURNED
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.state.scheduler_state import CoreSettings
from callsheet.scheduler.core.state.waiting_takers import MAX_TAKERS
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import GroupRequest, TrajectoryEnd
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.core.words.staleness import StalenessPolicy
from callsheet.scheduler.planner.answers.explain import explain_in_parts
from callsheet.scheduler.planner.elastic import ElasticPlanner

from tests.support.core_requests import job_request, trajectory_request
from tests.support.core_world import CoreWorld, world_with_job
from tests.support.refusals import refusal

GIVE_BACK = events.Settlement.GIVE_BACK


def world_with_finished(*names: str) -> CoreWorld:
    world = world_with_job()
    for name in names:
        finish(world, name)
    return world


def finish(world: CoreWorld, name: str, worth: str = "") -> None:
    world.trajectory(name)
    world.finish(name, worth)


def ids_of(world: CoreWorld, batch_id: str) -> list[str]:
    buffer = world.state.jobs["job"].buffer
    return [each.trajectory_id for each in buffer.members_of(buffer.batches[batch_id])]


def test_the_oldest_come_first() -> None:
    world = world_with_finished("a", "b", "c")
    assert world.take("one", 2).given == ["one"]
    assert ids_of(world, "one") == ["a", "b"]
    assert world.take("two", 2).given == []
    assert world.take("three").given == [], "who came first waits for more than that"
    finish(world, "d")
    assert ids_of(world, "two") == ["c", "d"]


def test_who_waits_is_given_a_batch_when_there_are_enough() -> None:
    world = world_with_finished("a")
    gone, patient = world.take("gone", 2), world.take("patient", 2)
    gone.gone = True
    finish(world, "b")
    assert (gone.given, patient.given) == ([], ["patient"])


def test_an_id_again_is_given_the_same_batch() -> None:
    world = world_with_finished("a", "b")
    world.take("one")
    assert world.take("one").given == ["one"]
    assert ids_of(world, "one") == ["a"]
    world.take("waits", 2)
    again = world.take("waits", 2)
    finish(world, "c")
    assert again.given == ["waits"], "the newest of two requests under one id is answered"


def test_a_lease_that_ends_gives_the_batch_back_whole() -> None:
    world = world_with_finished("a", "b")
    world.take("one", 2, lease_s=10.0)
    world.wait(9.0)
    world.settle("one", events.Settlement.EXTEND)
    world.wait(9.0)
    assert ids_of(world, "one") == ["a", "b"]
    waiting = world.take("two", 2)
    world.wait(1.0)
    assert waiting.given == ["two"]
    assert ids_of(world, "two") == ["a", "b"]
    with pytest.raises(RefusedError, match="lease has ended"):
        world.settle("one")


@pytest.mark.parametrize("how", ["seats", "cancelled"])
def test_a_group_below_its_quorum_is_whole_once_no_seat_can_finish(how: str) -> None:
    world = world_with_finished()
    world.trajectories(*"abc", group=GroupRequest("g", 3, 3))
    world.finish("a")
    world.close_trajectory("b", TrajectoryEnd.ABANDONED)
    taker = world.take("one")
    if how == "seats":
        world.close_trajectory("c", TrajectoryEnd.ABANDONED)
    else:
        world.cancel_work("g")
    assert taker.given == ["one"]


def test_a_lost_member_leaves_its_seat_and_the_group_waits_for_another() -> None:
    world = world_with_finished()
    world.trajectories(*"abc", group=GroupRequest("g", 3, 3))
    world.finish("a")
    world.finish("b")
    world.close_trajectory("c", TrajectoryEnd.LOST)
    assert world.take("one", 3).given == []
    world.trajectory(trajectory_request("d", group=GroupRequest("g", 3, 3)))
    world.finish("d")
    assert ids_of(world, "one") == ["a", "b", "d"]


def test_payloads_are_left_to_those_that_collect_idle_ones() -> None:
    world = world_with_job()
    finish(world, "a", "payload")
    world.take("one")
    todo = world.handle(events.BatchSettled(world._reply(), "job", "one", events.Settlement.ACKNOWLEDGE))
    assert not [each for each in todo if isinstance(each, commands.ReleasePayloads)], "an equal one may be on its way"


def test_a_full_buffer_holds_up_new_trajectories_and_no_group_that_has_begun() -> None:
    world = world_with_job(job_request(max_buffered=2), planner=ElasticPlanner())
    world.manager()
    pair = GroupRequest("pair", 2, 2)
    world.trajectories("a", "b")
    world.trajectory(trajectory_request("p1", group=pair))
    world.reset("begun", "p1", plan=True)
    world.finish("a")
    world.finish("b")
    world.trajectory("new")
    world.trajectory(trajectory_request("p2", group=pair))
    for name in ("new", "p2"):
        world.reset(f"reset-{name}", name)
    world.plan()
    trajectories = world.state.jobs["job"].trajectories
    assert trajectories["p2"].admitted_at is not None
    assert trajectories["new"].admitted_at is None
    told = at_once(explain_in_parts(world.state, world.live("reset-new"), world.now, world.planner))
    assert "the buffer holds 2 finished trajectories" in told.sentence
    world.take("one", 2)
    world.plan()
    assert trajectories["new"].admitted_at is None, "what is leased may come back"
    world.settle("one")
    world.plan()
    assert trajectories["new"].admitted_at is not None


def test_requests_have_bounds() -> None:
    world = world_with_job(job_request(max_buffered=8))
    with pytest.raises(RefusedError, match="at most 8"):
        world.take("large", 9)
    takers = [world.take(f"b{number}") for number in range(MAX_TAKERS)]
    refusal(lambda: world.take("one-more"), RefusalCode.RESOURCE_EXHAUSTED)
    takers[0].gone = True
    world.take("one-more")


def test_only_the_newest_acknowledgements_are_remembered() -> None:
    world = world_with_finished(*(f"t{number}" for number in range(KEPT_ACKNOWLEDGED + 1)))
    for number in range(KEPT_ACKNOWLEDGED + 1):
        world.take(f"b{number}")
        world.settle(f"b{number}")
    assert len(world.journal.batches) == KEPT_ACKNOWLEDGED
    with pytest.raises(RefusedError):
        world.settle("b0")


def test_the_clients_of_a_job_are_gone_and_what_they_had_goes_back() -> None:
    world = world_with_job(job_request(grace=5.0))
    finish(world, "a")
    world.take("one", lease_s=1000.0)
    world.end_session()
    world.wait(5.0)
    assert not world.state.jobs["job"].buffer.batches
    assert world.take("two").given == ["two"]


def test_a_closed_job_forgets_its_buffer() -> None:
    world = world_with_finished("a", "b")
    world.take("one")
    world.close_job()
    assert (world.journal.buffered, world.journal.batches) == ({}, {})
    world.job()
    assert world.take("one").given == []


def test_what_is_stale_when_it_is_taken_is_dropped_and_counted() -> None:
    world = world_with_job(job_request(staleness=StalenessPolicy(select_within=1)))
    for name in ("old", "older-sibling"):
        group = None if name == "old" else GroupRequest("g", 2, 2)
        world.trajectory(trajectory_request(name, group=group))
    world.publish(1)
    world.trajectory(trajectory_request("young-sibling", group=GroupRequest("g", 2, 2)))
    world.trajectory("young")
    for name in ("old", "older-sibling", "young-sibling", "young"):
        world.wait(2.0)
        world.finish(name)
    world.publish(2)
    world.take("one")
    assert ids_of(world, "one") == ["young"]
    world.settle("one")
    buffer = world.state.jobs["job"].buffer
    assert {fate: buffer.lengths.total(fate) for fate in ("finished", "stale", "trained")} == {
        "finished": 4,
        "stale": 3,
        "trained": 1,
    }
    assert buffer.staleness == {1: 1}
    assert world.journal.buffered == {}


def test_a_paced_trajectory_that_waits_is_not_evicted() -> None:
    world = world_with_job(job_request(max_staleness=2, staleness=StalenessPolicy(admit_within=1)))
    world.manager(cores=64, memory=1_000_000)
    world.take("v0", 1)
    for name in ("live", "other", "waits"):
        world.trajectory(name)
        world.reset(f"reset-{name}", name, plan=True)
    trajectories = world.state.jobs["job"].trajectories
    assert trajectories["waits"].admitted_at is None
    world.publish(3)
    assert set(trajectories) == {"waits"}


def test_a_job_is_paced_after_a_restart_though_nothing_is_leased() -> None:
    world = world_with_job(job_request(staleness=StalenessPolicy(admit_within=1)))
    world.trajectory("t")
    world.finish("t")
    world.take("v0", 1)
    world.settle("v0")
    assert world.restart().state.jobs["job"].buffer.batch_size == 1


@pytest.mark.parametrize("how", ["lease ended", "given back", "job expired"])
@pytest.mark.parametrize("restarts", [False, True])
def test_an_id_that_went_back_names_no_other_batch(how: str, restarts: bool) -> None:
    world = world_with_job(job_request(grace=5.0))
    for name in "abc":
        finish(world, name)
    world.take("one", lease_s=4.0)
    if how == "given back":
        world.settle("one", GIVE_BACK)
    if how == "job expired":
        world.end_session()
    world.wait(5.0)
    if restarts:
        world = world.restart()
    assert not world.state.jobs["job"].buffer.batches
    refusal(lambda: world.take("one"), RefusalCode.ALREADY_EXISTS, "went back")
    for settlement in events.Settlement:
        refusal(partial(world.settle, "one", settlement), RefusalCode.NOT_FOUND)
    world.take("two", 3)
    assert ids_of(world, "two") == ["a", "b", "c"]


def test_the_id_of_a_request_that_got_no_batch_may_be_used_again() -> None:
    world = world_with_finished("a")
    missed = world.take("one")
    world.handle(events.BatchMissed("job", "one", missed))
    assert world.journal.batches == {}
    assert world.take("one").given == ["one"]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_repeated_request_that_ends_leaves_the_batch_to_who_was_given_it(restarts: bool) -> None:
    world = world_with_finished("a")
    world.take("one")
    if restarts:
        world = world.restart()
    world.handle(events.BatchMissed("job", "one", world.take("one")))
    assert ids_of(world, "one") == ["a"]
    world.settle("one")


def test_only_the_newest_ids_that_went_back_are_remembered() -> None:
    world = world_with_finished("a")
    for number in range(KEPT_RETURNED + 1):
        world.take(f"b{number}")
        world.settle(f"b{number}", GIVE_BACK)
    assert len(world.journal.batches) == KEPT_RETURNED
    assert world.take("b0").given == ["b0"]


def refusal_of_finish(world: CoreWorld, name: str, group: GroupRequest | None = None) -> RefusedError | None:
    if name not in world.state.jobs["job"].trajectories:
        world.trajectory(trajectory_request(name, group=group))
    try:
        world.finish(name)
    except RefusedError as refused:
        return refused
    return None


def test_a_buffer_has_a_hard_bound_and_says_when_to_come_again() -> None:
    world = world_with_job(job_request(max_buffered=5))
    assert [refusal_of_finish(world, f"t{number}") for number in range(10)] == [None] * 10
    refusal = refusal_of_finish(world, "late")
    assert refusal is not None
    assert (refusal.code, refusal.field, refusal.retry_after) == (RefusalCode.RESOURCE_EXHAUSTED, "result", 1.0)
    assert "late" in world.state.jobs["job"].trajectories, "it may finish later"
    assert len(world.journal.buffered) == 10
    world.finish("t9")
    world = world.restart()
    assert refusal_of_finish(world, "late") is not None
    world.take("one", 5)
    assert refusal_of_finish(world, "late") is not None, "what is leased may come back"
    world.settle("one")
    assert refusal_of_finish(world, "late") is None
    assert world.state.jobs["job"].buffer.count == len(world.journal.buffered) == 6


def test_a_trajectory_that_waits_for_room_is_not_idle() -> None:
    world = world_with_job(job_request(max_buffered=1))
    for name in ("a", "b"):
        finish(world, name)
    world.trajectory(trajectory_request("late", idle_timeout=10.0))
    for _ in range(4):
        world.wait(6.0)
        assert refusal_of_finish(world, "late") is not None
    world.wait(11.0)
    assert "late" not in world.state.jobs["job"].trajectories


def test_what_requests_wait_for_finishes_in_a_full_buffer() -> None:
    """Of groups the oldest alone: the others would fill the buffer, and none would be whole."""
    world = world_with_job(job_request(max_buffered=4))
    groups = {name: GroupRequest(name, 4, 4) for name in ("g", "h", "i")}
    for number in range(3):
        for name, group in groups.items():
            if number < 2 or name != "i":
                assert refusal_of_finish(world, f"{name}{number}", group) is None
    assert world.state.jobs["job"].buffer.count == 8
    assert refusal_of_finish(world, "g3", groups["g"]) is not None, "nobody waits"
    taker = world.take("one", 4)
    for name in "ih":
        assert refusal_of_finish(world, f"{name}3", groups[name]) is not None
    assert refusal_of_finish(world, "g3", groups["g"]) is None
    assert taker.given == ["one"]
    assert refusal_of_finish(world, "alone") is not None
    world.take("two", 4)
    assert refusal_of_finish(world, "h3", groups["h"]) is None
    assert ids_of(world, "two") == ["h0", "h1", "h2", "h3"]


def test_a_group_that_never_fits_is_refused_when_it_is_opened() -> None:
    world = world_with_job(job_request(max_buffered=4))
    world.trajectory(trajectory_request("fits", group=GroupRequest("g", 20, 8)))
    assert (
        refusal(
            lambda: world.trajectory(trajectory_request("large", group=GroupRequest("h", 20, 9))),
            RefusalCode.INVALID_ARGUMENT,
            "at most 8",
        ).field
        == "trajectory.group.quorum"
    )


@pytest.mark.parametrize("bound", ["max_open_bytes", "max_job_open_bytes"])
def test_a_buffer_is_bounded_in_bytes(bound: str) -> None:
    world = CoreWorld(settings=CoreSettings(**{bound: 1000}))  # type: ignore[arg-type]
    world.job()
    world.trajectory("a")
    world.trajectory("b")
    world.finish("a", "x" * 600)
    assert refusal(lambda: world.finish("b", "x" * 600), RefusalCode.RESOURCE_EXHAUSTED, "1000").retry_after == 1.0
    world.take("one")
    world.settle("one")
    world.finish("b", "x" * 600)
