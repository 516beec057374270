"""The seam between what users call and what carries it out: the scheduler, or a fake in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, Generic, Protocol, TypeVar

from callsheet.client.actions import Submission
from callsheet.client.jobs import JobDescription, TrajectoryDescription, TrajectoryEnd
from callsheet.client.outcomes import Outcome, OutputChunk

T = TypeVar("T")


class Handle(ABC, Generic[T]):
    """An action that was submitted.

    Attributes:
        job_id: Its job.
        action_id: Its id.
    """

    def __init__(self, job_id: str, action_id: str) -> None:
        self.job_id = job_id
        self.action_id = action_id

    @abstractmethod
    async def accepted(self) -> None:
        """Returns once the scheduler has made the action durable.

        Raises:
            RefusedError: The scheduler refused it.
            ConnectionLostError: There was no connection for too long.
        """

    @abstractmethod
    async def outcome(self) -> Outcome[T]:
        """Returns the outcome. Cancelling the caller leaves the action alone; it may be awaited again.

        Raises:
            RefusedError: The scheduler refused the action.
            ConnectionLostError: There was no connection for too long.
            PayloadError: A result by reference could not be read; awaiting again tries again.
        """

    @abstractmethod
    def output(self) -> AsyncIterator[OutputChunk]:
        """Yields what the command prints while it runs, until it has ended; nothing unless `EnvStep.stream_output`.

        Best effort: a part that does not come in time is left out, and the next one tells how much was lost. The
        outcome has the output all the same. For one reader at a time.

            async for chunk in handle.output():
                print(chunk.content)
        """

    @abstractmethod
    async def cancel(self, reason: str = "") -> None:
        """Asks for a cancel and returns once that is durable; the outcome follows. Nothing to do if it has ended.

        Args:
            reason: Why, for the outcome; shortened to 256 characters.

        Raises:
            ConnectionLostError: There was no connection for too long.
        """

    @abstractmethod
    def abandon(self, reason: str) -> None:
        """Tells that this caller no longer wants the outcome: cancels the action unless another caller waits for it."""


class Backend(Protocol):
    """Carries out what `Client`, `Job` and `Trajectory` ask for. All methods may raise CallsheetError."""

    async def open_job(self, job: JobDescription) -> None:
        """Opens a job."""

    async def close_job(self, job_id: str) -> None:
        """Closes a job."""

    async def publish_policy_version(self, job_id: str, version: int) -> None:
        """Tells that a job's trainer has a new policy version."""

    async def open_trajectory(self, trajectory: TrajectoryDescription) -> None:
        """Opens a trajectory."""

    async def close_trajectory(self, job_id: str, trajectory_id: str, end: TrajectoryEnd) -> None:
        """Closes a trajectory."""

    def abandon_trajectory(self, job_id: str, trajectory_id: str) -> None:
        """Closes a trajectory as abandoned without waiting for the answer."""

    def new_action_id(self) -> str:
        """Returns an id that no other action has."""

    async def submit(self, submission: Submission[Any]) -> Handle[Any]:
        """Submits an action."""
