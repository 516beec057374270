"""All episodes of a batch at once, as a trainer wants them: siblings in groups, losses replaced."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import anyio
import anyio.to_thread
from callsheet.client import FailureKind, Job, Member, Trajectory
from callsheet.client.errors import one_error
from callsheet.environments.environment import EpisodeTask, TaskSet
from callsheet.environments.episode import DEFAULT_MAX_TURNS, EpisodeEnd, EpisodeRecord, run_episode
from callsheet.environments.failures import EpisodeFailure, failure_of
from callsheet.environments.policy import EpisodePolicy, GatewaySampling

PolicyFactory: TypeAlias = Callable[[EpisodeTask], EpisodePolicy]
"""Makes the policy of one trajectory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """How a batch runs.

    Attributes:
        group_size: Trajectories of each task: siblings.
        quorum: Completed siblings after which the others are cancelled; None means all.
        max_replacements: The most trajectories of a group that take the place of one lost to an INFRA failure; None
            leaves it to the job's failure policy.
        max_turns: The most replies of an episode.
        agent_sampling: What is forced on calls of black-box agents.
        batch_id: Begins the ids of groups, and is new in the job; None makes one up.
    """

    group_size: int = 1
    quorum: int | None = None
    max_replacements: int | None = None
    max_turns: int = DEFAULT_MAX_TURNS
    agent_sampling: GatewaySampling | None = None
    batch_id: str | None = None


_DEFAULTS = BatchSettings()


async def run_batch(
    job: Job,
    task_set: TaskSet,
    tasks: Sequence[EpisodeTask],
    policy_factory: PolicyFactory | None,
    *,
    settings: BatchSettings = _DEFAULTS,
) -> list[EpisodeRecord]:
    """Runs all episodes of a batch concurrently.

    Args:
        job: Whose trajectories they are. Its failure policy says what becomes of those that are lost.
        task_set: Makes the environments.
        tasks: One for each group; the same task may be there several times.
        policy_factory: Makes the policies; None for environments whose agents have loops of their own.
        settings: How it runs.

    Returns:
        `group_size` records for each task, in the order of the tasks. Where a quorum made siblings redundant, their
        records have the failure CANCELLED `redundant`.

    Raises:
        CallsheetError: A trajectory could not be opened, or an environment asked for what breaks a rule.
        Exception: A mistake in an environment or a policy, as it raised it; the other episodes are cancelled.
    """
    batch_id = settings.batch_id or uuid.uuid4().hex[:12]
    groups: list[list[EpisodeRecord]] = [[] for _ in tasks]

    async def run(index: int, task: EpisodeTask) -> None:
        group_id = f"{batch_id}/{index}"
        groups[index] = await run_group(job, group_id, task_set, task, policy_factory, settings=settings)

    with one_error():
        async with anyio.create_task_group() as running:
            for index, task in enumerate(tasks):
                running.start_soon(run, index, task)
    return [record for group in groups for record in group]


async def run_group(
    job: Job,
    group_id: str,
    task_set: TaskSet,
    task: EpisodeTask,
    policy_factory: PolicyFactory | None,
    *,
    settings: BatchSettings = _DEFAULTS,
) -> list[EpisodeRecord]:
    """Runs the siblings of one task; returns `group_size` records. See `run_batch`."""
    records: dict[str, EpisodeRecord] = {}

    async def rollout(trajectory: Trajectory) -> None:
        # It may read files, or fetch some.
        environment = await anyio.to_thread.run_sync(task_set.environment, task)
        record = await run_episode(
            trajectory,
            environment,
            task,
            policy_factory(task) if policy_factory else None,
            max_turns=settings.max_turns,
            agent_sampling=settings.agent_sampling,
        )
        records[trajectory.trajectory_id] = record
        if record.failure is not None:
            record.failure.throw()

    group = job.group(
        group_id, size=settings.group_size, quorum=settings.quorum, max_replacements=settings.max_replacements
    )
    async with group:
        group.start(rollout)
    found = [records.get(member.trajectory_id) or _unrun(task, member) for member in group.members]
    missing = settings.group_size - len(found)
    return found[: settings.group_size] + [_redundant(task, group_id) for _ in range(missing)]


def _unrun(task: EpisodeTask, member: Member[None]) -> EpisodeRecord:
    """The record of a member whose episode was cut short by its group, or by the scheduler."""
    if member.error is None:
        return _redundant(task, member.trajectory_id)
    failure = failure_of(member.error) or EpisodeFailure(FailureKind.CANCELLED, "trajectory_closed", str(member.error))
    return EpisodeRecord(task, member.trajectory_id, EpisodeEnd.FAILED, failure=failure)


def _redundant(task: EpisodeTask, trajectory_id: str) -> EpisodeRecord:
    failure = EpisodeFailure(FailureKind.CANCELLED, "redundant", "its group had its quorum")
    return EpisodeRecord(task, trajectory_id, EpisodeEnd.FAILED, failure=failure)
