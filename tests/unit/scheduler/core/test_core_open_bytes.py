"""Bodies of open actions are bounded in bytes and in number, for all jobs together and for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from callsheet.scheduler.core.machine import handle
from callsheet.scheduler.core.state.entities import Action
from callsheet.scheduler.core.step import MAX_EVENTS_PER_STEP, Stepper
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionKey, ActionRequest, Demand
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.planner.first_come import FirstComePlanner

from tests.support.core_requests import action_request, fixed, job_request
from tests.support.core_world import SETTINGS, CoreWorld
from tests.support.peers import Peer

KIB = 1024


def large(action_id: str, size: int = 10 * KIB, *, job_id: str = "job") -> ActionRequest:
    """An action with a body of so many bytes."""
    return replace(action_request(action_id, job_id=job_id), spec=b"x" * size)


def world_with(**bounds: Any) -> CoreWorld:
    """A world with two jobs and these bounds."""
    world = CoreWorld(settings=replace(SETTINGS, **bounds))
    world.manager()
    for job_id in ("job", "other"):
        world.job(job_request(job_id))
    return world


def refusal_of(world: CoreWorld, request: ActionRequest) -> RefusedError:
    """The refusal of a submit."""
    with pytest.raises(RefusedError) as refused:
        world.submit(request)
    assert refused.value.code is RefusalCode.RESOURCE_EXHAUSTED
    assert refused.value.retry_after is not None
    return refused.value


def test_bytes_of_one_job_are_bounded_and_leave_room_for_others() -> None:
    world = world_with(max_open_bytes=100 * KIB, max_job_open_bytes=15 * KIB)
    world.submit(large("a"))
    assert f"one job may have {15 * KIB}" in refusal_of(world, large("b")).rule
    world.submit(large("b", job_id="other"))


def test_actions_of_one_job_are_bounded_whatever_it_asked_for() -> None:
    world = world_with(max_job_open_actions=2)
    world.submit(*(large(action_id) for action_id in ("a", "b")))
    refusal = refusal_of(world, large("c"))
    assert (refusal.field, refusal.value) == ("job_id", "2")
    world.submit(large("c", job_id="other"))


def test_what_a_closed_job_held_is_free_again() -> None:
    world = world_with(max_open_bytes=25 * KIB)
    world.submit(large("a"), large("b"))
    world.handle(events.JobCloseRequested(events.ReplyTo(Peer("client"), 0), "job"))
    assert (world.state.open_bytes, world.state.open_actions) == (0, 0)
    world.submit(large("c", 25 * KIB, job_id="other"))


def test_events_that_wait_for_a_step_are_counted_in_bytes() -> None:
    world = world_with()
    stepper = Stepper(world.state, FirstComePlanner(hold_after=5.0).plan)
    reply = events.ReplyTo(Peer("client"), 0)
    stepper.post([events.SubmitRequested(reply, large(f"a{n}", 100), None) for n in range(MAX_EVENTS_PER_STEP + 3)])
    assert stepper.pending_bytes == 100 * (MAX_EVENTS_PER_STEP + 3)
    stepper.step(world.now)
    assert stepper.pending_bytes == 300
    stepper.step(world.now)
    assert stepper.pending_bytes == 0


@pytest.mark.parametrize(
    ("result", "size"),
    [
        (events.AttemptSucceeded(b"12345"), 5),
        (events.AttemptCancelled(b"123"), 3),
        (events.AttemptCancelled(), 0),
    ],
)
def test_results_that_wait_are_counted_in_bytes(result: events.AttemptResult, size: int) -> None:
    world = world_with()
    world.submit(large("a"), plan=True)
    attempt = world.live("a").attempt
    assert attempt is not None
    ended = events.AttemptEnded("m", attempt.token, ActionKey("job", "a"), 1, result, True, 0.1, b"")
    assert events.body_bytes([ended, events.TimerFired()]) == size


class Untouched(bytes):
    """A body that counts how often anybody looks into it or compares it."""

    looks = 0

    def __hash__(self) -> int:
        type(self).looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        type(self).looks += 1
        return super().__eq__(other)

    def __iter__(self) -> Iterable[int]:  # type: ignore[override]
        type(self).looks += 1
        return super().__iter__()


class CountedEntries(tuple):  # type: ignore[type-arg]
    """Entries of a demand that count how often they are gone through."""

    walks = 0

    def __iter__(self) -> object:  # type: ignore[override]
        type(self).walks += 1
        return super().__iter__()


def waiting(action_id: str, units: int) -> ActionRequest:
    """An action that no node has room for now, with a body and a demand that are watched over."""
    demand = Demand(CountedEntries(fixed(cpu=units, memory=1).entries))
    return replace(action_request(action_id), spec=Untouched(b"x" * KIB), demand=demand)


@pytest.mark.parametrize("count", [1, 60])
def test_an_action_costs_the_same_beside_however_many_large_ones_that_wait(count: int) -> None:
    """Their bodies are not looked at, and their demands by the class and not by the action."""
    world = world_with()
    world.submit(replace(action_request("hog"), demand=fixed(cpu=1)), plan=True)
    world.submit(*(waiting(f"waiting-{number}", 2) for number in range(count)))
    stepper = Stepper(world.state, FirstComePlanner(hold_after=1e9).plan)
    stepper.step(world.now)
    Untouched.looks = CountedEntries.walks = 0
    for number in range(20):
        reply = events.ReplyTo(Peer("client"), 0)
        stepper.post([events.SubmitRequested(reply, action_request(f"small-{number}", demand=Demand()), None)])
        stepper.step(world.now)
        action = world.state.find_action(ActionKey("job", f"small-{number}"))
        assert isinstance(action, Action)
        attempt = action.attempt
        assert attempt is not None, "it waits behind what needs nothing that it needs"
        done = events.AttemptSucceeded(b"done")
        ended = events.AttemptEnded("m", attempt.token, action.key, 1, done, True, 0.1, action.request.body_hash)
        handle(world.state, [ended], world.now)
    assert Untouched.looks == 0
    assert CountedEntries.walks <= 20 * 8, f"{CountedEntries.walks} walks for {count} that wait"
