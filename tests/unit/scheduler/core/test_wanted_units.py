"""What the scheduler tells a fleet: held, waiting and useful units by role."""

from __future__ import annotations

from callsheet.scheduler.core.state.announced_managers import ExpectedRole, ExpectedService
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.state.scheduler_state import CoreSettings
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.planner.answers.wanted import WantedUnits, wanted_in_parts

from tests.support.core_requests import action_request, elastic, fixed, kept
from tests.support.core_world import CoreWorld, service, world_with_job, world_with_manager, world_with_sandbox

SANDBOXES = ExpectedRole("env", (ExpectedService("", frozenset({ActionKind.ENV_RESET, ActionKind.ENV_STEP})),))


def only(world: CoreWorld) -> WantedUnits:
    (wanted,) = at_once(wanted_in_parts(world.state))
    return wanted


def test_what_runs_is_held_and_what_has_no_room_waits() -> None:
    world, manager = world_with_manager(cores=2)
    world.submit(
        *(action_request(f"a-{number}", ActionKind.REWARD, demand=fixed(cpu=2)) for number in range(5)), plan=True
    )
    wanted = only(world)
    assert (wanted.managers, wanted.waiting, wanted.held["cpu"], wanted.waiting_units["cpu"]) == (1, 4, 2, 8)
    manager.run("a-0")
    assert (only(world).held["cpu"], only(world).waiting) == (0, 4)


def test_more_units_are_useful_to_what_could_take_them() -> None:
    world, _ = world_with_manager(cores=2)
    world.submit(action_request("runs", ActionKind.REWARD, demand=elastic(1, 8)))
    world.propose("runs", "m", cpu=2)
    world.submit(action_request("waits", ActionKind.REWARD, demand=elastic(1, 4)))
    wanted = only(world)
    assert (wanted.held["cpu"], wanted.waiting_units["cpu"], wanted.useful_units["cpu"]) == (2, 1, 6 + 3)


def test_what_waits_for_its_own_sandbox_is_left_out() -> None:
    world, manager = world_with_sandbox()
    manager.disconnect()
    world.step("step", plan=True)
    assert only(world).waiting == 0


def test_a_sandbox_is_held_between_actions() -> None:
    world, manager = world_with_manager(memory=100)
    world.trajectory("t")
    world.submit(action_request("reset", ActionKind.ENV_RESET, "t", demand=kept(memory=60)))
    world.trajectory("waits")
    world.submit(action_request("waits", ActionKind.ENV_RESET, "waits", demand=kept(memory=60)), plan=True)
    manager.run("reset")
    wanted = only(world)
    assert (wanted.held["memory"], wanted.waiting, wanted.waiting_units["memory"]) == (60, 1, 60)


def test_an_announced_role_is_told_before_any_manager_is_there() -> None:
    world = world_with_job(settings=CoreSettings(expected=(SANDBOXES,)))
    world.trajectory("t")
    world.reset("reset")
    world.submit(action_request("other", ActionKind.GENERATE, wait=True))
    (env,) = at_once(wanted_in_parts(world.state))
    assert (env.role, env.managers, env.waiting) == ("env", 0, 1)
    world.manager("m", service("sandbox", (ActionKind.ENV_RESET, ActionKind.ENV_STEP)))
    world.manager("g", service("policy", (ActionKind.GENERATE,)))
    assert [(each.role, each.managers) for each in at_once(wanted_in_parts(world.state))] == [("env", 1), ("policy", 1)]


def test_a_manager_that_is_to_leave_counts_with_what_it_holds_alone() -> None:
    world, _ = world_with_sandbox()
    world.drain("m")
    assert only(world).managers == 0
