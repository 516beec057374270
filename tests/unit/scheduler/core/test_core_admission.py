"""Trajectories wait with all their actions until a plan admits them."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionKind, ActionState, GroupRequest, Timeouts
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.planner.answers.explain import explain_in_parts
from callsheet.scheduler.planner.round.review import WaitReason

from tests.support.core_requests import JOB, action_request, key_of, trajectory_request
from tests.support.core_world import CoreWorld, FakeManager, Stream, world_with_job, world_with_manager
from tests.support.gated_planner import GatedPlanner


def gated_world(most: int = 1, *trajectories: str) -> tuple[CoreWorld, FakeManager]:
    """A world whose planner lets `most` trajectories live at once."""
    world = world_with_job(planner=GatedPlanner(most))
    manager = world.manager("m", cores=8)
    world.trajectories(*trajectories or ("t", "u"))
    return world, manager


def waiting(world: CoreWorld) -> list[str]:
    """Trajectories that wait, in order."""
    return list(world.state.waiting_trajectories.get(JOB, {}))


def test_the_first_planner_admits_and_dispatches_in_one_round() -> None:
    world, manager = world_with_manager("m")
    world.trajectory("t")
    world.reset("reset")
    world.submit(action_request("free", ActionKind.GENERATE, "t"))
    assert waiting(world) == ["t"]
    assert not len(world.state.ready)
    world.plan()
    manager.run("reset")
    manager.run("free")
    assert not waiting(world)
    assert world.outcomes[key_of("reset")].start_wait_s == 0.0


def test_only_admitted_trajectories_begin() -> None:
    world, manager = gated_world(1, "t", "u", "v")
    for name in ("t", "u", "v"):
        world.reset(f"reset-{name}", name)
    world.plan()
    assert manager.has("reset-t")
    assert waiting(world) == ["u", "v"]
    world.now += 3.0
    manager.run("reset-t")
    world.close_trajectory("t")
    world.plan()
    manager.run("reset-u")
    facts = world.outcomes[key_of("reset-u")]
    assert facts.start_wait_s == facts.queue_s == pytest.approx(3.0)


def test_the_wait_to_start_is_part_of_the_queue_time_and_ends_with_the_admission() -> None:
    world, manager = gated_world(1)
    world.reset("first", "t")
    world.reset("second", "u")
    world.step("step", "u", plan=True)
    world.now += 2.0
    world.step("late", "u")
    world.now += 5.0
    manager.run("first")
    world.close_trajectory("t")
    world.plan()
    world.now += 1.0
    for name in ("second", "step", "late"):
        world.plan()
        manager.run(name)
    facts = {name: world.outcomes[key_of(name)] for name in ("second", "step", "late")}
    assert {name: each.start_wait_s for name, each in facts.items()} == {"second": 7.0, "step": 7.0, "late": 5.0}
    assert facts["step"].queue_s == 8.0
    told = [event for _, event in world.story(key_of("second"))]
    assert told[:2] == ["submitted", "its trajectory was admitted"]


def test_an_action_without_a_trajectory_waits_for_no_admission() -> None:
    world, manager = gated_world(0)
    world.submit(action_request("alone"), plan=True)
    manager.run("alone")


def test_a_plan_admits_only_who_waits() -> None:
    world, _ = gated_world(0)
    world.handle(events.PlanReady(Plan(admitted=((JOB, "t"), (JOB, "nobody"), ("nobody", "t")))))
    world.reset("reset", "t")
    assert waiting(world) == ["t"], "it had nothing to begin with when it was proposed"
    world.handle(events.PlanReady(Plan(admitted=((JOB, "t"), (JOB, "t")))))
    assert world.live("reset").ready_ticket
    assert world.state.jobs[JOB].live_trajectories == 1


def test_a_trajectory_without_actions_left_waits_no_more() -> None:
    world, _ = gated_world(0)
    world.reset("reset", "t")
    world.submit(action_request("brief", ActionKind.GENERATE, "u", timeouts=Timeouts(5.0, 5.0, 5.0)))
    world.now += 1.0
    world.cancel("reset")
    assert waiting(world) == ["u"]
    assert world.outcomes[key_of("reset")].start_wait_s == pytest.approx(1.0)
    world.wait(5.0)
    assert world.state_of("brief") is ActionState.EXPIRED
    assert not world.state.waiting_trajectories
    world.reset("again", "t")
    assert waiting(world) == ["t"]
    world.close_trajectory("t")
    assert not world.state.waiting_trajectories


def test_what_can_never_run_is_not_kept_waiting() -> None:
    world, _ = gated_world(0)
    world.reset("reset", "t")
    world.step("step", "t")
    world.cancel("reset")
    assert world.failure("step").reason == "state_lost"
    assert not world.state.waiting_trajectories


def test_waiting_for_admission_is_explained() -> None:
    world, manager = gated_world(1, "t", "u", "v")
    for name in ("t", "u", "v"):
        world.reset(f"reset-{name}", name)
    world.plan()
    manager.start("reset-t")
    explanation = at_once(explain_in_parts(world.state, world.live("reset-v"), world.now, world.planner))
    assert explanation.reason is WaitReason.ADMISSION
    assert "number 2 of the 2" in explanation.sentence
    assert "1 are live" in explanation.sentence


def test_an_attempt_that_is_adopted_admits_its_trajectory() -> None:
    world, manager = gated_world(1)
    world.journal.learn(action_request("generate", ActionKind.GENERATE, "t"))
    before = dict(world.journal.actions)
    world.submit(action_request("generate", ActionKind.GENERATE, "t"), plan=True)
    grant = manager.start("generate")
    world.journal.actions = before
    restarted = world.restart()
    manager.world, manager.stream = restarted, Stream()
    manager.join([manager.running(grant)])
    restarted.submit(action_request("generate", ActionKind.GENERATE, "t"))
    assert restarted.state_of("generate") is ActionState.RUNNING
    assert not restarted.state.waiting_trajectories
    assert restarted.state.jobs[JOB].live_trajectories == 1


def test_a_sibling_opened_after_the_quorum_is_redundant_at_once() -> None:
    world = world_with_job()
    group = GroupRequest("g", 3, 1)
    world.trajectory(trajectory_request("a", group=group))
    world.close_trajectory("a")
    late = trajectory_request("b", group=group)
    world.trajectory(late)
    world.trajectory(late)
    with pytest.raises(RefusedError, match="was closed as abandoned"):
        world.reset("reset", "b")
    assert world.journal.trajectories[JOB, "b"].end == "abandoned"
