"""Seats without a scheduler: numbered actions, replacements within a budget, failures that are samples."""

from __future__ import annotations

import itertools

import pytest
from callsheet.client import (
    AlreadyExistsError,
    CommandResult,
    EnvResetResult,
    Failed,
    FailureKind,
    GatewayAccess,
    Outcome,
    Reason,
    RewardResult,
    Succeeded,
    Trajectory,
)
from callsheet.client.testing import FakeClient
from callsheet.environments import EpisodeFailure, EpisodePolicy, EpisodeScore, EpisodeTask
from callsheet.environments.seats import FilledSeat, Seat, SeatSettings, fill_seats

from tests.support.word_environment import SayingPolicy, WordTasks

pytestmark = pytest.mark.anyio


def fake(*, lost: int = 0, kind: FailureKind = FailureKind.INFRA) -> FakeClient:
    """A client whose first resets fail."""
    client = FakeClient()
    resets = itertools.count()

    def reset(_: object) -> Outcome[EnvResetResult]:
        if next(resets) < lost:
            return Failed(kind=kind, reason=Reason.OTHER)
        return Succeeded(value=EnvResetResult("s"))

    client.on_env_reset(reset)
    client.on_env_step(lambda _: Succeeded(value=CommandResult(0, b"2")))
    client.on_reward_tests(lambda _: Succeeded(value=RewardResult(1.0)))
    return client


def saying(_: EpisodeTask) -> EpisodePolicy:
    return SayingPolicy()


async def filled(client: FakeClient, max_replacements: int = 8) -> list[FilledSeat]:
    """Two siblings."""
    task = WordTasks(1).tasks()[0]
    seats = [Seat(f"step/{index}", "step", 2, task) for index in range(2)]
    job = await client.open_job("job")
    return await fill_seats(job, WordTasks(1), seats, saying, settings=SeatSettings(max_replacements=max_replacements))


async def test_actions_are_numbered_in_their_trajectory() -> None:
    client = fake()
    await filled(client)
    ids = {submission.action_id for submission in client.submitted}
    assert ids == {f"step/{index}#{number}" for index in range(2) for number in (1, 2, 3)}


async def test_another_body_under_a_number_is_refused() -> None:
    client = fake()
    job = await client.open_job("job")
    for command, refused in (("ls", False), ("ps", True)):
        trajectory = job.trajectory("t")
        trajectory.number_actions()
        await trajectory.open()
        if refused:
            with pytest.raises(AlreadyExistsError):
                await trajectory.env_step(command)
        else:
            assert (await trajectory.env_step(command)).unwrap().stdout == b"2"


async def test_lost_ones_are_replaced_within_the_budget_of_the_batch() -> None:
    found = await filled(fake(lost=2), max_replacements=8)
    assert (sum(each.replaced for each in found), [each.record.failure for each in found]) == (2, [None, None])
    found = await filled(fake(lost=2), max_replacements=1)
    assert sum(each.replaced for each in found) == 1
    (failure,) = [each.record.failure for each in found if each.record.failure]
    assert failure.is_infra


async def test_other_failures_are_not_replaced() -> None:
    found = await filled(fake(lost=1, kind=FailureKind.ENV))
    assert [each.replaced for each in found] == [0, 0]
    assert sum(each.record.failure is not None for each in found) == 1


class AgentTasks(WordTasks):
    """Words that a black box is to say."""

    def environment(self, task: EpisodeTask) -> AgentOfWords:  # type: ignore[override]
        return AgentOfWords()


class AgentOfWords:
    """Ends before it asks for anything."""

    async def reset(self, trajectory: Trajectory) -> None:
        EpisodeFailure(FailureKind.ENV, "set_up_failed").throw()

    async def run(self, trajectory: Trajectory, access: GatewayAccess) -> None:
        raise AssertionError(access)

    async def reward(self, trajectory: Trajectory) -> EpisodeScore:
        raise AssertionError(trajectory)


async def test_an_agent_of_an_earlier_process_is_cancelled_and_begins_anew() -> None:
    client = fake()
    job = await client.open_job("job")
    seat = Seat("step/0", "step", 1, WordTasks(1).tasks()[0])
    found: list[str] = []
    for _ in range(2):
        (each,) = await fill_seats(job, AgentTasks(1), [seat], saying, settings=SeatSettings())
        assert each.record.failure is not None
        found.append(each.record.trajectory_id)
    assert found == ["step/0", "step/0~1"]
