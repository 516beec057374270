"""Pacing: which trajectories may begin, so that none becomes too stale and no trainer waits for ever."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from callsheet.scheduler.core.jobs.pacing import may_begin
from callsheet.scheduler.core.state.buffer import Buffer
from callsheet.scheduler.core.words.events import PlanReady
from callsheet.scheduler.core.words.model import ActionKind, GroupRequest, TrajectoryEnd
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.core.words.staleness import OnTheWay, StalenessPolicy, room_to_begin
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.core_requests import JOB, action_request, job_request
from tests.support.core_world import SETTINGS, CoreWorld, world_with_job


def paced_world(within: int = 0, *, max_buffered: int = 0) -> CoreWorld:
    """A job that is paced; its manager takes what comes."""
    world = world_with_job(job_request(staleness=StalenessPolicy(admit_within=within), max_buffered=max_buffered))
    world.manager(cores=64, memory=1_000_000)
    return world


def ask(world: CoreWorld, *names: str, group: GroupRequest | None = None) -> None:
    """Opens trajectories and has them wait for their beginning."""
    for name in names:
        world.trajectories(name, group=group)
        world.submit(action_request(f"call-{name}", ActionKind.TOOL_CALL, name))


def begun(world: CoreWorld) -> set[str]:
    """Plans once; returns the open trajectories that have begun."""
    world.plan()
    return {name for name, each in world.state.jobs[JOB].trajectories.items() if each.admitted_at is not None}


@pytest.mark.parametrize("max_buffered", [0, 2])
def test_several_trainers_that_wait_for_each_other_get_a_batch_each(max_buffered: int) -> None:
    world = paced_world(max_buffered=max_buffered)
    ranks = [world.take(f"rank-{number}", 2) for number in range(3)]
    ask(world, *(f"t{number}" for number in range(8)))
    for _ in range(3):
        for name in begun(world):
            world.finish(name)
    assert [rank.given for rank in ranks] == [["rank-0"], ["rank-1"], ["rank-2"]]
    assert begun(world) == set(), "nobody waits, and one batch is all that may be on its way"


def test_who_no_longer_waits_asks_for_nothing() -> None:
    world = paced_world()
    gone = world.take("gone", 4)
    gone.gone = True
    world.take("here", 1)
    ask(world, *(f"t{number}" for number in range(8)))
    assert len(begun(world)) == 4, "the usual size is the larger of two"
    for name in begun(world):
        world.finish(name)
    assert begun(world) == set(), "three are ready"


@pytest.mark.parametrize(("sizes", "usual"), [([64], 64), ([1, 64], 64), ([64, 1], 64), ([64, 64, 1, 2048], 64)])
def test_a_stray_request_changes_no_pace(sizes: list[int], usual: int) -> None:
    buffer = Buffer()
    buffer.sizes.extend(sizes)
    assert buffer.batch_size == usual


def test_a_job_whose_trainer_asks_for_another_size_is_paced_by_that_in_time() -> None:
    buffer = Buffer()
    buffer.sizes.extend([64] * 8 + [8] * 5)
    assert buffer.batch_size == 8


def test_room_covers_what_is_waited_for_beside_what_is_leased() -> None:
    leased = 1
    assert room_to_begin(5 + leased, OnTheWay(live=2, finished=2, wanted=24, oldest=5), 8, 0) == 20
    assert room_to_begin(5 + leased, OnTheWay(2, 2, 0, 5), 8, 0) == 0
    assert room_to_begin(5 + leased, OnTheWay(2, 2, 0, 5), 8, 1) == 4


def test_a_batch_that_is_not_full_never_overtakes_the_oldest() -> None:
    world = paced_world(within=1)
    first = world.take("v0", 1, 8)
    ask(world, "slow", "a", "b", "c")
    begun(world)
    world.finish("a")
    assert first.given == ["v0"]
    world.publish(1)
    world.settle("v0")
    second = world.take("v1", 1, 8)
    world.finish("b")
    world.finish("c")
    assert second.given == [], "the version after it would leave the slow one behind"
    world.close_trajectory("slow", TrajectoryEnd.ABANDONED)
    assert second.given == ["v1"]


def test_leased_batches_count_as_the_versions_that_they_will_make() -> None:
    world = paced_world(within=1)
    world.take("v0", 1, 8)
    ask(world, "slow", "a", "b")
    begun(world)
    world.finish("a")
    second = world.take("v1", 1, 8)
    world.finish("b")
    assert second.given == []
    world.settle("v0")
    assert second.given == ["v1"], "no version came of the first one"


def test_a_full_batch_waits_for_nobody() -> None:
    world = paced_world(within=0)
    taker = world.take("v0", 1, 2)
    ask(world, *(f"t{number}" for number in range(4)))
    assert len(begun(world)) == 2
    world.finish("t0")
    assert taker.given == []
    world.finish("t1")
    assert taker.given == ["v0"]


@given(
    within=st.integers(0, 3),
    at_least=st.integers(1, 4),
    more=st.integers(0, 6),
    slots=st.integers(1, 12),
    choices=st.lists(st.integers(0, 10), min_size=10, max_size=30),
)
@settings(max_examples=20, deadline=None)
def test_none_is_trained_on_staler_than_the_bound_and_none_waits_for_ever(
    within: int, at_least: int, more: int, slots: int, choices: list[int]
) -> None:
    world, opened, version = paced_world(within), 0, 0
    job = world.state.jobs[JOB]
    taker = world.take("b0", at_least, at_least + more)
    for choice in [*choices, *[0] * 15]:
        while len(job.trajectories) < slots:
            ask(world, f"t{opened:03d}")
            opened += 1
        running = sorted(begun(world))
        if taker.given and choice % 2 == 0:
            version += 1
            world.publish(version)
            world.settle(taker.given[0])
            taker = world.take(f"b{version}", at_least, at_least + more)
        elif running:
            world.finish(running[choice % len(running)])
        else:
            assert taker.given, "nothing runs, and the trainer waits"
    assert max(job.buffer.staleness, default=0) <= within


def test_siblings_take_up_room_when_proposed_as_when_they_begin() -> None:
    world = paced_world()
    world.take("one", 3)
    for number in range(4):
        ask(world, f"g{number}-0", f"g{number}-1", group=GroupRequest(f"g{number}", 2, 2))
    proposed = [each.request.trajectory_id for each in may_begin(world.state, JOB)]
    assert proposed == ["g0-0", "g0-1", "g1-0", "g1-1"]
    assert begun(world) == set(proposed)


def test_a_look_goes_no_further_than_there_is_room() -> None:
    world = paced_world()
    world.take("one", 2)
    ask(world, *(f"t{number}" for number in range(50)))
    waiting = world.state.waiting_trajectories[JOB]
    seen = 0

    class Counted(dict):  # type: ignore[type-arg]
        def values(self):  # type: ignore[no-untyped-def]
            nonlocal seen
            for each in waiting.values():
                seen += 1
                yield each

    world.state.waiting_trajectories[JOB] = Counted(waiting)
    assert len(list(may_begin(world.state, JOB))) == 2
    assert seen <= 3
    world.state.waiting_trajectories[JOB] = waiting


def test_a_sibling_of_a_group_that_has_begun_is_first_wherever_it_waits() -> None:
    world = paced_world()
    world.take("one", 1)
    pair = GroupRequest("pair", 2, 2)
    ask(world, "p0", group=pair)
    assert begun(world) == {"p0"}
    ask(world, "other")
    ask(world, "p1", group=pair)
    assert begun(world) == {"p0", "p1"}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_member_that_was_closed_before_it_began_begins_no_group(restarted: bool) -> None:
    world = paced_world()
    world.take("one", 1)
    ask(world, "live")
    assert begun(world) == {"live"}
    trio = GroupRequest("trio", 3, 3)
    ask(world, "first", "second", group=trio)
    world.close_trajectory("first", TrajectoryEnd.ABANDONED)
    if restarted:
        world = world.restart()
        world.take("one", 1)
    assert begun(world) == {"live"}


def test_a_trajectory_without_a_sandbox_stays_begun_after_its_actions_are_forgotten() -> None:
    kept_s = 1_600.0
    world = world_with_job(
        job_request(staleness=StalenessPolicy(admit_within=0)), settings=replace(SETTINGS, finished_actions_s=kept_s)
    )
    manager = world.manager()
    world.take("one", 1)
    ask(world, "agent")
    world.plan()
    manager.run("call-agent")
    manager.live(2 * kept_s)
    assert not world.journal.actions
    world = world.restart()
    assert world.state.jobs[JOB].live_versions == {0: 1}
    assert world.state.jobs[JOB].trajectories["agent"].admitted_at is not None


def test_the_planner_may_take_less_than_it_may() -> None:
    world = paced_world()
    world.take("one", 2)
    ask(world, *(f"t{number}" for number in range(3)))
    first = [each.key for each in islice(may_begin(world.state, JOB), 1)]
    world.handle(PlanReady(Plan(admitted=tuple(first))))
    assert [each.request.trajectory_id for each in may_begin(world.state, JOB)] == ["t1"]
