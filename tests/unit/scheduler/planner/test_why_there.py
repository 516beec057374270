"""The story of an action has the reason for its place: the rule, the price there, and the place that came next."""

from __future__ import annotations

import re

from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.solvers.cp_sat import Budget

from tests.support.core_generations import Rollouts, engine
from tests.support.core_requests import action_request, elastic
from tests.support.core_world import CoreWorld


def dispatched(world: CoreWorld, action_id: str) -> str:
    """What the story says of the first dispatch."""
    return next(event for _, event in world.story(action_id) if event.startswith("attempt 1 dispatched"))


def world() -> CoreWorld:
    made = CoreWorld(planner=ElasticPlanner(ElasticSettings(budget=Budget(seconds=0.5, deterministic=True))))
    made.job()
    return made


def plan_all(world: CoreWorld) -> None:
    """Plans until no round asks for another one."""
    while world.plan().truncated:
        continue


def test_an_engine_with_the_prefix_tells_its_price_and_the_next_engine() -> None:
    rollouts = Rollouts(a=engine(), b=engine())
    rollouts.world.trajectory("t")
    rollouts.turn("first", "t", 3000, on="b")
    rollouts.ask("second", 3200, trajectory="t")
    plan_all(rollouts.world)
    told = dispatched(rollouts.world, "second")
    assert told.startswith("attempt 1 dispatched to b: its price there is ")
    assert "tokens of its prompt cached; next is a at " in told
    here, there = map(float, re.findall(r"(?:is|at) ([0-9.]+) s", told))
    assert here < there


def test_the_only_engine_with_room_says_that_it_is_the_only_one() -> None:
    rollouts = Rollouts(a=engine(slots=1), b=engine(slots=1))
    for name in ("first", "second"):
        rollouts.ask(name, 100)
    plan_all(rollouts.world)
    told = {dispatched(rollouts.world, name) for name in ("first", "second")}
    assert sum("no other engine has room" in each for each in told) == 1


def test_a_new_sandbox_tells_the_load_that_chose_its_node() -> None:
    made = world()
    for name in ("a", "b"):
        made.manager(name, cores=8, memory=10_000)
    made.trajectory("t")
    made.reset("reset", "t")
    plan_all(made)
    assert "busy cores expected there: 0; next is " in dispatched(made, "reset")


def test_an_action_in_a_sandbox_says_that_its_sandbox_is_there() -> None:
    made = world()
    manager = made.manager("m", cores=4, memory=10_000)
    made.trajectory("t")
    made.reset("reset", "t")
    plan_all(made)
    manager.run("reset")
    made.step("step", "t")
    plan_all(made)
    assert dispatched(made, "step") == "attempt 1 dispatched to m: its sandbox is there"


def test_a_width_that_a_solver_chose_tells_what_it_saves() -> None:
    made = world()
    made.manager(cores=8)
    made.submit(*(action_request(name, demand=elastic(1, 8)) for name in ("x", "y")))
    plan_all(made)
    assert ": saves " in dispatched(made, "x")
    assert "no other node has room" in dispatched(made, "x")
