"""What the planner placed and still runs, by job: fair shares and expected arrivals rest on it."""

from __future__ import annotations

from callsheet.scheduler.core.entities import Action, Job
from callsheet.scheduler.core.model import ActionKind
from callsheet.scheduler.planner.placed import PlacedActions, Running
from callsheet.scheduler.planner.pools import Fleet

from tests.support.core_requests import action_request, fixed, job_request
from tests.support.core_world import CoreWorld


def generation(number: int) -> tuple[Action, Running]:
    """A generation on two cores."""
    request = action_request(f"g{number}", ActionKind.GENERATE, demand=fixed(cpu=2))
    return Action(request, Job(job_request()), None, number, 0.0, 0.0), Running.of(request, {"cpu": 2}, 0)


def test_what_was_placed_on_lost_managers_is_forgotten() -> None:
    world, placed, fleet = CoreWorld(), PlacedActions(), Fleet()
    lost, left = world.manager("lost"), world.manager("left")
    fleet.refresh(world.state, placed, lambda _: 1.0)
    placed.add("lost", *generation(1))
    placed.add("lost", *generation(2))
    assert (placed.held, placed.generating) == ({"job": {"cpu": 4}}, 2)
    lost.disconnect()
    left.live(world.settings.manager_lease + 1.0)
    assert "lost" not in world.state.managers
    fleet.refresh(world.state, placed, lambda _: 1.0)
    assert (placed.held, placed.generating) == ({}, 0)
