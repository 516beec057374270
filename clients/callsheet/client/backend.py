"""The seam between the calls of users and their execution: the scheduler, or a fake in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from callsheet.client.settings import ClientOptions
from callsheet.client.step_summary import StepTallies
from callsheet.client.words.actions import Submission
from callsheet.client.words.jobs import BatchRequest
from callsheet.client.words.outcomes import Outcome
from callsheet.client.words.results import OutputChunk
from callsheet.client.words.weights import PublishedWeights
from callsheet.v1.buffer_values import BatchContent, FinishedResult
from callsheet.v1.client_service_values import Settlement
from callsheet.v1.job_values import (
    GroupStatus,
    JobDescription,
    JobStatus,
    Opening,
    TrajectoryDescription,
    TrajectoryEnd,
    TrajectoryStatus,
)

T = TypeVar("T")


class ActionHandle(ABC, Generic[T]):
    """An action that was submitted. Awaiting it gives its outcome.

    Attributes:
        job_id: Its job.
        action_id: Its id.
    """

    def __init__(self, job_id: str, action_id: str) -> None:
        self.job_id = job_id
        self.action_id = action_id

    def __await__(self) -> Generator[Any, None, Outcome[T]]:
        """The same as awaiting `outcome()`."""
        outcome: Outcome[T] = yield from self.outcome().__await__()
        return outcome

    @property
    @abstractmethod
    def done(self) -> bool:
        """Returns whether the outcome (or the refusal) has arrived."""

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
        """Yields the command's output while it runs, until it has ended; nothing unless `EnvStep.stream_output`.

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


@dataclass(frozen=True, slots=True)
class Opened:
    """The result of opening a trajectory.

    Attributes:
        opening: Whether it is new, was open, or was closed before.
        end: How it had ended, where it was closed before.
        life: Of its job; see `JobStatus.life`.
    """

    opening: Opening
    end: TrajectoryEnd | None = None
    life: str = ""


@dataclass(frozen=True, slots=True)
class CancelTarget:
    """The work to give up: a whole job, or a group or a trajectory of it.

    Attributes:
        job_id: The job.
        group_id: The group; empty for none.
        trajectory_id: The trajectory; empty for none.
        reason: Why, for outcomes.
    """

    job_id: str
    group_id: str = ""
    trajectory_id: str = ""
    reason: str = ""


class Backend(Protocol):
    """Carries out the requests of `Client`, `Job` and `Trajectory`. All methods may raise CallsheetError."""

    async def connect(self) -> None:
        """Makes the connection now."""

    async def open_job(self, job: JobDescription) -> Opening:
        """Opens a job."""

    async def close_job(self, job_id: str) -> None:
        """Closes a job."""

    async def publish(self, job_id: str, version: int, weights: PublishedWeights | None) -> None:
        """Publishes a job's new policy version, with its weights if engines are to load them."""

    async def open_trajectory(self, trajectory: TrajectoryDescription, *, close_if_cancelled: bool = True) -> Opened:
        """Opens a trajectory."""

    async def close_trajectory(self, job_id: str, trajectory_id: str, end: TrajectoryEnd, reason: str = "") -> None:
        """Closes a trajectory."""

    async def finish_trajectory(self, job_id: str, trajectory_id: str, result: FinishedResult) -> None:
        """Closes a trajectory as completed, with its trainer's sample."""

    async def take_batch(self, job_id: str, request: BatchRequest) -> BatchContent:
        """Takes a batch of finished trajectories; an empty one if there are too few in time."""

    async def settle_batch(self, job_id: str, batch_id: str, settlement: Settlement) -> None:
        """Acknowledges a batch, gives it back or extends its lease."""

    async def cancel_work(self, work: CancelTarget) -> None:
        """Gives up the unfinished work."""

    async def jobs(self, job_id: str) -> list[JobStatus]:
        """Open jobs; with an id only that one."""

    async def trajectories(
        self, job_id: str, *, trajectory_id: str = "", group_id: str = "", closed: bool = False
    ) -> list[TrajectoryStatus]:
        """Trajectories of an open job."""

    async def groups(self, job_id: str, group_id: str = "") -> list[GroupStatus]:
        """Groups of an open job."""

    def new_action_id(self) -> str:
        """Returns an id that no other action has."""

    async def submit(self, submission: Submission[Any]) -> ActionHandle[Any]:
        """Submits an action."""


class Connector(Protocol):
    """The opener of jobs, trajectories and groups: a `Client`.

    Attributes:
        target: The scheduler's address, "host:port".
        options: How to connect, wait and give up.
        steps: The counts of its jobs' actions.
    """

    target: str
    options: ClientOptions
    steps: StepTallies

    def backend(self) -> Backend:
        """Returns the backend of the running loop; see `Client.backend`."""

    async def close(self) -> None:
        """Closes the connections of all loops; see `Client.close`."""
