"""Where the elastic planner puts actions, when nodes are not alike: who shares a node, and who packs one."""

from __future__ import annotations

from callsheet.scheduler.core.words.model import ActionKind, GroupRequest
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.solvers.cp_sat import Budget

from tests.support.core_requests import action_request, fixed, kept, trajectory_request
from tests.support.core_world import CoreWorld, FakeManager, world_with_job


def world_of(*nodes: str) -> tuple[CoreWorld, dict[str, FakeManager]]:
    """A world with a job and nodes of four cores."""
    world = world_with_job(planner=ElasticPlanner(ElasticSettings(budget=Budget(seconds=0.5, deterministic=True))))
    return world, {name: world.manager(name, cores=4, memory=10_000) for name in nodes}


def places(world: CoreWorld) -> dict[str, str]:
    """Plans until no round asks for another one; the managers by action."""
    found: dict[str, str] = {}
    while True:
        plan = world.plan()
        found |= {each.key.action_id: each.manager_id for each in plan.assignments}
        if not plan.truncated:
            return found


def begin(world: CoreWorld, name: str, *, group: str = "", memory: int = 100) -> None:
    """A trajectory that wants a sandbox."""
    siblings = GroupRequest(group, 2, 2) if group else None
    world.trajectory(trajectory_request(name, group=siblings))
    demand = kept(memory=memory, start_cpu=1)
    world.submit(action_request(f"reset {name}", ActionKind.ENV_RESET, name, demand=demand))


def test_a_sandbox_avoids_its_siblings_node_though_fewer_live_there() -> None:
    world, managers = world_of("small")
    begin(world, "first", group="siblings")
    assert places(world) == {"reset first": "small"}
    managers["small"].run("reset first")
    large = world.manager("large", cores=4, memory=100_000)
    for name in ("x", "y"):
        begin(world, name, memory=20_000)
        assert places(world) == {f"reset {name}": "large"}
        large.run(f"reset {name}")
    begin(world, "second", group="siblings")
    assert places(world) == {"reset second": "large"}


def test_sandboxes_of_different_classes_count_for_each_other_in_a_round() -> None:
    world, _ = world_of("a", "b", "c")
    for index in range(3):
        begin(world, f"t{index}", memory=100 * (1 + index))
    assert sorted(places(world).values()) == ["a", "b", "c"]


def test_what_is_booked_core_by_core_is_packed_so_that_the_wide_find_room() -> None:
    world, _ = world_of("a", "b")
    world.submit(action_request("there", demand=fixed(cpu=1)))
    (first,) = places(world).values()
    for index in range(3):
        world.submit(action_request(f"narrow{index}", demand=fixed(cpu=1)))
        assert places(world) == {f"narrow{index}": first}
