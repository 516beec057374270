"""While KV is short, generations wait at tool calls, and trajectories that act keep their places."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionKind, PriorityClass
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.planner.answers.explain import explain_in_parts
from callsheet.scheduler.planner.predictors import ObservedRun, PredictionKey, Predictors
from callsheet.scheduler.planner.round.generations import PATIENCE_S
from callsheet.scheduler.planner.round.review import WaitReason

from tests.support.core_generations import Rollouts, engine
from tests.support.core_requests import JOB, action_request, job_request
from tests.support.core_world import service


def rollouts_with_two_at_their_tools() -> Rollouts:
    """Trajectories t and u have a turn of 30,000 tokens behind them, on an engine for 80,000; t began before."""
    rollouts = Rollouts(a=engine(slots=64, kv_tokens=80_000))
    let_two_act(rollouts)
    return rollouts


def let_two_act(rollouts: Rollouts) -> None:
    """Trajectories t and u have a turn of 30,000 tokens behind them; t began before."""
    for name in ("t", "u"):
        rollouts.world.trajectory(name)
        rollouts.turn(f"{name}1", name, 30_000, on="a")
        rollouts.world.now += 1.0


def test_a_newcomer_waits_while_those_that_act_need_the_room_and_explain_says_so() -> None:
    rollouts = rollouts_with_two_at_their_tools()
    rollouts.ask("busy", 10, new=10, plan=True)
    rollouts.ask("newcomer", 30_000, plan=True)
    assert rollouts.where("newcomer") == ""
    answer = at_once(
        explain_in_parts(rollouts.world.state, rollouts.world.live("newcomer"), rollouts.world.now, rollouts.planner)
    )
    assert answer.reason is WaitReason.RESOURCES
    assert "kept for trajectories whose tool calls run" in answer.sentence
    rollouts.ask("t2", 35_000, trajectory="t", plan=True)
    assert (rollouts.where("t2"), rollouts.where("newcomer")) == ("a", "")


def test_ample_kv_lets_everybody_in() -> None:
    rollouts = Rollouts(a=engine(slots=64, kv_tokens=1_000_000))
    let_two_act(rollouts)
    rollouts.ask("newcomer", 30_000, plan=True)
    assert rollouts.where("newcomer") == "a"


def test_a_trajectory_keeps_its_place_though_its_engine_was_full_when_its_generation_ended() -> None:
    rollouts = Rollouts(a=engine(slots=64, kv_tokens=80_000))
    for name in ("t", "u"):
        rollouts.world.trajectory(name)
        rollouts.ask(f"{name}1", 39_000, new=900, trajectory=name)
        rollouts.world.handle(events.PlanReady(Plan(admitted=((JOB, name),))))
        rollouts.world.plan()
    rollouts.ask("newcomer", 30_000)
    rollouts.end("t1", new=900)
    assert rollouts.knowledge.prefixes.of((JOB, "t")) is not None
    rollouts.world.plan()
    rollouts.ask("t2", 39_950, new=40, trajectory="t", plan=True)
    assert (rollouts.where("t2"), rollouts.where("newcomer")) == ("a", "")


def test_an_idle_engine_takes_places_once_it_has_stood_idle_for_what_computing_them_anew_costs() -> None:
    rollouts = rollouts_with_two_at_their_tools()
    rollouts.ask("newcomer", 30_000)
    plan = rollouts.world.plan()
    assert (rollouts.where("newcomer"), plan.again_at is None) == ("", False)
    began, service = rollouts.world.now, rollouts.world.state.managers["a"].services["policy"]
    claimed, prefill = rollouts.knowledge.claims.tokens_on("a"), rollouts.knowledge.rates("a", "policy")[0]
    lost = rollouts.knowledge.lengths.room(rollouts.world.live("newcomer").request) - (80_000 - claimed)
    assert service.busy == 0
    assert plan.again_at == pytest.approx(began + lost / prefill)
    rollouts.world.wait(lost / prefill + 1e-6)
    assert rollouts.where("newcomer") == "a"
    # The KV that it displaced is that of the least recent generation.
    assert rollouts.knowledge.claims.of((JOB, "t")) is None
    assert rollouts.knowledge.claims.of((JOB, "u")) is not None


def test_an_idle_engine_lets_its_own_in_meanwhile_and_then_the_wait_begins_anew() -> None:
    rollouts = rollouts_with_two_at_their_tools()
    rollouts.ask("newcomer", 30_000)
    plan = rollouts.world.plan()
    assert plan.again_at is not None
    rollouts.ask("t2", 30_200, new=10, trajectory="t", plan=True)
    assert (rollouts.where("t2"), rollouts.where("newcomer")) == ("a", "")
    rollouts.world.now = plan.again_at
    rollouts.end("t2", new=10, cached=30_100)
    rollouts.world.plan()
    assert rollouts.where("newcomer") == ""


def test_headroom_is_left_though_somebody_has_waited_for_long() -> None:
    rollouts = Rollouts(a=engine(slots=64, kv_tokens=200_000))
    for turn, prompt in ((1, 30_000), (2, 32_000)):
        for name in ("t", "u"):
            if turn == 1:
                rollouts.world.trajectory(name)
            rollouts.turn(f"{name}{turn}", name, prompt, on="a")
    rollouts.ask("busy", 10, new=10, plan=True)
    claims = rollouts.knowledge.claims
    for name in ("t", "u"):
        claim = claims.of((JOB, name))
        assert claim is not None
        claims.keep((JOB, name), claim._replace(ends_at=math.inf))
    service = rollouts.world.state.managers["a"].services["policy"]
    headroom = rollouts.knowledge.headroom("a", service)
    free = (service.free_kv_tokens or 0) - claims.tokens_on("a")
    assert 0 < headroom < free
    rollouts.ask("newcomer", free - headroom, new=100, plan=True)
    rollouts.world.now += PATIENCE_S + 1.0
    rollouts.world.plan()
    assert rollouts.where("newcomer") == ""
    rollouts.ask("smaller", free - headroom - 200, new=100, plan=True)
    assert rollouts.where("smaller") == ""
    rollouts.end("busy")
    rollouts.world.plan()
    assert rollouts.where("newcomer") == "a"


def test_a_place_is_given_up_in_time() -> None:
    rollouts = rollouts_with_two_at_their_tools()
    rollouts.ask("busy", 10, new=10, plan=True)
    rollouts.ask("newcomer", 30_000)
    plan = rollouts.world.plan()
    assert plan.again_at is not None
    rollouts.world.wait(plan.again_at - rollouts.world.now)
    assert rollouts.where("newcomer") == "a"


def test_the_engine_of_a_trajectory_that_closed_has_room_again() -> None:
    rollouts = rollouts_with_two_at_their_tools()
    rollouts.ask("busy", 10, new=10, plan=True)
    rollouts.ask("newcomer", 30_000, plan=True)
    for name in ("t", "u"):
        rollouts.world.close_trajectory(name)
    rollouts.world.plan()
    assert rollouts.where("newcomer") == "a"


def test_a_tool_call_that_is_known_to_be_long_gives_its_place_up_at_once() -> None:
    predictors = Predictors()
    for _ in range(50):
        predictors.observe(ObservedRun(PredictionKey(JOB, ActionKind.TOOL_CALL, "build", ""), 600.0))
    rollouts = Rollouts(predictors=predictors, a=engine(slots=64, kv_tokens=80_000))
    rollouts.world.manager("tools", service("builds", {ActionKind.TOOL_CALL}))
    let_two_act(rollouts)
    for name in ("t", "u"):
        rollouts.world.submit(replace(action_request(f"{name}-call", ActionKind.TOOL_CALL, name), label="build"))
    rollouts.ask("busy", 10, new=10)
    rollouts.ask("newcomer", 30_000, plan=True)
    assert rollouts.where("newcomer") == "a"


def test_who_has_grown_out_of_his_place_takes_that_of_a_younger_one() -> None:
    rollouts = rollouts_with_two_at_their_tools()
    rollouts.ask("busy", 10, new=10, plan=True)
    rollouts.ask("t2", 60_000, trajectory="t", plan=True)
    assert rollouts.where("t2") == "a"
    rollouts.ask("u2", 35_000, trajectory="u", plan=True)
    assert rollouts.where("u2") == ""
    rollouts.end("t2")
    rollouts.world.close_trajectory("t")
    rollouts.world.plan()
    assert rollouts.where("u2") == "a"


def test_a_higher_class_takes_places_and_a_job_with_less_does_in_the_end() -> None:
    rollouts = rollouts_with_two_at_their_tools()
    rollouts.world.job(job_request("eval", priority=PriorityClass.EVAL))
    rollouts.world.job(job_request("other"))
    rollouts.ask("busy", 10, new=10, plan=True)
    rollouts.ask("urgent", 30_000, job="eval", plan=True)
    assert rollouts.where("urgent", "eval") == "a"
    rollouts.ask("fair", 30_000, job="other", plan=True)
    assert rollouts.where("fair", "other") == ""
    rollouts.world.now += PATIENCE_S + 1.0
    rollouts.world.plan()
    assert rollouts.where("fair", "other") == "a"
