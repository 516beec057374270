"""A training or evaluation run, as users hold it."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from callsheet.client.backend import CancelTarget, Connector
from callsheet.client.errors import not_found
from callsheet.client.group import Group
from callsheet.client.jobs import GroupDescription, OnInfra, Opening, TrajectoryDescription
from callsheet.client.status import GroupStatus, JobStatus, TrajectoryStatus
from callsheet.client.trajectory import Trajectory, close_after_error
from callsheet.client.verbs import ActionVerbs


class Job(ActionVerbs):
    """A training or evaluation run. Its verbs submit actions that belong to no trajectory.

    While the client lives it holds the job, which therefore does not expire. `close` ends it for everybody.

    Attributes:
        client: The client it was opened with.
        job_id: Its id.
        opening: What opening it found: CREATED or ATTACHED; None for a job that was only named, by `Client.job`.
    """

    def __init__(self, client: Connector, job_id: str, opening: Opening | None = None) -> None:
        super().__init__(client, job_id, "")
        self.opening = opening

    def trajectory(
        self, trajectory_id: str, *, idle_timeout_s: float | None = None, deadline_s: float | None = None
    ) -> Trajectory:
        """Returns a trajectory, which opens when its `async with` block is entered.

        Args:
            trajectory_id: 1 to 256 characters, unique in the job.
            idle_timeout_s: Without any action for so many seconds it is closed as abandoned; None takes the server's
                default (1 hour).
            deadline_s: So many seconds after it was opened it is closed as abandoned; None means never.
        """
        return Trajectory(
            self.client, TrajectoryDescription(self.job_id, trajectory_id, None, idle_timeout_s, deadline_s)
        )

    def group(
        self,
        group_id: str,
        *,
        size: int,
        quorum: int | None = None,
        on_infra: OnInfra = OnInfra.REPLACE,
        max_replacements: int | None = None,
    ) -> Group:
        """Returns siblings of one prompt. See `Group`.

        Args:
            group_id: Unique in the job.
            size: Seats: trajectories that may complete.
            quorum: Completed trajectories after which the others are redundant and are cancelled; None means `size`.
            on_infra: What becomes of a member that is lost to an INFRA failure.
            max_replacements: The most members that are replaced; None means `size`.

        Raises:
            InvalidArgumentError: A number out of its range.
            UnimplementedError: `on_infra` names what is not built yet.
        """
        return Group(self.client, self.job_id, GroupDescription(group_id, size, quorum, on_infra), max_replacements)

    async def status(self) -> JobStatus:
        """Returns what the scheduler knows of the job; raises NotFoundError if it is not open."""
        for status in await self.client.backend().jobs(self.job_id):
            return status
        raise not_found("job_id", self.job_id, "the job is not open")

    async def trajectories(self, *, closed: bool = False) -> list[TrajectoryStatus]:
        """Returns its open trajectories, by name order; raises NotFoundError if the job is not open.

        Args:
            closed: Also those that were closed.
        """
        return await self.client.backend().trajectories(self.job_id, closed=closed)

    async def groups(self) -> list[GroupStatus]:
        """Returns its groups, by name order; raises NotFoundError if the job is not open."""
        return await self.client.backend().groups(self.job_id)

    async def publish(self, version: int, source: str | None = None) -> None:
        """Tells the scheduler that the trainer has a new policy version; trajectories too stale are cancelled.

        Args:
            version: The version, 0 or more.
            source: Where engines find its weights. Not built yet.

        Raises:
            FailedPreconditionError: The version is older than the newest.
            UnimplementedError: A source is given.
        """
        await self.client.backend().publish(self.job_id, version, source or "")

    async def cancel(self, reason: str = "") -> None:
        """Cancels all its actions and closes all its trajectories as abandoned; the job stays open.

        Args:
            reason: Why, for outcomes; shortened to 256 characters.

        Raises:
            NotFoundError: It is not open.
        """
        await self.client.backend().cancel_work(CancelTarget(self.job_id, reason=reason))

    async def close(self) -> None:
        """Closes the job: closes its trajectories, cancels its actions, forgets their ids.

        Raises:
            NotFoundError: It is not open.
        """
        await self.client.backend().close_job(self.job_id)

    async def __aenter__(self) -> Self:
        """Nothing more to do: the job is open."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the job; after an error, or while the caller is being cancelled, within the client's time for that."""
        if kind is None:
            await self.close()
        else:
            await close_after_error(self.client, f"job {self.job_id}", self.close())
