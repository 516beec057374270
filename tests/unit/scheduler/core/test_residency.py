"""Models that share GPUs: which calls an idle instance serves, and where another one can come in."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKind, PriorityClass
from callsheet.scheduler.core.words.registration import ServiceDescription, ServiceState
from callsheet.scheduler.planner.answers.explain import explain_in_parts
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.protocol import ReviewingPlanner
from callsheet.scheduler.planner.solvers.cp_sat import Budget

from tests.support.core_requests import action_request, fixed, job_request
from tests.support.core_world import CoreWorld, FakeManager, node, world_with_job

EXACT = Budget(seconds=0.5, deterministic=True)
SET_UP_S = 0.3


def model(name: str) -> ServiceDescription:
    """A model that is not there."""
    return ServiceDescription(name, frozenset({ActionKind.REWARD}), 0, {}, setup_s=SET_UP_S)


def world_with_models(hold_after: float = 5.0, **gpus: int) -> tuple[CoreWorld, dict[str, FakeManager]]:
    """A world with the models "judge" and "other" on nodes with so many GPUs; job "urgent" goes before the others."""
    world = world_with_job(planner=ElasticPlanner(ElasticSettings(budget=EXACT, hold_after=hold_after)))
    world.job(job_request("second"))
    world.job(job_request("urgent", priority=PriorityClass.EVAL))
    models = model("judge"), model("other")
    return world, {name: world.manager(name, *models, on=node(name, 1, gpu=count)) for name, count in gpus.items()}


def tell(world: CoreWorld, manager: FakeManager, *states: ServiceState) -> None:
    """What a manager says of its models."""
    world.handle(events.ManagerHeartbeat(manager.node.node_id, manager.stream, states))


def call(world: CoreWorld, name: str, service: str, *, gpus: int = 1, job: str = "job", seconds: float = 1.0) -> None:
    """Submits a call of a model."""
    request = action_request(name, ActionKind.REWARD, job_id=job, demand=fixed(gpu=gpus), expected=seconds)
    request.service = service
    world.submit(request)


def wait(world: CoreWorld, managers: dict[str, FakeManager], seconds: float) -> None:
    """Lets time pass while managers and their attempts live on."""
    for _ in range(int(seconds)):
        world.wait(1.0)
        for manager in managers.values():
            manager.heartbeat()


def start(world: CoreWorld) -> set[str]:
    """Plans until nothing more starts; the actions that did."""
    started: set[str] = set()
    while True:
        plan = world.plan()
        started |= {each.key.action_id for each in plan.assignments}
        if not plan.truncated:
            return started


def test_an_instance_serves_those_who_wait_for_it_before_it_gives_way_to_shorter_calls() -> None:
    world, managers = world_with_models(a=1)
    tell(world, managers["a"], ServiceState("judge", 0.0, 1))
    call(world, "short", "other", seconds=1.0)
    for index in range(2):
        call(world, f"long{index}", "judge", seconds=8.0)
    for index in range(2):
        assert start(world) == {f"long{index}"}
        managers["a"].run(f"long{index}")
    assert start(world) == {"short"}


def test_an_instance_gives_way_to_who_is_late() -> None:
    world, managers = world_with_models(a=1)
    tell(world, managers["a"], ServiceState("judge", 0.0, 1), ServiceState("other", SET_UP_S, 0, no_room=True))
    call(world, "old", "other")
    assert start(world) == set()
    wait(world, managers, 100.0)
    tell(world, managers["a"], ServiceState("other", SET_UP_S, 0))
    call(world, "young", "judge")
    assert start(world) == {"old"}


@pytest.mark.parametrize(("job", "first"), [("job", "there"), ("urgent", "elsewhere")])
def test_an_instance_gives_way_to_more_urgent_jobs(job: str, first: str) -> None:
    world, managers = world_with_models(a=1)
    tell(world, managers["a"], ServiceState("judge", 0.0, 1))
    call(world, "there", "judge")
    call(world, "elsewhere", "other", job=job)
    assert start(world) == {first}


def test_a_model_comes_in_where_it_takes_nothing_from_those_who_wait() -> None:
    world, managers = world_with_models(a=1, b=1)
    tell(world, managers["a"], ServiceState("judge", 0.0, 1))
    call(world, "there", "judge", seconds=4.0)
    for index in range(2):
        call(world, f"elsewhere{index}", "other")
    assert len(start(world)) == 2
    assert (managers["a"].has("there"), len(managers["b"].stream.all(commands.Dispatch))) == (True, 1)


def test_nothing_is_sent_where_free_units_are_no_room() -> None:
    world, managers = world_with_models(a=4)
    tell(world, managers["a"], ServiceState("judge", SET_UP_S, 0, no_room=True))
    call(world, "wide", "judge", gpus=2)
    assert start(world) == set()
    tell(world, managers["a"], ServiceState("judge", SET_UP_S, 0))
    assert start(world) == {"wide"}


@pytest.mark.parametrize("there", [True, False])
def test_no_node_is_held_for_calls_whose_model_is_there(*, there: bool) -> None:
    world, managers = world_with_models(a=2, b=2, hold_after=1.0)
    tell(world, managers["a"], ServiceState("judge" if there else "other", 0.0, 1))
    tell(world, managers["b"], ServiceState("other", 0.0, 2))
    call(world, "wide", "judge" if there else "other", gpus=2)
    assert start(world) == {"wide"}
    call(world, "narrow", "other")
    assert start(world) == {"narrow"}
    assert managers["a"].has("wide")
    call(world, "waits", "judge", gpus=2)
    assert start(world) == set()
    wait(world, managers, 100.0)
    call(world, "next", "other")
    assert start(world) == ({"next"} if there else set())


def test_calls_that_need_but_a_slot_go_where_their_model_is() -> None:
    world = world_with_job(planner=ElasticPlanner(ElasticSettings(budget=EXACT)))
    models = [replace(model(name), slots=64) for name in ("judge", "other")]
    managers = {name: world.manager(name, *models, on=node(name, 1)) for name in ("a", "b")}
    tell(world, managers["a"], ServiceState("judge", 0.0, 1), ServiceState("other", SET_UP_S, 0))
    tell(world, managers["b"], ServiceState("judge", SET_UP_S, 0), ServiceState("other", 0.0, 1))
    for index in range(4):
        call(world, f"judge{index}", "judge", gpus=0)
        call(world, f"other{index}", "other", gpus=0)
    assert len(start(world)) == 8
    assert all(managers["a"].has(f"judge{index}") for index in range(4))
    assert all(managers["b"].has(f"other{index}") for index in range(4))
    tell(world, managers["a"], ServiceState("judge", SET_UP_S, 0, no_room=True))
    call(world, "elsewhere", "judge", gpus=0)
    assert start(world) == {"elsewhere"}
    assert managers["b"].has("elsewhere")


@pytest.mark.parametrize("planner", [FirstComePlanner, ElasticPlanner])
def test_calls_go_elsewhere_while_a_service_pauses_and_come_back_all_at_once(planner: type[ReviewingPlanner]) -> None:
    world = world_with_job(planner=planner())
    search = ServiceDescription("search", frozenset({ActionKind.TOOL_CALL}), 64, {}, instances=64)
    managers = {name: world.manager(name, search, on=node(name, 1)) for name in ("a", "b")}

    def calls(first: int, count: int) -> set[str]:
        names = {f"c{number}" for number in range(first, first + count)}
        world.submit(*(action_request(name, ActionKind.TOOL_CALL, demand=fixed(), service="search") for name in names))
        assert start(world) <= names
        return names

    tell(world, managers["a"], ServiceState("search", 0.0, 0, no_room=True))
    elsewhere = calls(0, 8)
    assert all(managers["b"].has(name) for name in elsewhere)
    tell(world, managers["b"], ServiceState("search", 0.0, 0, no_room=True))
    waiting = calls(8, 8)
    assert not any(managers[name].has(call) for name in managers for call in waiting)
    tell(world, managers["a"], ServiceState("search", 0.0, 64))
    start(world)
    assert all(managers["a"].has(name) for name in waiting)


def test_a_function_waits_for_its_image_or_brings_it_elsewhere_by_what_that_costs() -> None:
    world = world_with_job(planner=ElasticPlanner(ElasticSettings(budget=EXACT)))
    kinds = frozenset({ActionKind.ENV_RESET, ActionKind.REWARD})
    image = ServiceDescription("sandbox:graders", kinds, 0, {}, setup_s=20.0)
    managers = {name: world.manager(name, image, on=node(name, 2)) for name in ("warm", "cold")}
    tell(world, managers["warm"], ServiceState("sandbox:graders", 0.0, 2))

    def functions(first: int, count: int, seconds: float) -> list[str]:
        names = [f"f{number}" for number in range(first, first + count)]
        for name in names:
            demand = fixed(cpu=1)
            request = action_request(
                name, ActionKind.REWARD, demand=demand, expected=seconds, service="sandbox:graders"
            )
            world.submit(request)
        return names

    first = functions(0, 2, 1.0)
    assert start(world) == set(first)
    assert all(managers["warm"].has(name) for name in first)
    (next_one,) = functions(2, 1, 1.0)
    assert start(world) == set(), "its turn comes before an image could be there"
    explained = at_once(explain_in_parts(world.state, world.live(next_one), world.now, world.planner))
    assert "only with a set-up of 20.0 s" in explained.sentence
    functions(3, 200, 1.0)
    started = start(world)
    assert started, "those who come last wait longer than an image takes"
    assert all(managers["cold"].has(name) for name in started)
