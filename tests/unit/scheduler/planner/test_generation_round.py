"""Where generations go: by what they cost on each engine, for as much as its KV cache holds."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionState
from callsheet.scheduler.core.words.registration import ServiceState
from callsheet.scheduler.planner.answers.explain import explain_in_parts
from callsheet.scheduler.planner.round.generations import PATIENCE_S
from callsheet.scheduler.planner.round.review import WaitReason

from tests.support.core_generations import Rollouts, engine
from tests.support.core_requests import JOB, job_request


def test_an_idle_engine_is_preferred_and_slots_are_never_exceeded() -> None:
    rollouts = Rollouts(a=engine(slots=2), b=engine(slots=2))
    for index in range(6):
        rollouts.ask(f"g{index}", 100)
    rollouts.world.plan()
    places = [rollouts.where(f"g{index}") for index in range(6)]
    assert sorted(places[:4]) == ["a", "a", "b", "b"]
    assert places[:2] in (["a", "b"], ["b", "a"])
    assert places[4:] == ["", ""]


def test_kv_tokens_bound_what_is_sent_and_explain_says_so() -> None:
    rollouts = Rollouts(a=engine(slots=64, kv_tokens=1000))
    for name in ("first", "second", "third"):
        rollouts.ask(name, 400, new=50)
    rollouts.world.plan()
    assert [rollouts.where(name) for name in ("first", "second", "third")] == ["a", "a", ""]
    answer = at_once(
        explain_in_parts(rollouts.world.state, rollouts.world.live("third"), rollouts.world.now, rollouts.planner)
    )
    assert answer.reason is WaitReason.RESOURCES
    assert [(each.resource, each.free, each.capacity) for each in answer.shortages] == [("kv tokens", 100, 1000)]
    rollouts.end("first")
    rollouts.world.plan()
    assert rollouts.where("third") == "a"


def test_an_idle_engine_takes_what_is_larger_than_it_says() -> None:
    """Whether it can be served at all only the engine knows."""
    rollouts = Rollouts(a=engine(kv_tokens=1000))
    rollouts.ask("huge", 5000, plan=True)
    assert rollouts.where("huge") == "a"


def test_what_others_hold_of_an_engine_counts() -> None:
    rollouts = Rollouts(a=engine(slots=4, kv_tokens=10_000), b=engine(slots=4, kv_tokens=10_000))
    told = ServiceState("policy", 0.0, 0, others_sequences=3, others_kv_tokens=9000)
    rollouts.world.handle(events.ManagerHeartbeat("a", rollouts.engines["a"].stream, (told,)))
    for index in range(4):
        rollouts.ask(f"g{index}", 500)
    rollouts.world.plan()
    assert [rollouts.where(f"g{index}") for index in range(4)].count("b") >= 3


@pytest.mark.parametrize("prompt", [3000, 30_000])
def test_a_trajectory_comes_back_to_its_prefix(prompt: int) -> None:
    rollouts = Rollouts(a=engine(), b=engine(), c=engine())
    rollouts.world.trajectory("t")
    rollouts.turn("first", "t", prompt, on="b")
    rollouts.ask("second", prompt + 200, trajectory="t", plan=True)
    assert rollouts.where("second") == "b"


def test_a_prefix_of_old_weights_draws_nobody() -> None:
    rollouts = Rollouts(a=engine(), b=engine())
    rollouts.world.trajectory("t")
    rollouts.turn("first", "t", 30_000, on="b")
    rollouts.engines["b"].services = (engine(version=1),)
    rollouts.engines["b"].join()
    request = rollouts.world.state.managers["b"].services["policy"]
    assert request.description.policy_version == 1
    rollouts.ask("second", 30_200, trajectory="t")
    assert rollouts.knowledge.cached_tokens(rollouts.world.live("second").request, "b", request) == 0


def test_a_prefix_that_is_not_worth_the_crowd_is_given_up() -> None:
    """The spiral of routers that look at prefixes alone: all go where the crowd is."""
    rollouts = Rollouts(a=engine(slots=64), b=engine(slots=64))
    rollouts.world.trajectory("t")
    rollouts.turn("first", "t", 50, on="b")
    for index in range(20):
        rollouts.ask(f"g{index}", 100, new=2000)
        rollouts.world.propose(f"g{index}", "b")
    rollouts.ask("second", 200, trajectory="t", plan=True)
    assert rollouts.where("second") == "a"


def test_a_trajectory_waits_for_its_full_engine_only_as_long_as_that_saves() -> None:
    rollouts = Rollouts(a=engine(slots=1), b=engine(slots=1))
    rollouts.world.trajectory("t")
    rollouts.turn("first", "t", 16_000, on="b")
    rollouts.ask("other", 100, new=2000)
    rollouts.world.propose("other", "b")
    rollouts.ask("second", 16_100, trajectory="t")
    plan = rollouts.world.plan()
    assert rollouts.where("second") == ""
    assert plan.again_at is not None
    saved_s = plan.again_at - rollouts.world.now
    assert 0.0 < saved_s <= PATIENCE_S
    rollouts.world.wait(saved_s)
    assert rollouts.where("second") == "a"


def test_a_full_fleet_serves_those_whose_prefix_it_holds_first_but_nobody_starves() -> None:
    rollouts = Rollouts(a=engine(slots=1))
    rollouts.world.trajectory("t")
    rollouts.turn("first", "t", 16_000, on="a")
    rollouts.ask("running", 100, plan=True)
    rollouts.ask("newcomer", 100)
    rollouts.world.now += 1.0
    rollouts.ask("second", 16_100, trajectory="t")
    rollouts.end("running")
    rollouts.world.plan()
    assert (rollouts.where("second"), rollouts.where("newcomer")) == ("a", "")
    rollouts.end("second")
    rollouts.world.now += PATIENCE_S
    rollouts.ask("third", 16_200, trajectory="t", plan=True)
    assert (rollouts.where("newcomer"), rollouts.where("third")) == ("a", "")


def test_jobs_share_engines_by_their_weights() -> None:
    rollouts = Rollouts(a=engine(slots=12))
    rollouts.world.job(job_request("heavy", weight=2.0))
    for index in range(20):
        rollouts.ask(f"g{index}", 100)
    for index in range(20):
        rollouts.ask(f"h{index}", 100, job="heavy")
    rollouts.world.plan()
    running = [attempt.action.key.job_id for attempt in rollouts.world.state.attempts.values()]
    assert (running.count(JOB), running.count("heavy")) == (4, 8)


def test_an_engine_without_room_gets_nothing() -> None:
    rollouts = Rollouts(a=engine(), b=engine())
    told = ServiceState("policy", 0.0, 0, no_room=True)
    rollouts.world.handle(events.ManagerHeartbeat("a", rollouts.engines["a"].stream, (told,)))
    for index in range(3):
        rollouts.ask(f"g{index}", 10)
    rollouts.world.plan()
    assert {rollouts.where(f"g{index}") for index in range(3)} == {"b"}


def test_the_faster_engine_gets_more() -> None:
    rollouts = Rollouts(a=engine(slots=64), b=engine(slots=64))
    for index in range(40):
        name, seconds = f"l{index}", 1.0 if index % 2 else 4.0
        rollouts.ask(name, 1000)
        rollouts.world.propose(name, "a" if index % 2 else "b")
        rollouts.end(name, seconds=seconds)
    for index in range(30):
        rollouts.ask(f"g{index}", 1000)
    rollouts.world.plan()
    places = [rollouts.where(f"g{index}") for index in range(30)]
    assert places.count("a") >= 1.5 * places.count("b") > 0


def test_what_was_booked_is_given_back_however_it_ends() -> None:
    rollouts = Rollouts(a=engine())
    for name in ("good", "bad", "gone"):
        rollouts.ask(name, 100)
    rollouts.world.plan()
    service = rollouts.world.state.managers["a"].services["policy"]
    assert service.kv_booked == 3 * 200
    rollouts.end("good")
    rollouts.engines["a"].fail("bad")
    rollouts.world.cancel("gone")
    rollouts.engines["a"].end("gone", events.AttemptCancelled(None))
    assert rollouts.world.state_of("bad") in (ActionState.QUEUED, ActionState.FAILED)
    assert service.kv_booked == 0


def test_after_a_restart_what_runs_is_booked_again() -> None:
    """What it was expected to write is not known any more, so that the most counts."""
    rollouts = Rollouts(a=engine())
    rollouts.ask("g", 100, new=500)
    request = rollouts.world.live("g").request
    rollouts.world.plan()
    running = rollouts.engines["a"].running(rollouts.engines["a"].start("g"))
    again = rollouts.world.restart()
    again.manager("a", engine(), join=False).join([running])
    again.submit(request)
    service = again.state.managers["a"].services["policy"]
    assert (service.busy, service.kv_booked) == (1, 600)
