"""The service of managers that pull: for every image that they have no service for, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.protocol import ReviewingPlanner
from callsheet.scheduler.planner.solvers.cp_sat import Budget

from tests.support.core_requests import action_request, kept
from tests.support.core_world import CoreWorld, service

RESETS = [ActionKind.ENV_RESET]
PLAIN, ANY, NAMED = service("sandbox", RESETS), service("sandbox:*", RESETS), service("sandbox:django", RESETS)


@pytest.fixture(params=["first come", "elastic"])
def world(request: pytest.FixtureRequest) -> CoreWorld:
    planner: ReviewingPlanner = FirstComePlanner(hold_after=5.0)
    if request.param == "elastic":
        planner = ElasticPlanner(ElasticSettings(budget=Budget(seconds=0.5, deterministic=True)))
    made = CoreWorld(planner=planner)
    made.job()
    return made


def reset(world: CoreWorld, name: str, asked: str) -> None:
    world.trajectory(name)
    world.submit(action_request(name, ActionKind.ENV_RESET, name, demand=kept(memory=256, start_cpu=1), service=asked))


def served(world: CoreWorld) -> dict[str, str]:
    """The service of each attempt that began."""
    while world.plan().truncated:
        continue
    attempts = [each for manager in world.state.managers.values() for each in manager.attempts.values()]
    return {attempt.action.key.action_id: attempt.service for attempt in attempts}


def test_an_image_of_a_registry_goes_to_a_manager_that_pulls(world: CoreWorld) -> None:
    world.manager("store", PLAIN, NAMED)
    world.manager("pulls", PLAIN, ANY)
    reset(world, "a", "sandbox:docker.io/library/python:3.11")
    assert served(world) == {"a": "sandbox:*"}


def test_an_image_with_a_service_of_its_own_goes_there(world: CoreWorld) -> None:
    # It would take long, and that is told at its own service alone.
    world.manager("both", PLAIN, ANY, replace(NAMED, setup_s=30.0))
    reset(world, "a", "sandbox:django")
    assert served(world) == {"a": "sandbox:django"}


def test_it_is_for_images_only(world: CoreWorld) -> None:
    world.manager("pulls", ANY)
    for asked in ("", "sandbox", "test-suite"):
        with pytest.raises(RefusedError, match="no registered manager serves"):
            world.submit(action_request("a", ActionKind.ENV_RESET, service=asked))


def test_a_dockerfile_goes_to_a_manager_that_builds_and_to_no_other(world: CoreWorld) -> None:
    world.manager("pulls", PLAIN, ANY)
    with pytest.raises(RefusedError, match="--build-images"):
        world.submit(action_request("a", ActionKind.ENV_RESET, service="sandbox:@build"))
    world.manager("builds", PLAIN, service("sandbox:@build", RESETS))
    reset(world, "b", "sandbox:@build")
    assert served(world) == {"b": "sandbox:@build"}
