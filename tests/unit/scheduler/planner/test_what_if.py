"""What-if questions: a larger fleet is asked as ever, and the answers move the right way."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.planner.answers.remaining import Lives
from callsheet.scheduler.planner.answers.what_if import Comparison, ask_in_parts, idle_like
from callsheet.scheduler.planner.predictors import ObservedRun, PredictionKey, Predictors
from callsheet.scheduler.service.codec.admin_answers import what_if_response

from tests.support.core_requests import JOB, action_request, elastic, fixed
from tests.support.core_world import CoreWorld, node, service, world_with_manager, world_with_sandbox
from tests.support.refusals import refusal

SANDBOX = [ActionKind.ENV_RESET, ActionKind.ENV_STEP]


def taught(kind: ActionKind, seconds: float) -> Predictors:
    predictors = Predictors()
    for _ in range(100):
        predictors.observe(ObservedRun(PredictionKey(JOB, kind, "", ""), seconds, cpu_s=seconds))
    return predictors


def world_with_queue(waiting: int, *, nodes: int = 1) -> CoreWorld:
    world = CoreWorld()
    for number in range(nodes):
        world.manager(f"m{number}", service("suite", [ActionKind.REWARD]), on=node(f"n{number}", 4))
    world.job()
    world.submit(*(action_request(f"a{number}", ActionKind.REWARD, demand=fixed(cpu=1)) for number in range(waiting)))
    return world


def answer(world: CoreWorld, pool: str, more: int, predictors: Predictors | None = None) -> Comparison:
    return at_once(ask_in_parts(world.state, pool, more, world.now, predictors or Predictors())).answer()


def test_an_idle_node_is_in_another_state_and_leaves_the_first_as_it_was() -> None:
    world = world_with_queue(3)
    world.plan()
    before = dict(world.state.nodes["n0"].free)
    idle = idle_like(world.state, world.state.nodes["n0"], world.now)
    assert isinstance(idle, SchedulerState)
    assert (len(idle.nodes), len(idle.managers)) == (1, 1)
    assert (len(world.state.nodes), len(world.state.managers)) == (1, 1)
    assert world.state.nodes["n0"].free == before
    assert all(each.free["cpu"] == 4 for each in idle.nodes.values())
    assert all(manager.accepting for manager in idle.managers.values())


def test_new_nodes_are_like_the_one_they_copy_also_in_what_services_take_away() -> None:
    world = CoreWorld()
    shares = service("sandbox", SANDBOX, shared={"cpu": 3})
    world.manager("m", shares, service("model", [ActionKind.GENERATE], slots=2, reserved={"cpu": 1}), on=node("n", 6))
    (new,) = idle_like(world.state, world.state.nodes["n"], world.now).nodes.values()
    assert new.free == world.state.nodes["n"].free == {"cpu": 2, "memory": 4096}
    assert new.pooled == {"cpu": 3}


def test_the_question_of_a_round_is_about_the_ready_classes_and_changes_nothing() -> None:
    world = world_with_queue(10)
    instance = at_once(ask_in_parts(world.state, "n0", 1, world.now, taught(ActionKind.REWARD, 7.0))).instances[0]
    (waiting,) = instance.classes
    assert waiting.count == 10
    assert waiting.block.duration_s.min() == pytest.approx(7.0, rel=0.1)
    assert len(world.state.ready) == 10


def test_more_nodes_of_a_pool_shorten_what_waits_for_it() -> None:
    world = world_with_queue(24, nodes=2)
    found = answer(world, "n1", 4, taught(ActionKind.REWARD, 10.0))
    assert (found.nodes, found.more) == (2, 4)
    assert (found.before.waiting.start_now, found.after.waiting.start_now) == (8, 24)
    assert found.before.mean_act_s == pytest.approx(20.0, rel=0.15)
    assert found.after.mean_act_s == pytest.approx(10.0, rel=0.15)
    assert "8 -> 24 start at once" in str(found)
    assert answer(world, found.pool, 4).pool == found.pool, "a pool is found by its name too"


def test_more_nodes_of_another_pool_change_nothing() -> None:
    world = world_with_queue(24)
    world.manager("model", service("model", [ActionKind.GENERATE], slots=4), on=node("gpu", 1))
    found = answer(world, "gpu", 10)
    assert found.before.waiting == found.after.waiting
    assert found.before.mean_act_s == found.after.mean_act_s > 0.0


def test_commands_that_share_cores_run_faster_on_more_of_them() -> None:
    world, _ = world_with_manager("m", service("suite", [ActionKind.REWARD], shared={"cpu": 4}), on=node("n", 4))
    world.submit(
        *(action_request(f"a{number}", ActionKind.REWARD, demand=fixed(cpu=1)) for number in range(16)), plan=True
    )
    found = answer(world, "n", 1, taught(ActionKind.REWARD, 10.0))
    shared = found.before.shared
    assert (shared.running, shared.cores, found.after.shared.cores) == (16, 4, 8)
    assert shared.use == pytest.approx(16.0, rel=0.05)
    assert shared.slowdown == pytest.approx(4.0, rel=0.05)
    assert found.after.mean_act_s == pytest.approx(found.before.mean_act_s / 2, rel=0.01)
    assert "4 -> 8" in str(found)


def test_an_idle_pool_needs_nothing() -> None:
    found = answer(world_with_queue(0), "n0", 3)
    assert str(found) == "nothing waits or runs in pool-0, so 3 nodes more would change nothing"
    assert found.before.mean_act_s == 0.0


def test_unknown_pools_and_odd_numbers_are_refused_by_name() -> None:
    world = world_with_queue(1)
    refusal(lambda: answer(world, "elsewhere", 1), RefusalCode.NOT_FOUND, r"pool-0 \(n0\)")
    for more in (0, -1, 10_001):
        with pytest.raises(RefusedError, match="between 1 and 10000"):
            answer(world, "n0", more)
    with pytest.raises(RefusedError, match="no manager is registered"):
        answer(CoreWorld(), "n0", 1)


def test_answers_as_messages() -> None:
    world = world_with_queue(24)
    found = answer(world, "n0", 1, taught(ActionKind.REWARD, 10.0))
    message = what_if_response(found)
    assert (message.pool, message.nodes, message.summary) == ("pool-0", 1, str(found))
    assert message.before.mean_act_s == found.before.mean_act_s
    (waiting,) = message.after.classes
    assert (waiting.name, waiting.waiting, waiting.stuck) == ("reward any of job with 1 cpu", 24, 0)


def test_what_waits_behind_a_hung_command_waits_for_long() -> None:
    world, manager = world_with_manager("m", service("suite", [ActionKind.REWARD]), on=node("n", 1))
    world.submit(
        *(action_request(name, ActionKind.REWARD, demand=fixed(cpu=1)) for name in ("hangs", "waits")), plan=True
    )
    manager.start("hangs")
    predictors = taught(ActionKind.REWARD, 0.8)
    assert answer(world, "n", 1, predictors).before.waiting.mean_wait_s < 2.0
    manager.live(150.0)
    found = answer(world, "n", 1, predictors)
    assert found.before.waiting.mean_wait_s > 60.0
    assert found.after.waiting.mean_wait_s == 0.0
    (waits,) = what_if_response(found).before.classes
    assert waits.waited_s == pytest.approx(150.0)


def test_a_hung_command_on_shared_cores_is_no_short_one() -> None:
    world, manager = world_with_manager("m", service("suite", [ActionKind.REWARD], shared={"cpu": 4}), on=node("n", 4))
    world.submit(action_request("hangs", ActionKind.REWARD, demand=fixed(cpu=1)), plan=True)
    manager.start("hangs")
    manager.live(150.0)
    assert answer(world, "n", 1, taught(ActionKind.REWARD, 0.8)).before.shared.mean_act_s > 210.0


def test_a_wider_run_lives_shorter() -> None:
    world, manager = world_with_manager("m", service("suite", [ActionKind.REWARD]), on=node("n", 4))
    world.submit(action_request("wide", ActionKind.REWARD, demand=elastic(1, 4)))
    world.propose("wide", "m", cpu=4)
    manager.start("wide")
    (attempt,) = world.state.attempts.values()
    life = Lives(taught(ActionKind.REWARD, 40.0), world.now).of(attempt)
    assert life.attained_s == 0.0
    assert 10.0 <= life.remaining_s < 40.0


def test_what_waits_behind_its_own_trajectory_is_told_apart() -> None:
    world, manager = world_with_sandbox()
    for name in ("first", "second", "third"):
        world.step(name)
    world.plan()
    manager.start("first")
    found = answer(world, manager.node.node_id, 3)
    assert found.behind == 2
    assert "2 wait behind earlier actions of their own trajectories" in str(found)


def test_classes_that_differ_in_their_demand_alone_have_rows_of_their_own() -> None:
    world = world_with_queue(2)
    world.submit(action_request("wide", ActionKind.REWARD, demand=elastic(2, 4)))
    found = answer(world, "n0", 1)
    assert {each.key.partition(" with ")[2]: each.waiting for each in found.before.waiting.classes} == {
        "1 cpu": 2,
        "2 to 4 cpu": 1,
    }
