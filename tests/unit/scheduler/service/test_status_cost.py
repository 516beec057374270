"""What an operator asks costs by the jobs and managers there are, and not by their actions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionKey, ActionState
from callsheet.scheduler.service.codec import listing
from callsheet.scheduler.service.codec.listing import list_jobs, list_trajectories
from callsheet.scheduler.service.codec.status_answers import job_status
from callsheet.v1 import client_service_pb2, job_pb2

from tests.support.core_requests import action_request
from tests.support.core_world import CoreWorld
from tests.support.peers import Peer


class Visited(dict[str, Any]):
    """Actions of a job that count how many of them are looked at."""

    visits = 0

    def __iter__(self) -> Iterator[str]:
        for each in super().__iter__():
            self.visits += 1
            yield each

    def values(self) -> Any:
        """See `dict`."""
        return [self[key] for key in self]

    def items(self) -> Any:
        """See `dict`."""
        return [(key, self[key]) for key in self]


def world_with(actions: int) -> CoreWorld:
    """A job with so many queued actions, a third of which are cancelled."""
    world = CoreWorld()
    world.manager()
    world.job()
    for number in range(actions):
        world.submit(action_request(f"a{number}"))
        if number % 3 == 0:
            key = ActionKey("job", f"a{number}")
            world.handle(events.CancelRequested(events.ReplyTo(Peer("client"), 0), key, "enough"))
    return world


@pytest.mark.parametrize("actions", [3, 300])
async def test_a_status_visits_no_action(actions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_with(actions)
    job = world.state.jobs["job"]
    monkeypatch.setattr(job_pb2.JobSpec, "FromString", lambda _: job_pb2.JobSpec(job_id="job"), raising=False)
    visited = job.actions = Visited(job.actions)
    status = job_status(world.state, job, world.now)
    assert dict(status.actions) == {"queued": actions - actions // 3, "cancelled": actions // 3}
    listed = await list_jobs(world.state, client_service_pb2.ListJobsRequest(), world.now, lambda _: True)
    assert list(listed.jobs) == [status]
    assert visited.visits == 0


def test_states_are_counted_through_a_life_and_a_restart() -> None:
    world = CoreWorld()
    manager = world.manager()
    world.job()
    world.submit(action_request("a"))
    world.submit(action_request("b"))
    world.plan()
    manager.run("a")
    expected = {ActionState.SUCCEEDED: 1, ActionState.DISPATCHED: 1}
    for after in (world, world.restart()):
        counts = after.state.jobs["job"].state_counts
        assert {state: count for state, count in counts.items() if count} == expected


@pytest.mark.parametrize("on_loop", [0, 100])
async def test_pages_are_the_same_wherever_they_are_sought(on_loop: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_ON_LOOP", on_loop)
    world = CoreWorld()
    world.job()
    names = [f"t{number:02}" for number in range(25)]
    for name in reversed(names):
        world.trajectory(name)
    job = world.state.jobs["job"]
    job.trajectory_specs = dict.fromkeys(job.trajectory_specs, b"")
    request = client_service_pb2.ListTrajectoriesRequest(job_id="job", page_size=10)
    visited: list[str] = []

    def visit(_: object, name: str, now: float) -> job_pb2.TrajectoryStatus:
        visited.append(name)
        return job_pb2.TrajectoryStatus()

    monkeypatch.setattr(listing, "trajectory_status", visit)
    more = True
    while more:
        request.after = visited[-1] if visited else ""
        more = (await list_trajectories(world.state, request, world.now)).more
    assert visited == names
