"""Who holds what a waiting action lacks."""

from __future__ import annotations

from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.planner.answers.explain import explain_in_parts
from callsheet.scheduler.planner.answers.holders import MAX_HOLDERS, Holder, Liveness, holders_in_parts
from callsheet.scheduler.planner.round.review import WaitReason

from tests.support.core_requests import action_request, fixed, job_request, kept
from tests.support.core_world import CoreWorld, service, world_with_job, world_with_manager, world_with_sandbox


def held(world: CoreWorld, action: str) -> tuple[WaitReason, tuple[Holder, ...]]:
    waits = world.live(action)
    explanation = at_once(explain_in_parts(world.state, waits, world.now, world.planner))
    return explanation.reason, at_once(holders_in_parts(world.state, waits, explanation, world.now))


def test_units_are_held_by_actions_of_any_job_the_longest_first() -> None:
    world, manager = world_with_manager("m", cores=4)
    world.job(job_request("other"))
    world.submit(action_request("first", job_id="other", demand=fixed(cpu=1, memory=100)), plan=True)
    manager.live(150.0)
    world.submit(action_request("second", demand=fixed(cpu=3)), plan=True)
    manager.live(10.0)
    world.submit(
        action_request("bystander", demand=fixed(memory=1)), action_request("waits", demand=fixed(cpu=2)), plan=True
    )
    alive = Liveness(sessions=1)
    assert held(world, "waits") == (
        WaitReason.RESOURCES,
        (
            Holder("other", "first", "", "node-m", {"cpu": 1.0}, 160.0, alive),
            Holder("job", "second", "", "node-m", {"cpu": 3.0}, 10.0, alive),
        ),
    )


def test_a_trajectory_holds_between_its_actions() -> None:
    world, manager = world_with_manager("m", cores=2, memory=1000)
    world.trajectory("t")
    world.submit(action_request("reset", ActionKind.ENV_RESET, "t", demand=kept(memory=900)), plan=True)
    manager.run("reset")
    manager.live(30.0)
    world.submit(action_request("waits", demand=fixed(memory=200)))
    reason, found = held(world, "waits")
    assert reason is WaitReason.RESOURCES
    assert [(each.trajectory_id, each.action_id, each.units, each.held_s) for each in found] == [
        ("t", "", {"memory": 900.0}, 30.0)
    ]
    world.step("step", plan=True)
    assert held(world, "waits")[1][-1].action_id == "step"


def test_slots_are_held_by_the_attempts_of_the_service() -> None:
    world = CoreWorld()
    manager = world.manager(
        "m", service("engine", [ActionKind.GENERATE], slots=1), service("other", [ActionKind.TOOL_CALL])
    )
    world.job()
    world.submit(
        action_request("elsewhere", ActionKind.TOOL_CALL),
        *(action_request(name, ActionKind.GENERATE) for name in ("a", "b")),
        plan=True,
    )
    manager.live(5.0)
    reason, found = held(world, "b")
    assert reason is WaitReason.SLOTS
    assert [(each.action_id, each.units, each.held_s) for each in found] == [("a", {"slots": 1.0}, 5.0)]


def test_the_action_that_is_in_the_sandbox_holds_it() -> None:
    world, manager = world_with_sandbox()
    for name in ("a", "b"):
        world.step(name)
    world.plan()
    manager.start("a")
    manager.live(7.0)
    reason, found = held(world, "b")
    assert reason is WaitReason.EARLIER_IN_SANDBOX
    assert [(each.action_id, each.trajectory_id, each.held_s) for each in found] == [("a", "t", 7.0)]


def test_at_most_so_many_are_named() -> None:
    world, _ = world_with_manager("m", cores=MAX_HOLDERS + 5)
    world.submit(*(action_request(f"a{number}", demand=fixed(cpu=1)) for number in range(MAX_HOLDERS + 5)), plan=True)
    world.submit(action_request("waits", demand=fixed(cpu=1)))
    assert len(held(world, "waits")[1]) == MAX_HOLDERS


def test_what_nobody_holds_has_no_holders() -> None:
    world = world_with_job()
    world.submit(action_request("waits", wait=True))
    assert held(world, "waits") == (WaitReason.NO_SERVICE, ())
