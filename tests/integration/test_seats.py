"""Seats of a trainer that was started again: what had ended is found, and what was cut off begins anew."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from callsheet.client import Client, Failed, FailureKind, Job, Trajectory
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.environments import EpisodePolicy, EpisodeTask, Message, Observation
from callsheet.environments.seats import FilledSeat, ReplacementBudget, Seat, SeatSettings, fill_seat, fill_seats
from callsheet.managers.sandbox.settings import Isolation

from tests.support.expected import present
from tests.support.waiting import until_so
from tests.support.word_environment import SayingPolicy, WordEnvironment, WordTasks

pytestmark = pytest.mark.anyio
_DEADLINE_S = 120.0
TASKS = WordTasks(count=3)


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Where a stack with sandboxes listens."""
    place: Path = tmp_path_factory.mktemp("seats")
    settings = StackSettings(place, managers=(Role.SANDBOX,), given={"isolation": Isolation.NONE})
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


class OneHangs(WordTasks):
    """Words whose environments hang in the first sibling's trajectory."""

    def environment(self, task: EpisodeTask) -> WordEnvironment:
        return HangingEnvironment(task.data["word"], 1)


class HangingEnvironment(WordEnvironment):
    """Never answers in one trajectory."""

    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        if trajectory.trajectory_id == "step-1/g/0":
            (await trajectory.env_step("exec sleep 600", label="word-hang")).unwrap()
        return await super().step(trajectory, reply)


async def test_a_spare_trajectory_takes_the_seat_of_one_that_hangs(address: str) -> None:
    settings = SeatSettings(spare=1)
    siblings = [Seat(f"step-1/g/{number}", "step-1/g", 2, TASKS.tasks()[0]) for number in range(2)]
    async with Client(address) as client, await client.open_job("spare") as job:
        with anyio.fail_after(_DEADLINE_S):
            done = await fill_seats(job, OneHangs(1), siblings, saying, settings=settings)
            again = await fill_seats(job, OneHangs(1), siblings, saying, settings=settings)
    for found in (done, again):
        assert [each.record.trajectory_id for each in found] == ["step-1/g/spare-0", "step-1/g/1"]
        assert [each.record.score.value for each in found if each.record.score] == [1.0] * 2
    assert [each.repeated for each in again] == [True] * 2


async def test_a_spare_trajectory_whose_group_has_its_quorum_does_nothing(address: str) -> None:
    settings, task = SeatSettings(spare=1), TASKS.tasks()[0]
    late = [Seat(f"step-1/g/{name}", "step-1/g", 2, task) for name in ("0", "1", "spare-0")]
    async with Client(address) as client, await client.open_job("late") as job:
        with anyio.fail_after(_DEADLINE_S):
            found = [
                await fill_seat(job, TASKS, seat, saying, ReplacementBudget(4), settings=settings) for seat in late
            ]
    assert [each.record.score.value for each in found if each.record.score] == [1.0] * 2
    assert present(found[-1].record.failure).kind is FailureKind.CANCELLED


class OneIsLostLate(WordTasks):
    """Words whose environments fail in the first sibling's trajectory, once it is redundant."""

    def environment(self, task: EpisodeTask) -> WordEnvironment:
        return LateLosingEnvironment(task.data["word"], 1)


class LateLosingEnvironment(WordEnvironment):
    """Tells in one trajectory that the service failed, when its group has its quorum."""

    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        if trajectory.trajectory_id == "step-1/g/0":
            await until_so(trajectory.status, lambda it: it.end is not None, every_s=0.05)
            lost: Failed[None] = Failed(FailureKind.INFRA)
            lost.unwrap()
        return await super().step(trajectory, reply)


async def test_what_is_lost_after_its_group_has_its_quorum_is_not_replaced(address: str) -> None:
    settings = SeatSettings(spare=1)
    siblings = [Seat(f"step-1/g/{number}", "step-1/g", 2, TASKS.tasks()[0]) for number in range(2)]
    async with Client(address) as client, await client.open_job("lost-late") as job:
        with anyio.fail_after(_DEADLINE_S):
            found = await fill_seats(job, OneIsLostLate(1), siblings, saying, settings=settings)
    assert [each.record.trajectory_id for each in found] == ["step-1/g/spare-0", "step-1/g/1"]
    assert [each.replaced for each in found] == [0, 0]
