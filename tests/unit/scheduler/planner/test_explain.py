"""Why an action waits: every reason there is, with its numbers."""

from __future__ import annotations

from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.registration import ServiceDescription, ServiceState
from callsheet.scheduler.planner.answers.explain import Explanation, explain_in_parts
from callsheet.scheduler.planner.elastic import ElasticPlanner
from callsheet.scheduler.planner.round.review import Shortage, WaitReason
from callsheet.v1 import admin_service_pb2

from tests.support.core_requests import action_request, fixed, kept
from tests.support.core_world import (
    CoreWorld,
    node,
    service,
    world_with_call,
    world_with_job,
    world_with_manager,
    world_with_sandbox,
    world_with_trajectory,
)


def why(world: CoreWorld, action: str) -> Explanation:
    return at_once(explain_in_parts(world.state, world.live(action), world.now, world.planner))


def test_the_reasons_are_those_of_the_contract() -> None:
    names = {f"WAIT_REASON_{reason.name}": reason.value for reason in WaitReason if reason is not WaitReason.NONE}
    assert {**names, "WAIT_REASON_UNSPECIFIED": 0} == dict(admin_service_pb2.WaitReason.items())


def test_an_action_that_runs_waits_for_nothing() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("a"), plan=True)
    assert why(world, "a") == Explanation(WaitReason.NONE, "it is dispatched")
    manager.start("a")
    assert why(world, "a") == Explanation(WaitReason.NONE, "it is running")


def test_what_fits_is_taken_by_the_next_round() -> None:
    world, _ = world_with_trajectory()
    world.submit(action_request("a", demand=fixed(cpu=4)))
    assert why(world, "a").reason is WaitReason.NEXT_ROUND


def test_the_line_of_the_sandbox() -> None:
    world, manager = world_with_sandbox()
    for name in ("a", "b", "c"):
        world.step(name)
    world.plan()
    manager.start("a")
    assert why(world, "c").reason is WaitReason.EARLIER_IN_SANDBOX
    assert why(world, "c").sentence.startswith("2 earlier actions have not")
    assert why(world, "b").sentence == "1 earlier action has not ended in its trajectory's sandbox"


def test_nobody_serves_it() -> None:
    world, _ = world_with_manager("m", service("engine", [ActionKind.GENERATE]), cores=2)
    world.submit(
        action_request("kind", ActionKind.REWARD, wait=True),
        action_request("size", ActionKind.GENERATE, demand=fixed(cpu=3), wait=True),
    )
    assert why(world, "kind").reason is WaitReason.NO_SERVICE
    assert why(world, "size") == Explanation(WaitReason.NO_SERVICE, "none of 1 managers serves generate '' with 3 cpu")


def test_the_managers_that_could_serve_it_are_away_or_draining() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("a"))
    world.drain("m")
    assert why(world, "a").reason is WaitReason.MANAGER_AWAY
    manager.join(incarnation="second")
    assert why(world, "a").reason is WaitReason.NEXT_ROUND
    manager.disconnect()
    assert why(world, "a").reason is WaitReason.MANAGER_AWAY


def test_the_manager_of_its_sandbox_is_away() -> None:
    world, manager = world_with_sandbox()
    world.manager("other")
    world.step("a")
    manager.disconnect()
    assert why(world, "a") == Explanation(WaitReason.MANAGER_AWAY, "its sandbox is on m, which is away")


def test_units_are_short_on_the_node_that_comes_closest() -> None:
    world = CoreWorld()
    near = world.manager("near", cores=4)
    far = world.manager("far", cores=8, memory=100)
    world.job()
    for name, manager, cores in (("x", near, 3), ("y", far, 8)):
        world.submit(action_request(name, demand=fixed(cpu=cores)))
        world.propose(name, manager.manager_id, cpu=cores)
    world.submit(action_request("a", demand=fixed(cpu=2, memory=50)))
    told = why(world, "a")
    assert (told.reason, told.sentence) == (WaitReason.RESOURCES, "on node-near: 2 cpu needed, 1 of 4 free")
    assert told.shortages == (Shortage("cpu", 2, 1, 4, "node-near"),)


def test_slots_are_taken() -> None:
    world, _ = world_with_manager("m", service("engine", [ActionKind.GENERATE], slots=1))
    world.submit(*(action_request(name, ActionKind.GENERATE) for name in ("a", "b")), plan=True)
    assert why(world, "b") == Explanation(WaitReason.SLOTS, "all slots of 1 managers that serve it are taken")


def test_units_that_do_not_lie_together_are_no_room() -> None:
    world = CoreWorld()
    judge = ServiceDescription("judge", frozenset({ActionKind.REWARD}), 0, {}, setup_s=3.0)
    manager = world.manager("m", judge, on=node("m", 1, gpu=4))
    world.job()
    world.submit(action_request("a", ActionKind.REWARD, demand=fixed(gpu=2), service="judge"))
    assert why(world, "a") == Explanation(WaitReason.NEXT_ROUND, "it fits now; the next planning round takes it")
    tell = (ServiceState("judge", 3.0, 0, no_room=True),)
    world.handle(events.ManagerHeartbeat("m", manager.stream, tell))
    assert why(world, "a") == Explanation(
        WaitReason.RESOURCES,
        "1 managers have enough free for it, but not together: none has room for another instance",
    )
    world.handle(events.ManagerHeartbeat("m", manager.stream, (ServiceState("judge", 0.0, 1),)))
    assert why(world, "a") == Explanation(WaitReason.NEXT_ROUND, "it fits now; the next planning round takes it")


def test_a_service_that_pauses_says_why() -> None:
    world = CoreWorld()
    search = ServiceDescription("search", frozenset({ActionKind.TOOL_CALL}), 64, {}, instances=64)
    manager = world.manager("t", search, on=node("t", 1))
    world.job()
    world.submit(action_request("a", ActionKind.TOOL_CALL, demand=fixed(), service="search"))
    told = ServiceState("search", 0.0, 0, no_room=True, problem="quota 'k' allows no call until 12:00:30 UTC")
    world.handle(events.ManagerHeartbeat("t", manager.stream, (told,)))
    assert why(world, "a") == Explanation(
        WaitReason.RESOURCES,
        "none of 1 managers that serve it can begin now: quota 'k' allows no call until 12:00:30 UTC",
    )


def test_a_sandbox_that_finds_no_room_holds_up_its_trajectory() -> None:
    world = world_with_job(planner=ElasticPlanner())
    world.manager("m", cores=4, memory=300)
    for index in range(3):
        world.trajectory(f"t{index}")
        demand = kept(memory=200, start_cpu=1)
        world.submit(action_request(f"r{index}", ActionKind.ENV_RESET, f"t{index}", demand=demand))
    for _ in range(3):
        world.plan()
    told = why(world, "r2")
    assert told.reason is WaitReason.ADMISSION
    assert told.sentence == (
        "its trajectory may not begin yet: it is number 2 of the 2 of its job that wait; 1 are live; "
        "on node-m: 200 memory needed, 100 of 300 free"
    )
    assert told.shortages == (Shortage("memory", 200, 100, 300, "node-m"),)


def test_free_units_are_kept_for_an_older_action() -> None:
    world, manager = world_with_manager(cores=4)
    world.submit(action_request("running", demand=fixed(cpu=2)), plan=True)
    world.submit(action_request("wide", demand=fixed(cpu=4)))
    manager.live(6.0)
    world.submit(action_request("narrow", demand=fixed(cpu=1)), plan=True)
    assert not manager.has("narrow")
    assert why(world, "narrow") == Explanation(
        WaitReason.HELD_FOR_OLDER, "it fits, but units are kept for the older action wide, which needs 4 cpu"
    )
    assert why(world, "wide").reason is WaitReason.RESOURCES
    told = at_once(
        explain_in_parts(world.state, world.live("narrow"), world.now, world.planner, lambda job_id: job_id != "job")
    )
    assert told.sentence == "it fits, but units are kept for an older action of another job, which needs 4 cpu"


def test_the_elastic_round_keeps_units_later_than_the_plain_one_and_explain_knows() -> None:
    """The older action has waited long enough for the plain planner to keep a node for it, but not for this one."""
    world = world_with_job(planner=ElasticPlanner())
    manager = world.manager(cores=4)
    world.submit(action_request("running", demand=fixed(cpu=2)), plan=True)
    world.submit(action_request("wide", demand=fixed(cpu=4), expected=60.0))
    manager.live(6.0)
    world.submit(action_request("narrow", demand=fixed(cpu=1), expected=1.0))
    assert why(world, "narrow").reason is WaitReason.NEXT_ROUND
    world.plan()
    assert manager.has("narrow")
    manager.live(400.0)
    world.submit(action_request("late", demand=fixed(cpu=1), expected=1.0))
    assert why(world, "late") == Explanation(
        WaitReason.HELD_FOR_OLDER, "it fits, but units are kept for the older action wide, which needs 4 cpu"
    )
    world.plan()
    assert not manager.has("late")


def test_what_a_hold_does_not_keep_is_not_said_to_be_held() -> None:
    """While trajectories have the memory that the older action lacks, a round keeps memory for it, but no cores."""
    world, manager = world_with_manager(cores=4, memory=100)
    world.trajectory("t")
    world.submit(action_request("reset", ActionKind.ENV_RESET, "t", demand=kept(memory=60, start_cpu=1)), plan=True)
    manager.run("reset")
    world.submit(action_request("older", demand=fixed(cpu=2, memory=50)))
    manager.live(6.0)
    world.submit(action_request("cores", demand=fixed(cpu=1)), action_request("memory", demand=fixed(memory=10)))
    assert why(world, "cores").reason is WaitReason.NEXT_ROUND
    assert why(world, "memory").reason is WaitReason.HELD_FOR_OLDER
    world.plan()
    assert (manager.has("cores"), manager.has("memory")) == (True, False)


def test_a_backoff_has_not_run_out() -> None:
    world, manager = world_with_trajectory()
    for name in ("free", "reset"):
        kind = ActionKind.ENV_RESET if name == "reset" else ActionKind.TOOL_CALL
        world.submit(action_request(name, kind, "t"), plan=True)
        manager.start(name)
        manager.fail(name)
        assert why(world, name) == Explanation(WaitReason.BACKOFF, "attempt 1 failed; the next one starts in 0.2 s")


def test_an_attempt_of_before_the_restart_may_still_run() -> None:
    world, _, _ = world_with_call()
    after = world.restart()
    assert why(after, "a") == Explanation(
        WaitReason.RECOVERY, "it was running on m before the restart; that manager is awaited"
    )
