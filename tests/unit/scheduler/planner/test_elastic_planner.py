"""The elastic planner on small fleets: where things go, how wide, in which order, and what it remembers."""

from __future__ import annotations

from collections import Counter

from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionKind, PriorityClass
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.predictors import ObservedRun, PredictionKey, Predictors
from callsheet.scheduler.planner.round.snapshot import describe
from callsheet.scheduler.planner.solvers.cp_sat import Budget

from tests.support.core_requests import action_request, fixed, job_request, kept
from tests.support.core_world import CoreWorld, FakeManager, node, service, world_with_job

EXACT = Budget(seconds=0.5, deterministic=True)
IN_SANDBOX = [ActionKind.ENV_RESET, ActionKind.ENV_STEP, ActionKind.REWARD]


def elastic_world(predictors: Predictors | None = None, **settings: float) -> CoreWorld:
    """A world with a job and the elastic planner."""
    chosen = ElasticSettings(
        budget=EXACT, hold_after=settings.get("hold_after", 5.0), dispatch_cap=int(settings.get("dispatch_cap", 1024))
    )
    return world_with_job(planner=ElasticPlanner(chosen, predictors))


def plan_all(world: CoreWorld) -> list[Plan]:
    """Plans until no round asks for another one."""
    plans = [world.plan()]
    while plans[-1].truncated:
        plans.append(world.plan())
    return plans


def homes(plans: list[Plan]) -> Counter[str]:
    """Assignments by manager."""
    return Counter(each.manager_id for round_ in plans for each in round_.assignments)


def test_priority_classes_in_order() -> None:
    world = elastic_world()
    world.manager(cores=2)
    for priority in (PriorityClass.BATCH, PriorityClass.TRAIN, PriorityClass.EVAL):
        world.job(job_request(priority.name, priority=priority))
        world.submit(action_request("a", job_id=priority.name, demand=fixed(cpu=1)))
    plans = plan_all(world)
    assert [each.key.job_id for round_ in plans for each in round_.assignments] == ["EVAL", "TRAIN"]


def test_new_sandboxes_go_where_the_fewest_trajectories_live() -> None:
    world = elastic_world()
    managers = {name: world.manager(name, cores=8, memory=10_000) for name in ("a", "b", "c")}
    for index in range(9):
        world.trajectory(f"t{index}")
        world.reset(f"r{index}", f"t{index}")
    assert homes(plan_all(world)) == {"a": 3, "b": 3, "c": 3}
    for manager in managers.values():
        for index in range(9):
            if manager.has(f"r{index}"):
                manager.run(f"r{index}")
    for index in range(9):
        if managers["b"].has(f"r{index}"):
            world.close_trajectory(f"t{index}")
    world.trajectory("next")
    world.reset("next", "next")
    assert homes(plan_all(world)) == {"b": 1}


def test_actions_on_shared_cores_are_bounded_by_predicted_use_and_spread() -> None:
    world = elastic_world()
    shared = service("sandbox", IN_SANDBOX, shared={"cpu": 4})
    for name in ("a", "b"):
        world.manager(name, shared, cores=4)
    world.submit(*(action_request(f"t{index}", ActionKind.REWARD, demand=fixed(cpu=1)) for index in range(100)))
    # Each is expected to use 0.64 cores; a manager is given as many as would use its four cores four times.
    assert homes(plan_all(world)) == {"a": 25, "b": 25}
    assert homes(plan_all(world)) == {}


def test_steps_of_a_sandbox_on_shared_cores_go_to_it_at_once() -> None:
    world = elastic_world()
    manager = world.manager("m", service("sandbox", IN_SANDBOX, shared={"cpu": 2}), cores=2)
    for index in range(5):
        world.trajectory(f"t{index}")
        world.submit(action_request(f"r{index}", ActionKind.ENV_RESET, f"t{index}", demand=kept(memory=16)))
    plan_all(world)
    for index in range(5):
        manager.run(f"r{index}")
        world.step(f"s{index}", f"t{index}")
    plans = plan_all(world)
    assert sum(len(round_.assignments) for round_ in plans) == 5
    assert all(manager.has(f"s{index}") for index in range(5))


def test_the_short_go_first_by_what_predictors_learned() -> None:
    predictors = Predictors()
    for _ in range(50):
        for label, seconds in (("quick", 1.0), ("slow", 60.0)):
            key = PredictionKey("job", ActionKind.REWARD, label, "")
            predictors.observe(ObservedRun(key, seconds, cpu_s=seconds))
    world = elastic_world(predictors)
    manager = world.manager(cores=4)
    for index in range(8):
        request = action_request(f"a{index}", ActionKind.REWARD, demand=fixed(cpu=1))
        request.label = "slow" if index < 4 else "quick"
        world.submit(request)
    plan_all(world)
    assert {index for index in range(8) if manager.has(f"a{index}")} == {4, 5, 6, 7}
    prediction = manager.grant("a5").prediction
    assert prediction is not None
    assert 0.5 < prediction.execution_s < 2.0


def wide_waits(hold_after: float) -> tuple[CoreWorld, FakeManager]:
    """A full node, on which an action of its whole width has waited for six seconds."""
    world = elastic_world(hold_after=hold_after)
    manager = world.manager(cores=4)
    world.submit(*(action_request(f"s{index}", demand=fixed(cpu=1)) for index in range(4)))
    plan_all(world)
    world.submit(action_request("wide", demand=fixed(cpu=4)))
    manager.live(6.0)
    world.submit(action_request("narrow", demand=fixed(cpu=1)))
    return world, manager


def test_a_node_is_held_for_what_has_waited_too_long() -> None:
    world, manager = wide_waits(hold_after=5.0)
    for index in range(4):
        manager.run(f"s{index}")
        plan_all(world)
        assert not manager.has("narrow")
    assert manager.has("wide")
    world, manager = wide_waits(hold_after=60.0)
    manager.run("s0")
    plan_all(world)
    assert manager.has("narrow")


def test_a_retry_avoids_the_manager_that_failed() -> None:
    world = elastic_world()
    managers = {name: world.manager(name) for name in ("a", "b")}
    world.submit(action_request("x"))
    (first,) = homes(plan_all(world))
    managers[first].fail("x")
    world.wait(1.0)
    assert managers["b" if first == "a" else "a"].has("x")


def test_a_retry_does_not_make_those_behind_it_wait_anew() -> None:
    """Two long ones wait behind one another for 60 s, which makes them late; then the first has to be tried again."""
    world = elastic_world()
    manager = world.manager(cores=1)
    world.submit(*(action_request(name, demand=fixed(cpu=1), expected=10.0) for name in ("first", "second")))
    plan_all(world)
    manager.live(60.0)
    manager.fail("first")
    world.submit(action_request("short", demand=fixed(cpu=1), expected=1.0))
    world.now += 2.0
    world.handle(events.TimerFired())
    assert [each.key.action_id for each in world.plan().assignments] == ["first"]


def test_fragments_are_not_taken_for_room() -> None:
    """Two nodes with two free cores each have no room for four; the round starts what fits instead."""
    world = elastic_world()
    for name in ("a", "b"):
        world.manager(name, cores=4)
    for index in range(4):
        world.submit(action_request(f"s{index}", demand=fixed(cpu=1)))
        world.propose(f"s{index}", "a" if index % 2 else "b", cpu=1)
    world.submit(
        action_request("wide", demand=fixed(cpu=4), weight=50.0), action_request("narrow", demand=fixed(cpu=2))
    )
    assert [each.key.action_id for round_ in plan_all(world) for each in round_.assignments] == ["narrow"]


def test_resources_that_do_not_lie_together_are_filled_up_with_what_fits() -> None:
    """Memory and cores are free on different nodes: the plan counts on both, and placement finds out."""
    world = elastic_world()
    world.manager("cores", on=node("cores", 4, memory=1))
    world.manager("memory", on=node("memory", 1, memory=100))
    world.submit(action_request("cpu", demand=fixed(cpu=3)), action_request("mem", demand=fixed(memory=50)))
    where = {each.key.action_id: each.manager_id for round_ in plan_all(world) for each in round_.assignments}
    assert where == {"cpu": "cores", "mem": "memory"}


def test_the_cap_of_a_round_asks_for_another_one() -> None:
    world = elastic_world(dispatch_cap=3)
    world.manager()
    world.submit(*(action_request(f"g{index}") for index in range(8)))
    assert [len(each.assignments) for each in plan_all(world)] == [3, 3, 2]


def test_jobs_share_what_is_short_by_weight() -> None:
    world = elastic_world()
    world.manager(cores=8)
    world.job(job_request("other", weight=3.0))
    for index in range(30):
        world.submit(
            action_request(f"a{index}", demand=fixed(cpu=1), expected=1.0),
            action_request(f"b{index}", job_id="other", demand=fixed(cpu=1), expected=50.0),
        )
    jobs = Counter(each.key.job_id for round_ in plan_all(world) for each in round_.assignments)
    assert jobs == {"job": 2, "other": 6}


def test_classes_have_names_for_readers() -> None:
    world = elastic_world()
    world.manager("a", cores=1)
    request = action_request("a", ActionKind.REWARD, demand=fixed(cpu=1), expected=30.0)
    request.label = "pytest"
    world.submit(request)
    world.planner.plan(world.state, world.now)
    assert [describe(key) for key in world.state.ready.classes] == ["reward pytest of job ~32 s with 1 cpu"]


def test_an_idle_unit_is_used_though_wide_actions_wait_for_its_node() -> None:
    world = elastic_world()
    score = service("score", [ActionKind.REWARD])
    large = world.manager("large", score, on=node("large", 1, gpu=4))
    world.manager("small", score, on=node("small", 1, gpu=1))
    world.submit(
        *(action_request(f"narrow{index}", ActionKind.REWARD, demand=fixed(gpu=1), expected=1.0) for index in range(5)),
        plan=True,
    )
    for index in range(30):
        world.submit(action_request(f"wide{index}", ActionKind.REWARD, demand=fixed(gpu=4), expected=1.0))
    for index in range(5, 25):
        world.submit(action_request(f"narrow{index}", ActionKind.REWARD, demand=fixed(gpu=1), expected=1.0))
    large.run(next(f"narrow{index}" for index in range(5) if large.has(f"narrow{index}")))
    assert len(world.plan().assignments) == 1
