"""Pools: units that the services of a manager share among their own attempts."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.words import commands
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.planner.answers.explain import explain_in_parts
from callsheet.scheduler.planner.round.review import WaitReason

from tests.support.core_requests import action_request, elastic, fixed, kept, key_of
from tests.support.core_world import CoreWorld, FakeManager, Stream, node, service

SANDBOX = [ActionKind.ENV_RESET, ActionKind.ENV_STEP]


def world_with_pool(cores: int = 4, shared: int = 2, memory: int = 1000) -> tuple[CoreWorld, FakeManager]:
    """A manager whose services "sandbox" and "test-suite" share cores, on a node with more cores than that."""
    world = CoreWorld()
    services = (
        service("sandbox", SANDBOX, shared={"cpu": shared}),
        service("test-suite", [ActionKind.REWARD], shared={"cpu": shared}),
    )
    manager = world.manager("m", *services, on=node("n", cores, memory=memory))
    world.job()
    world.trajectory("t")
    return world, manager


def test_a_manager_is_told_the_cores_of_its_one_pool() -> None:
    world, manager = world_with_pool()
    assert (manager.stream.last(commands.AcceptManager).shared_cores, manager.free["cpu"]) == ((0, 1), 2)
    neighbour = world.manager("neighbour", service("x", [ActionKind.TOOL_CALL]), on=node("n", 4, memory=1000))
    assert neighbour.stream.last(commands.AcceptManager).shared_cores == ()
    world.submit(action_request("a", demand=fixed(cpu=2)), plan=True)
    assert neighbour.grant("a").cores == (2, 3), "no one else is granted a core of the pool"


def test_a_pool_keeps_its_cores_while_managers_come_and_go() -> None:
    world, manager = world_with_pool()
    on = node("n", 4, memory=1000)
    other = world.manager("a-second", service("sandbox", SANDBOX, shared={"cpu": 1}), on=on)
    world.manager("engine", service("model", [ActionKind.GENERATE], reserved={"cpu": 1}), on=on)
    assert other.stream.last(commands.AcceptManager).shared_cores == (2,)
    assert manager.join().last(commands.AcceptManager).shared_cores == (0, 1)
    manager.join(incarnation="next")
    assert other.join().last(commands.AcceptManager).shared_cores == (2,)


def test_attempts_on_a_pool_are_granted_units_however_many_run() -> None:
    world, manager = world_with_pool()
    world.submit(*(action_request(name, ActionKind.REWARD, demand=fixed(cpu=2)) for name in ("a", "b", "c")), plan=True)
    for name in ("a", "b", "c"):
        grant = manager.grant(name)
        assert (grant.resources, grant.cores) == ({"cpu": 2}, ())
    assert manager.free == {"cpu": 2, "memory": 1000}
    for name in ("a", "b", "c"):
        manager.run(name)
    assert manager.free == {"cpu": 2, "memory": 1000}


def test_what_a_service_does_not_share_is_booked_as_ever() -> None:
    world, manager = world_with_pool()
    world.submit(action_request("reset", ActionKind.ENV_RESET, "t", demand=kept(cpu=1, memory=700)))
    world.trajectory("u")
    world.submit(action_request("other", ActionKind.ENV_RESET, "u", demand=kept(start_cpu=1, memory=700)), plan=True)
    assert not manager.has("other")
    manager.run("reset")
    trajectory = world.state.find_trajectory("job", "t")
    assert trajectory is not None
    assert (trajectory.held, trajectory.held_cores) == ({"memory": 700}, ()), "nobody holds units of a pool"
    explanation = at_once(explain_in_parts(world.state, world.live("other"), world.now, world.planner))
    assert [short.resource for short in explanation.shortages] == ["memory"]
    world.close_trajectory("t")
    world.plan()
    assert manager.has("other")


def test_more_than_the_pool_is_refused_at_submit_and_in_plans() -> None:
    world, manager = world_with_pool(cores=8)
    with pytest.raises(RefusedError, match=r"more units than any node that serves it has \(2\)"):
        world.submit(action_request("wide", ActionKind.REWARD, demand=fixed(cpu=3)))
    world.submit(action_request("elastic", ActionKind.REWARD, demand=elastic(1, 8)))
    assert not world.propose("elastic", "m", cpu=3)
    world.plan()
    assert manager.grant("elastic").resources == {"cpu": 2}, "all of the pool, as nothing else waits for it"


def test_waiting_for_more_than_a_pool_has_is_explained() -> None:
    world, _ = world_with_pool(cores=8)
    world.submit(action_request("wide", ActionKind.REWARD, demand=fixed(cpu=3), wait=True), plan=True)
    assert (
        at_once(explain_in_parts(world.state, world.live("wide"), world.now, world.planner)).reason
        is WaitReason.NO_SERVICE
    )


def test_an_attempt_on_a_pool_keeps_its_width() -> None:
    world, manager = world_with_pool()
    world.submit(action_request("a", ActionKind.REWARD, demand=elastic(1, 8)))
    world.propose("a", "m", cpu=1)
    manager.start("a")
    world.resize("a", 2)
    assert not manager.stream.all(commands.ResizeAttempt)
    manager.end("a")
    assert manager.free["cpu"] == 2


def test_an_attempt_on_a_pool_survives_a_restart_of_the_scheduler_unbooked() -> None:
    world, manager = world_with_pool()
    world.submit(action_request("a", ActionKind.REWARD, demand=fixed(cpu=2)), plan=True)
    grant = manager.start("a")
    restarted = world.restart()
    manager.world, manager.stream = restarted, Stream()
    assert not manager.join([manager.running(grant)]).all(commands.ResizeAttempt)
    assert manager.free["cpu"] == 2
    assert restarted.live("a").attempt is not None
    manager.end(grant)
    assert tuple(key_of("a")) in restarted.journal.outcomes
    assert manager.free["cpu"] == 2


@pytest.mark.parametrize(
    ("first", "second", "field", "rule"),
    [
        ({"shared": {"cpu": 5}}, {}, r"shared\[cpu\]", "0 of its 4"),
        ({"shared": {"gpu": 1}}, {}, r"shared\[gpu\]", "0 of its 0"),
        ({"reserved": {"cpu": 1}}, {"shared": {"cpu": 4}}, r"shared\[cpu\]", "1 of its 4"),
        ({"shared": {"cpu": 3}}, {"reserved": {"cpu": 2}}, r"reserved\[cpu\]", "3 of its 4"),
        ({"shared": {"cpu": 3}}, {"shared": {"cpu": 2}}, r"shared\[cpu\]", "3 of its 4"),
    ],
)
def test_a_pool_that_the_node_has_no_room_for_is_refused(
    first: dict[str, dict[str, int]], second: dict[str, dict[str, int]], field: str, rule: str
) -> None:
    world = CoreWorld()
    managers = [
        world.manager(f"m{index}", service(reserved=each.get("reserved"), shared=each.get("shared")), on=node("n", 4))
        for index, each in enumerate((first, second))
    ]
    (refused,) = [each for each in managers if each.manager_id not in world.state.managers]
    with pytest.raises(RefusedError, match=f"{field}.*{rule}"):
        raise refused.stream.last(commands.RefuseManager).refusal


def test_cores_of_a_pool_are_not_reserved_by_others() -> None:
    world, on = CoreWorld(), node("n", 4)
    leaving = world.manager("first", service(shared={"cpu": 2}), on=on)
    world.manager("last", service(shared={"cpu": 2}), on=on)
    world.state.managers["first"].draining = True
    leaving.disconnect()
    engine = world.manager("engine", service("model", [ActionKind.GENERATE], reserved={"cpu": 2}), on=on)
    with pytest.raises(RefusedError, match="in the pools of \\['last'\\]"):
        raise engine.stream.last(commands.RefuseManager).refusal
    world.manager("third", service(shared={"cpu": 2}), on=on)
    assert world.state.nodes["n"].pool_cores == {"last": (2, 3), "third": (0, 1)}


def test_new_sandboxes_go_where_the_pool_is_least_crowded() -> None:
    world = CoreWorld()
    small = world.manager("small", service("sandbox", SANDBOX, shared={"cpu": 2}), on=node("a", 2))
    large = world.manager("large", service("sandbox", SANDBOX, shared={"cpu": 4}), on=node("b", 4))
    world.job()
    for index in range(6):
        world.trajectory(f"t{index}")
        world.reset(f"r{index}", f"t{index}")
    world.plan()
    assert sum(small.has(f"r{index}") for index in range(6)) == 2
    assert sum(large.has(f"r{index}") for index in range(6)) == 4
