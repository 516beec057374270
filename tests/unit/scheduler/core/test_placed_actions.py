"""What the planner placed and still runs, by job: fair shares and the load of cores rest on it."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.state import entities
from callsheet.scheduler.core.state.entities import Action, Attempt, Job, Manager
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionKind, Token
from callsheet.scheduler.planner.fleet.placed import PlacedActions, Running
from callsheet.scheduler.planner.fleet.pools import Fleet

from tests.support.core_requests import action_request, fixed, job_request, key_of
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


class Watched(dict[Token, Attempt]):
    """Attempts that count how often somebody asked for one of them."""

    asked = 0

    def __contains__(self, token: object) -> bool:
        self.asked += 1
        return super().__contains__(token)


def running(world: CoreWorld, placed: PlacedActions, count: int) -> Manager:
    """A manager that runs so many actions on a core each, "a0" and so on, all of them placed and settled."""
    manager = world.manager(cores=count)
    world.job()
    for number in range(count):
        world.submit(action_request(f"a{number}", demand=fixed(cpu=1)))
        manager_id = manager.manager_id
        world.propose(f"a{number}", manager_id, cpu=1)
        action = world.state.find_action(key_of(f"a{number}"))
        assert isinstance(action, Action)
        placed.add(manager_id, action, Running.of(action.request, {"cpu": 1}, 0))
    of_core = world.state.managers[manager.manager_id]
    placed.settle(of_core)
    return of_core


def cores_of(placed: PlacedActions) -> int:
    """Cores that the job is thought to hold."""
    return placed.held.get("job", {}).get("cpu", 0)


def end(world: CoreWorld, manager: Manager, action: str) -> None:
    """Ends an action well."""
    attempt = next(each for each in manager.attempts.values() if each.action.key == key_of(action))
    result = events.AttemptSucceeded(b"done")
    key, body_hash = attempt.action.key, attempt.action.request.body_hash
    world.handle(events.AttemptEnded(manager.manager_id, attempt.token, key, 1, result, True, 0.5, body_hash))


def test_of_many_that_run_only_those_that_ended_are_looked_at() -> None:
    world, placed = CoreWorld(), PlacedActions()
    manager = running(world, placed, 50)
    assert cores_of(placed) == 50
    end(world, manager, "a7")
    manager.attempts = watched = Watched(manager.attempts)
    placed.settle(manager)
    assert (cores_of(placed), watched.asked) == (49, 0)


def test_too_many_ends_to_note_are_found_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entities, "MOST_LEFT", 2)
    world, placed = CoreWorld(), PlacedActions()
    manager = running(world, placed, 6)
    for number in range(4):
        end(world, manager, f"a{number}")
    assert manager.left is None
    placed.settle(manager)
    assert cores_of(placed) == 2
    end(world, manager, "a4")
    placed.settle(manager)
    assert cores_of(placed) == 1


def test_two_that_keep_books_of_one_manager_are_both_right() -> None:
    world, first, second = CoreWorld(), PlacedActions(), PlacedActions()
    manager = running(world, first, 4)
    for attempt in manager.attempts.values():
        second.add(manager.manager_id, attempt.action, Running.of(attempt.action.request, {"cpu": 1}, 0))
    for number, left in enumerate((3, 2, 1)):
        end(world, manager, f"a{number}")
        for placed in (first, second):
            placed.settle(manager)
            assert cores_of(placed) == left
