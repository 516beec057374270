"""What managers of hosted models are told to expect, what they make of it, and where work goes among several."""

from __future__ import annotations

from collections import Counter

import pytest
from callsheet.managers.reward.hosted.expectations import ServingPace, room_before_restore
from callsheet.managers.reward.hosted.places import ModelDevices
from callsheet.managers.reward.hosted.residency import HostedTenant, Residency
from callsheet.managers.reward.hosted.turns import PatientTurns
from callsheet.scheduler.core.hosted.service_load import MOST_SERVICES, TELL_EVERY_S, expected_rewards
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.registration import ServiceDescription, ServiceState
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.solvers.cp_sat import Budget

from tests.support.core_requests import action_request, fixed
from tests.support.core_world import CoreWorld, FakeManager, world_with_job

SLOTS = 64
RESTORE_S = 0.1


def model(name: str, slots: int = SLOTS) -> ServiceDescription:
    """A model that is not there."""
    return ServiceDescription(name, frozenset({ActionKind.REWARD}), slots, {}, setup_s=RESTORE_S)


def make_world() -> CoreWorld:
    """A world with a job."""
    return world_with_job(planner=ElasticPlanner(ElasticSettings(budget=Budget(seconds=0.5, deterministic=True))))


def ask(world: CoreWorld, name: str, service: str = "judge", *, seconds: float = 1.0) -> None:
    """Submits a reward by a model."""
    request = action_request(name, ActionKind.REWARD, demand=fixed(), expected=seconds)
    request.service = service
    world.submit(request)


def tell(world: CoreWorld, manager: FakeManager, *states: ServiceState) -> None:
    """What a manager says of its models."""
    world.handle(events.ManagerHeartbeat(manager.manager_id, manager.stream, states))


def told(manager: FakeManager) -> list[tuple[str, int, float]]:
    """What a manager was told of demand so far."""
    return [(each.service, each.waiting, each.coming) for each in manager.stream.all(commands.TellDemand)]


def plan_all(world: CoreWorld) -> Counter[str]:
    """Plans until nothing more starts; how many each manager got."""
    homes: Counter[str] = Counter()
    while True:
        plan = world.plan()
        homes.update(each.manager_id for each in plan.assignments)
        if not plan.truncated:
            return homes


def test_a_manager_is_told_what_waits_and_what_is_coming_where_that_is_news() -> None:
    world = make_world()
    manager = world.manager("a", model("judge", 1), model("other"))
    assert told(manager) == [("judge", 0, 0.0), ("other", 0, 0.0)]
    for index in range(4):
        ask(world, f"r{index}")
    plan_all(world)
    world.wait(TELL_EVERY_S)
    manager.heartbeat()
    assert told(manager)[2:] == [("judge", 3, 0.0)]
    world.wait(TELL_EVERY_S)
    manager.heartbeat()
    assert len(told(manager)) == 3
    ask(world, "r4")
    manager.heartbeat()
    assert len(told(manager)) == 3, "told at most every half second"
    world.wait(TELL_EVERY_S)
    manager.heartbeat()
    assert told(manager)[3:] == [("judge", 4, 0.0)]


def test_trajectories_under_way_are_expected_to_do_as_those_before() -> None:
    world = make_world()
    manager = world.manager("a", model("judge"))
    for name in ("t1", "t2", "t3", "t4"):
        world.trajectory(name)
        world.submit(action_request(f"of-{name}", ActionKind.REWARD, name, demand=fixed(), service="judge"))
    plan_all(world)
    for name in ("t1", "t2", "t3", "t4"):
        manager.run(f"of-{name}")
    world.wait(TELL_EVERY_S)
    manager.heartbeat()
    assert told(manager)[-1] == ("judge", 0, 4.0)
    world.close_trajectory("t1")
    assert expected_rewards(world.state, "judge") == 3.0
    for name in ("t2", "t3", "t4"):
        world.close_trajectory(name)
    world.wait(TELL_EVERY_S)
    manager.heartbeat()
    assert told(manager)[-1] == ("judge", 0, 0.0)


def test_who_registers_again_is_told_everything_again() -> None:
    world = make_world()
    manager = world.manager("a", model("judge", 1))
    for name in ("r0", "r1"):
        ask(world, name)
    plan_all(world)
    world.wait(TELL_EVERY_S)
    manager.heartbeat()
    manager.disconnect()
    manager.join()
    assert told(manager) == [("judge", 1, 0.0)]


def test_services_that_do_not_come_and_go_hear_nothing_and_counts_are_bounded() -> None:
    world = make_world()
    plain = ServiceDescription("judge", frozenset({ActionKind.REWARD}), SLOTS, {})
    names = [f"s{index}" for index in range(MOST_SERVICES + 2)]
    manager = world.manager("a", plain, *(ServiceDescription(each, plain.kinds, SLOTS, {}) for each in names))
    for name in names:
        ask(world, name, name)
    world.wait(TELL_EVERY_S)
    manager.heartbeat()
    assert told(manager) == []
    assert len(world.state.jobs["job"].rewards_asked) == MOST_SERVICES


def test_work_goes_where_its_model_is_until_the_line_there_outweighs_a_restore() -> None:
    world = make_world()
    there, away = world.manager("there", model("judge")), world.manager("away", model("judge"))
    tell(world, there, ServiceState("judge", 0.0, 1, instance_slots=20))
    tell(world, away, ServiceState("judge", RESTORE_S, 0))
    for index in range(20):
        ask(world, f"r{index}")
    assert plan_all(world) == {"there": 20}
    for index in range(20, 30):
        ask(world, f"r{index}")
    assert plan_all(world)["away"] == 9


@pytest.mark.parametrize(("restore_s", "per_s", "room"), [(0.1, 100.0, 42), (5.0, 10.0, 82), (1.0, 0.0, 32)])
def test_room_is_two_batches_and_what_is_served_within_a_restore(restore_s: float, per_s: float, room: int) -> None:
    pace = ServingPace()
    if per_s:
        pace.learn(10, 10 / per_s)
    assert room_before_restore(16, restore_s, pace.per_s) == room


def test_what_the_scheduler_expects_has_a_model_come_and_stay() -> None:
    residency = Residency(ModelDevices(1, 64), [HostedTenant("wanted", 64), HostedTenant("here", 64)])
    choice = residency.choose("here", 0.0)
    assert choice is not None
    residency.begin("here", choice)
    residency.arrive("here", 0.0, RESTORE_S)
    residency.request("here", 1.0)
    residency.run("here", 1.0)
    residency.end("here", 1.1)
    turns = PatientTurns()
    assert turns.next_restore([], residency, 2.0) is None
    residency.expect("wanted", 40)
    restore = turns.next_restore([], residency, 2.0)
    assert restore is not None
    assert (restore.model, restore.choice.evicted) == ("wanted", ("here",))
    residency.expect("here", 30)
    assert turns.next_restore([], residency, 2.0) is None
