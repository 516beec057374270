"""Episodes of a batch under ids that stay, so that a trainer which was started again does nothing twice.

A seat is one sample that a trainer wants. Its first trajectory has the seat's id, and each further one has a number
behind it. Actions are numbered in their trajectory. A restarted trainer takes the same seats again. What had ended is
then found as it ended, what runs is attached to, and what never ran runs now. Only the episodes of black-box agents
begin anew, in further trajectories.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.to_thread
from callsheet.client import (
    AlreadyExistsError,
    FailureKind,
    Group,
    Job,
    NotSucceededError,
    OnInfra,
    Opening,
    Trajectory,
    TrajectoryEnd,
)
from callsheet.client.errors import one_error
from callsheet.environments.environment import AgentEnvironment, Environment, EpisodeTask, TaskSet
from callsheet.environments.episode import DEFAULT_MAX_TURNS, EpisodeRecord, run_episode
from callsheet.environments.failures import NOBODYS_FAULT
from callsheet.environments.policy import EpisodePolicy, GatewaySampling
from callsheet.environments.rollouts import PolicyFactory
from callsheet.v1.buffer_values import FinishedResult

ResultOf = Callable[[EpisodeRecord], FinishedResult | None]


@dataclass(frozen=True, slots=True)
class Seat:
    """One sample that a trainer wants.

    Attributes:
        seat_id: Unique in the job, and the same after a restart; at most 200 characters.
        group_id: Its siblings have the same.
        group_size: How many siblings there are, itself included.
        task: What it is about.
    """

    seat_id: str
    group_id: str
    group_size: int
    task: EpisodeTask


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatSettings:
    """How seats are filled.

    Attributes:
        max_replacements: The most trajectories of a whole batch that take the place of one lost to an INFRA failure.
        max_turns: The most replies of an episode.
        agent_sampling: What is forced on calls of black-box agents.
        deadline_s: The longest life of a trajectory in seconds; None means no end.
        spare: Trajectories of each group that run beside those of its seats. Once as many have a score as the group has
            seats, the others are cancelled: a slow environment then holds nobody up. Samples lean towards quick ones.
    """

    max_replacements: int = 8
    max_turns: int = DEFAULT_MAX_TURNS
    agent_sampling: GatewaySampling | None = None
    deadline_s: float | None = None
    spare: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for a negative number of spare trajectories."""
        if self.spare < 0:
            raise ValueError(f"spare is {self.spare}; it must be at least 0")


@dataclass(slots=True)
class FilledSeat:
    """Result of a seat.

    Attributes:
        record: The record of its last trajectory.
        replaced: Number of trajectories before it that were lost to INFRA failures.
        repeated: Whether the record was found again, from before a restart.
    """

    record: EpisodeRecord
    replaced: int = 0
    repeated: bool = False


class ReplacementBudget:
    """How many lost trajectories may still be replaced. All seats of a batch share it."""

    def __init__(self, most: int) -> None:
        self.left = most

    def take(self) -> bool:
        """Takes one, if there is one left."""
        self.left -= 1
        return self.left >= 0


def trajectory_name(seat_id: str, number: int) -> str:
    """Returns the id of a seat's trajectory, of which number 0 is the first."""
    return seat_id if number == 0 else f"{seat_id}~{number}"


async def fill_seats(
    job: Job,
    task_set: TaskSet,
    seats: Sequence[Seat],
    policy_factory: PolicyFactory | None,
    *,
    settings: SeatSettings,
    result_of: ResultOf | None = None,
) -> list[FilledSeat]:
    """Runs the episodes of all seats at once; returns what became of them, in their order.

    Where spare trajectories run, too, those with a score take the seats of those that were cancelled for them.

    Args:
        job: Whose trajectories they are.
        task_set: Makes the environments.
        seats: The seats.
        policy_factory: Makes the policies; None for environments whose agents have loops of their own.
        settings: How they are filled.
        result_of: What a trajectory finishes with, by its episode's record, so that it enters the job's buffer; None
            only closes it. It may return None for one that is no sample.

    Raises:
        CallsheetError: A trajectory could not be opened, or an environment asked for what breaks a rule.
        Exception: A mistake in an environment or a policy, as it raised it; the other episodes are cancelled.
    """
    everyone = [*seats, *spare_seats(seats, settings.spare)]
    filled: dict[int, FilledSeat] = {}
    budget = ReplacementBudget(settings.max_replacements)

    async def run(index: int, seat: Seat) -> None:
        filled[index] = await fill_seat(
            job, task_set, seat, policy_factory, budget, settings=settings, result_of=result_of
        )

    with one_error():
        async with anyio.create_task_group() as running:
            for index, seat in enumerate(everyone):
                running.start_soon(run, index, seat)
    return take_spares(everyone, [filled[index] for index in range(len(everyone))])[: len(seats)]


def spare_seats(seats: Sequence[Seat], spare: int) -> list[Seat]:
    """Returns so many further seats for each group, with ids of their own."""
    groups = {seat.group_id: seat for seat in seats}
    return [
        Seat(f"{group_id}/spare-{number}", group_id, seat.group_size, seat.task)
        for group_id, seat in groups.items()
        for number in range(spare)
    ]


def take_spares(seats: Sequence[Seat], filled: Sequence[FilledSeat]) -> list[FilledSeat]:
    """Returns what fills each seat: a later sibling that has a score in place of one that is nobody's fault.

    Other failures stay where they are: they tell something about the model or the task.
    """
    found = list(filled)
    for at, seat in enumerate(seats):
        failure = found[at].record.failure
        if failure is None or failure.kind not in NOBODYS_FAULT:
            continue
        later = (to for to in range(at + 1, len(seats)) if seats[to].group_id == seat.group_id)
        with_score = next((to for to in reversed(list(later)) if found[to].record.failure is None), None)
        if with_score is not None:
            found[at], found[with_score] = found[with_score], found[at]
    return found


async def fill_seat(
    job: Job,
    task_set: TaskSet,
    seat: Seat,
    policy_factory: PolicyFactory | None,
    budget: ReplacementBudget,
    *,
    settings: SeatSettings,
    result_of: ResultOf | None = None,
) -> FilledSeat:
    """Runs the episode of one seat, and others in its place while it is lost and the budget allows."""
    number = replaced = left_behind = 0
    while True:
        # It may unpack files, or read a registry.
        environment = await anyio.to_thread.run_sync(task_set.environment, seat.task)
        agent = isinstance(environment, AgentEnvironment)
        policy = None if agent or policy_factory is None else policy_factory(seat.task)
        group = _group_of(job, seat, left_behind, settings)
        trajectory = group.trajectory(trajectory_name(seat.seat_id, number), deadline_s=settings.deadline_s)
        trajectory.number_actions()
        closed_before = await trajectory.open() is Opening.CLOSED
        number += 1
        if agent and trajectory.opening is not Opening.CREATED:
            # A black box does nothing again in the same way.
            if not closed_before:
                await trajectory.cancel("its trainer began anew")
            left_behind += 1
            continue
        episode = partial(_run_in, trajectory, environment, seat.task, policy, settings=settings)
        record = await (episode() if closed_before else _closing(trajectory, episode, result_of))
        if closed_before and _was_left_behind(record):
            if settings.spare and (await group.status()).has_quorum:
                return FilledSeat(record, replaced, repeated=True)
            # It was closed while no trainer was there: what it lacks cannot run in it any more.
            left_behind += 1
        elif _left_its_seat(trajectory, record) and budget.take():
            replaced += 1
        else:
            return FilledSeat(record, replaced, repeated=closed_before)


def _left_its_seat(trajectory: Trajectory, record: EpisodeRecord) -> bool:
    """Returns whether another trajectory may take the seat; it may not if the group already had its quorum."""
    return record.failure is not None and record.failure.is_infra and trajectory.end is TrajectoryEnd.LOST


def _group_of(job: Job, seat: Seat, left_behind: int, settings: SeatSettings) -> Group:
    """Returns a seat's group.

    Trajectories that were left behind keep their seats of a group, so that others need a new one.
    """
    return job.group(
        trajectory_name(seat.group_id, left_behind),
        size=seat.group_size + settings.spare,
        quorum=seat.group_size if settings.spare else None,
        on_infra=OnInfra.REPLACE,
        infra_budget=settings.max_replacements,
    )


async def _run_in(
    trajectory: Trajectory,
    environment: Environment | AgentEnvironment,
    task: EpisodeTask,
    policy: EpisodePolicy | None,
    *,
    settings: SeatSettings,
) -> EpisodeRecord:
    return await run_episode(
        trajectory,
        environment,
        task,
        policy,
        max_turns=settings.max_turns,
        agent_sampling=settings.agent_sampling,
    )


async def _closing(
    trajectory: Trajectory, episode: Callable[[], Awaitable[EpisodeRecord]], result_of: ResultOf | None
) -> EpisodeRecord:
    """Runs an episode in an open trajectory, and closes that by how it ends."""
    record: EpisodeRecord | None = None
    try:
        async with AsyncExitStack() as block:
            block.push_async_exit(trajectory)
            record = await episode()
            result = None if result_of is None else result_of(record)
            if result is not None:
                # The scheduler may have closed it just before, as redundant.
                with suppress(AlreadyExistsError):
                    await trajectory.finish(result.reward, result.payload)
            elif record.failure is not None:
                record.failure.throw()
    except NotSucceededError:
        if record is None:
            raise
    assert record is not None
    return record


def _was_left_behind(record: EpisodeRecord) -> bool:
    """Returns whether a repeated trajectory had been closed before its work ran, or while it ran."""
    return record.failure is not None and record.failure.kind is FailureKind.CANCELLED
