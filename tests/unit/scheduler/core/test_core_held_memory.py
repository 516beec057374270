"""Memory by need: a node is booked by what sandboxes are told to hold between their actions, not by their demands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.state.held_memory import LEAST_LIVES, HeldMemory, booked_mib
from callsheet.scheduler.core.words.model import ActionKind, Demand, ResourceDemand, SandboxCopy
from callsheet.scheduler.planner.answers.explain import explain_in_parts
from callsheet.scheduler.planner.answers.wanted import wanted_in_parts
from callsheet.scheduler.planner.elastic import ElasticPlanner
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.protocol import ReviewingPlanner
from callsheet.scheduler.web.metrics import collect
from callsheet.scheduler.web.tally import Tally

from tests.support.core_requests import action_request, fixed, kept
from tests.support.core_world import CoreWorld, FakeManager, world_with_job

DEMAND = 600

PLANNERS: dict[str, Callable[[], ReviewingPlanner]] = {
    "first come": FirstComePlanner,
    "elastic": lambda: ElasticPlanner(predictors=Predictors()),
}


def world_with(
    *trajectories: str, memory: int = 1000, planner: ReviewingPlanner | None = None
) -> tuple[CoreWorld, FakeManager]:
    """A node, and trajectories that wait for sandboxes of 600 MiB."""
    world = world_with_job(planner=planner)
    manager = world.manager("m", memory=memory, cores=8)
    begin(world, *trajectories)
    world.plan()
    return world, manager


def begin(world: CoreWorld, *trajectories: str, label: str = "", guaranteed: bool = False) -> None:
    """Opens trajectories and submits their resets."""
    demand = kept(start_cpu=1, memory=DEMAND)
    demand = demand.with_guaranteed_memory() if guaranteed else demand
    for name in trajectories:
        world.trajectory(name)
        request = action_request(f"reset-{name}", ActionKind.ENV_RESET, name, demand=demand)
        world.submit(replace(request, label=label))


@pytest.mark.parametrize(
    ("held", "demand", "booked"),
    [(0, 600, 600), (60, 600, 168), (599, 600, 600), (600, 600, 600), (900, 600, 600), (1, 2, 2)],
)
def test_what_is_held_and_a_fifth_of_the_rest_is_booked(held: int, demand: int, booked: int) -> None:
    assert booked_mib(held, demand) == booked


def test_a_sandbox_gives_back_what_it_does_not_hold_and_takes_it_again() -> None:
    world, manager = world_with("t", "u")
    assert manager.grant("reset-t").resources["memory"] == DEMAND, "its limit"
    assert (manager.free["memory"], manager.has("reset-u")) == (400, False)
    manager.run("reset-t", held_mib=60)
    assert manager.free["memory"] == 1000 - 168
    world.plan()
    assert manager.has("reset-u")
    manager.run("reset-u", held_mib=300)
    assert manager.free["memory"] == 1000 - 168 - 360
    for step, held_mib, free in (("a", 120, 424), ("b", 600, 40), ("c", 0, 40), ("d", 12, 510)):
        world.step(step, plan=True)
        manager.start(step)
        assert manager.free["memory"] != free or held_mib == 0, "while it runs its manager sees to it"
        manager.end(step, held_mib=held_mib)
        assert manager.free["memory"] == free, step
    world.close_trajectory("t")
    world.close_trajectory("u")
    assert manager.free["memory"] == 1000


def test_a_copy_and_what_did_not_begin_say_nothing_of_a_sandbox() -> None:
    world, manager = world_with("t")
    manager.run("reset-t", held_mib=60)
    world.submit(action_request("reward", ActionKind.REWARD, "t", in_sandbox=True, copy=SandboxCopy.ALWAYS), plan=True)
    manager.run("reward")
    assert manager.free["memory"] == 832
    world.step("step", plan=True)
    manager.fail("step", started=False)
    assert manager.free["memory"] == 832


def live_and_end(world: CoreWorld, manager: FakeManager, count: int, *, most_mib: int, label: str = "") -> None:
    """Sandboxes live one after the other, and hold less at their end than before."""
    for number in range(count):
        name = f"past-{label}-{len(world.outcomes)}-{number}"
        begin(world, name, label=label)
        plan(world)
        manager.run(f"reset-{name}", held_mib=most_mib)
        world.submit(action_request(f"step-{name}", ActionKind.ENV_STEP, name))
        plan(world)
        manager.run(f"step-{name}", held_mib=1)
        world.close_trajectory(name)


def plan(world: CoreWorld) -> None:
    """Plans until nothing more is proposed."""
    while world.plan().truncated:
        pass


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_new_sandbox_needs_what_those_before_it_held_at_most(planner: str) -> None:
    world, manager = world_with(planner=PLANNERS[planner]())
    live_and_end(world, manager, LEAST_LIVES - 1, most_mib=60)
    begin(world, "a", "b", "c")
    plan(world)
    assert [manager.has(f"reset-{name}") for name in ("a", "b", "c")] == [True, False, False], "the demand until then"
    manager.run("reset-a", held_mib=60)
    world.close_trajectory("a")
    begin(world, "d", "e", "f", "g", "h")
    plan(world)
    # 64 MiB, in steps of 16, and a fifth of the rest.
    assert manager.free["memory"] == 1000 - 5 * 172
    assert manager.grant("reset-b").resources["memory"] == DEMAND, "its limit"
    left = [name for name in "bcdefgh" if not manager.has(f"reset-{name}")]
    assert len(left) == 2
    assert (
        "172 memory needed of a demand of 600, 140 of 1000 free"
        in at_once(explain_in_parts(world.state, world.live(f"reset-{left[0]}"), world.now, world.planner)).sentence
    )
    manager.run("reset-b", held_mib=0)
    assert manager.free["memory"] == 1000 - 4 * 172 - DEMAND, "it was not told, so it counts as the demand"


@pytest.mark.parametrize("planner", PLANNERS)
def test_others_keep_their_demand(planner: str) -> None:
    """Other labels, guaranteed memory, managers that do not tell; and what no node could give whole goes nowhere."""
    world, manager = world_with(planner=PLANNERS[planner]())
    live_and_end(world, manager, LEAST_LIVES, most_mib=60, label="small")
    begin(world, "other", label="large")
    plan(world)
    assert manager.free["memory"] == 1000 - DEMAND
    manager.fail("reset-other", started=False)
    world.cancel("reset-other")
    begin(world, "sure", label="small", guaranteed=True)
    plan(world)
    assert manager.free["memory"] == 1000 - DEMAND
    begin(world, "w", "x", "y", "z", label="small")
    plan(world)
    assert manager.free["memory"] == 1000 - DEMAND - 2 * 172
    silent = world.manager("silent", memory=1000, cores=8)
    plan(world)
    assert silent.free["memory"] == 1000 - DEMAND
    left = next(name for name in "wxyz" if world.live(f"reset-{name}").attempt is None)
    assert not world.propose(f"reset-{left}", "m", cpu=1, memory=DEMAND)


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_node_must_have_the_whole_demand(planner: str) -> None:
    world, manager = world_with(planner=PLANNERS[planner]())
    live_and_end(world, manager, LEAST_LIVES, most_mib=60)
    manager.disconnect()
    small = world.manager("small", memory=DEMAND - 1, cores=8)
    # It goes by need, too.
    world.trajectory("tiny")
    world.submit(action_request("reset-tiny", ActionKind.ENV_RESET, "tiny", demand=kept(memory=100)))
    plan(world)
    small.run("reset-tiny", held_mib=10)
    begin(world, "t")
    plan(world)
    assert not small.has("reset-t")
    assert not world.propose("reset-t", "small", cpu=1, memory=DEMAND)


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("pinned", [True, False], ids=["copy", "image"])
@pytest.mark.parametrize("most", [300, 400])
def test_a_reward_has_its_memory_of_the_manager_that_gives_it_by_need(planner: str, pinned: bool, most: int) -> None:
    """If it were booked, all sandboxes would wait for rewards, and these for room that no sandbox leaves."""
    world, manager = world_with("t", "u", planner=PLANNERS[planner]())
    for name in ("t", "u"):
        plan(world)
        manager.run(f"reset-{name}", held_mib=60)
    for name in ("t", "u"):
        world.step(name, trajectory_id=name)
        plan(world)
        manager.run(name, held_mib=480)
    free = manager.free["memory"]
    assert free == 1000 - 2 * 504
    demand = Demand((*fixed(cpu=1).entries, ResourceDemand("memory", 300, most)))
    copy = SandboxCopy.ALWAYS if pinned else SandboxCopy.NEVER
    reward = partial(action_request, kind=ActionKind.REWARD, demand=demand, in_sandbox=pinned, copy=copy)
    world.submit(*(reward(f"reward-{name}", trajectory_id=name) for name in ("t", "u")))
    plan(world)
    for name in ("t", "u"):
        assert manager.start(f"reward-{name}").resources["memory"] >= 300, "its limit"
        assert manager.free["memory"] == free
    for name in ("t", "u"):
        manager.end(f"reward-{name}")
    assert manager.free["memory"] == free


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_reward_is_booked_with_its_memory_where_that_is_not_by_need(planner: str) -> None:
    world, manager = world_with("t", planner=PLANNERS[planner]())
    plan(world)
    manager.run("reset-t")
    reward = partial(action_request, kind=ActionKind.REWARD, trajectory_id="t")
    world.submit(*(reward(name, demand=fixed(cpu=1, memory=300)) for name in ("a", "b")))
    plan(world)
    assert [manager.has(name) for name in ("a", "b")] == [True, False]
    assert manager.free["memory"] == 100


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_reward_goes_to_no_node_that_is_smaller_than_its_memory(planner: str) -> None:
    world, manager = world_with("t", planner=PLANNERS[planner]())
    plan(world)
    manager.run("reset-t", held_mib=60)
    world.submit(action_request("reward", ActionKind.REWARD, "t", demand=fixed(cpu=1, memory=1001), wait=True))
    plan(world)
    assert not manager.has("reward")


def test_what_was_held_is_forgotten_with_the_label_that_is_oldest() -> None:
    known = HeldMemory()
    demand = kept(memory=DEMAND)
    for number in range(5000):
        for _ in range(LEAST_LIVES):
            known.learn("job", str(number), 60)
    assert known.of_new("job", "0", demand) == 0
    assert known.of_new("job", "4999", demand) == 172
    for _ in range(6):
        known.learn("job", "4999", 500)
    assert known.of_new("job", "4999", demand) == booked_mib(512, DEMAND), "the 95th percentile of the last ones"
    for _ in range(200):
        known.learn("job", "4999", 16)
    assert known.of_new("job", "4999", demand) == booked_mib(16, DEMAND)
    assert known.of_new("job", "4999", kept(memory=10)) == 10, "never more than the demand"
    assert known.of_new("job", "4999", demand.with_guaranteed_memory()) == 0


def metrics(world: CoreWorld) -> dict[str, float]:
    """What the page of metrics shows, by name."""
    families = collect(world.state, Tally(), at_once(wanted_in_parts(world.state)), world.now)
    return {sample.name: sample.value for family in families for sample in family.samples}
