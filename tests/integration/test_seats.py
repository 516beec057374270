"""Seats of a trainer that was started again: what had ended is found, and what was cut off begins anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from callsheet.client import Client, Job
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.environments import EpisodePolicy, EpisodeTask
from callsheet.environments.seats import FilledSeat, Seat, SeatSettings, fill_seats
from callsheet.managers.sandbox.settings import Isolation

from tests.support.word_environment import SayingPolicy, WordTasks

pytestmark = pytest.mark.anyio
_DEADLINE_S = 120.0
TASKS = WordTasks(count=3)


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Where a stack with sandboxes listens."""
    place: Path = tmp_path_factory.mktemp("seats")
    settings = StackSettings(place, managers=(Role.SANDBOX,), isolation=Isolation.NONE)
    with anyio.fail_after(_DEADLINE_S):
        async with local_stack(settings) as stack:
            yield stack.address


def seats(name: str) -> list[Seat]:
    return [Seat(f"{name}/{task.task_id}", f"{name}/g", len(TASKS.tasks()), task) for task in TASKS.tasks()]


def saying(_: EpisodeTask) -> EpisodePolicy:
    return SayingPolicy()


async def fill(job: Job, name: str) -> list[FilledSeat]:
    with anyio.fail_after(_DEADLINE_S):
        return await fill_seats(job, TASKS, seats(name), saying, settings=SeatSettings())


async def test_a_step_that_had_ended_is_found_again_and_nothing_runs(address: str) -> None:
    async with Client(address) as first:
        done = await fill(await first.open_job("again"), "step-1")
    assert [each.record.score.value for each in done if each.record.score] == [1.0] * 3
    async with Client(address) as second, await second.open_job("again") as job:
        before = await job.trajectories(closed=True)
        found = await fill(job, "step-1")
        assert [each.repeated for each in found] == [True] * 3
        assert [each.record.score for each in found] == [each.record.score for each in done]
        assert [each.record.messages for each in found] == [each.record.messages for each in done]
        after = await job.trajectories(closed=True)
        assert [status.spec for status in after] == [status.spec for status in before]


async def test_what_was_cut_off_begins_anew_under_another_id(address: str) -> None:
    async with Client(address) as client, await client.open_job("cut") as job:
        seat = seats("step-1")[0]
        group = job.group(seat.group_id, size=seat.group_size, infra_budget=SeatSettings().max_replacements)
        trajectory = group.trajectory(seat.seat_id)
        trajectory.number_actions()
        await trajectory.open()
        (await trajectory.env_reset(label="word-reset")).unwrap()
        # As the end of a job's grace does.
        await job.cancel()
        found = await fill(job, "step-1")
        assert [each.record.failure for each in found] == [None] * 3
        assert [each.record.trajectory_id for each in found] == [
            f"{seat.seat_id}~1",
            *(at.seat_id for at in seats("step-1")[1:]),
        ]
        assert [each.replaced for each in found] == [0] * 3
