"""One rollout, as users hold it."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Self, Unpack

import anyio
from callsheet.client.backend import CancelTarget, Connector
from callsheet.client.errors import (
    AlreadyExistsError,
    CallsheetError,
    FailedPreconditionError,
    InfraError,
    NotFoundError,
    NotSucceededError,
    not_found,
    unfit,
)
from callsheet.client.gateway import GatewayAccess, TrajectorySamples, issue_key, named_places, read_samples
from callsheet.client.verbs import ActionVerbs
from callsheet.client.words.actions import EnvReset, EnvStep
from callsheet.client.words.arguments import listed
from callsheet.client.words.batch_values import FinishedResult
from callsheet.client.words.commands import CommandDefaults, CommandLike, FilesLike, ImageBuild
from callsheet.client.words.jobs import LOST_TO_INFRA, Opening, TrajectoryDescription, TrajectoryEnd
from callsheet.client.words.options import ActionOptions
from callsheet.client.words.outcomes import Failed, FailureKind, Outcome
from callsheet.client.words.results import CommandResult, EnvResetResult
from callsheet.client.words.status import TrajectoryStatus

logger = logging.getLogger("callsheet.client")

_CLOSED_BEFORE: Final = (NotFoundError, AlreadyExistsError, FailedPreconditionError)


class Trajectory(ActionVerbs):
    """One rollout. Its `async with` block opens it, and closes it by how the block ends.

    A block that ends well closes it as COMPLETED, one left by the InfraError of an `unwrap()` as LOST, and one left by
    any other error as ABANDONED.

    Attributes:
        client: The client it was opened with.
        job_id: Its job.
        trajectory_id: Its id.
        opening: What opening it found; None before.
        end: How this process ended it, or found it ended; None before.
        tries: How often its group has begun its rollout; actions with ids of their own need others in each try.
        lost_to: Kinds of failure that lose it.
    """

    def __init__(self, client: Connector, description: TrajectoryDescription) -> None:
        super().__init__(client, description.job_id, description.trajectory_id)
        self._description = description
        self.opening: Opening | None = None
        self.end: TrajectoryEnd | None = None
        self.tries = 0
        self.lost_to = LOST_TO_INFRA
        self._numbered: int | None = None
        self._life = ""

    def number_actions(self) -> None:
        """Numbers the actions that are given no id, from here on: the n-th one is "TRAJECTORY_ID#n".

        A process that was started again and does the same work in the same order submits the same actions so. What had
        ended is found as it ended, what still runs is attached to, and nothing runs twice. A submit that differs from
        the earlier one raises AlreadyExistsError. It is for rollouts that do one thing after another.
        """
        self._numbered = self._numbered or 0

    def _own_action_id(self) -> str | None:
        if self._numbered is None:
            return None
        self._numbered += 1
        return f"{self.trajectory_id}#{self._numbered}"

    @property
    def trajectory_id(self) -> str:
        """Its id, unique in the job."""
        return self._trajectory_id

    async def open(self, *, close_if_cancelled: bool = True) -> Opening:
        """Opens the trajectory; to be closed by `close`. An `async with` block does both.

        Args:
            close_if_cancelled: Whether a caller that is cancelled meanwhile closes it again if it is new. One that
                others had opened stays open in any case.

        Returns:
            Whether it is new, was open already, or was closed before; then it stays closed, and `end` tells how it
            ended. ATTACHED also where the answer to a first try was lost with its connection.

        Raises:
            RefusedError: The scheduler refused it.
            ConnectionLostError: There was no connection for too long.
        """
        found = await self.client.backend().open_trajectory(self._description, close_if_cancelled=close_if_cancelled)
        self.opening, self.end, self._life = found.opening, found.end, found.life
        return found.opening

    async def close(self, end: TrajectoryEnd = TrajectoryEnd.COMPLETED, *, reason: str = "") -> None:
        """Closes the trajectory: cancels its open actions and releases its sandbox. Closing it so again does nothing.

        Args:
            end: How it ends.
            reason: Why, for status and for the trainer where it did not complete; shortened to 256 characters.

        Raises:
            AlreadyExistsError: It has ended otherwise.
            NotFoundError: There is none, or its job is not open.
            ConnectionLostError: There was no connection for too long.
        """
        await self.client.backend().close_trajectory(self.job_id, self.trajectory_id, end, reason)
        self.end = end

    async def finish(self, reward: float, payload: bytes = b"") -> None:
        """Closes the trajectory as COMPLETED, and puts it into the buffer that trainers take batches from.

        Doing so again with the same values does nothing.

        Args:
            reward: What it was worth; a finite number.
            payload: What the trainer needs of it: any bytes, through the payload store above 4 KiB.

        Raises:
            AlreadyExistsError: It has ended otherwise, or with another result.
            InvalidArgumentError: A value does not fit.
            NotFoundError: There is none, or its job is not open.
            QueueFullError: The job's buffer was full for too long.
            ConnectionLostError: There was no connection for too long.
        """
        await self.client.backend().finish_trajectory(self.job_id, self.trajectory_id, FinishedResult(reward, payload))
        self.end = TrajectoryEnd.COMPLETED

    async def status(self) -> TrajectoryStatus:
        """Returns what the scheduler knows of it; raises NotFoundError if its job is not open or never had it."""
        found = await self.client.backend().trajectories(self.job_id, trajectory_id=self.trajectory_id, closed=True)
        for status in found:
            return status
        raise not_found("trajectory_id", self.trajectory_id, "there is no such trajectory")

    async def cancel(self, reason: str = "") -> None:
        """Cancels its open actions and closes it as abandoned.

        Args:
            reason: Why, for outcomes; shortened to 256 characters.

        Raises:
            NotFoundError: There is none, or its job is not open.
        """
        work = CancelTarget(self.job_id, trajectory_id=self.trajectory_id, reason=reason)
        await self.client.backend().cancel_work(work)
        self.end = self.end or TrajectoryEnd.ABANDONED

    async def gateway(
        self,
        *,
        lifetime_s: float = 86_400.0,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        max_tokens: int | None = None,
    ) -> GatewayAccess:
        """Returns what an agent needs to speak to the model in this trajectory's name: a base URL and a key.

        The key lets its bearer generate here and do nothing else. What is given of sampling is forced on every call,
        whatever the agent asks for.

        Args:
            lifetime_s: How long the key is valid, at most 30 days.
            temperature: At least 0.
            top_p: Above 0 and at most 1.
            top_k: At least 0; 0 means all.
            max_tokens: The most new tokens of a call.

        Raises:
            InvalidArgumentError: A number is out of its range.
            AccessDeniedError: This client's token is not for the job.
            ConnectionLostError: There is no gateway at `ClientOptions.gateway`, or no answer in time.
        """
        asked = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "max_tokens": max_tokens}
        sampling = {name: value for name, value in asked.items() if value is not None}
        body = {"lifetime_s": lifetime_s, "sampling": sampling}
        return await issue_key(self.client.options, self.job_id, self.trajectory_id, body, self._life)

    async def samples(self) -> TrajectorySamples:
        """Returns what the model said to agents in this trajectory, as a trainer takes it; also once it was closed.

        A trajectory of this id in an earlier job of the same id has no part in it.

        Raises:
            NotFoundError: It was never opened, or is forgotten.
            AccessDeniedError: This client's token is not for the job.
            ConnectionLostError: There is no gateway at `ClientOptions.gateway`, or no answer in time.
        """
        return await read_samples(self.client.options, self.job_id, self.trajectory_id, self._life)

    async def __aenter__(self) -> Self:
        """Opens the trajectory.

        Raises:
            FailedPreconditionError: It was closed before, and stays so.
        """
        if await self.open() is Opening.CLOSED:
            ended = self.end.name if self.end else "closed"
            rule = f"it has ended before as {ended} and cannot be opened again: take a new id"
            raise unfit("trajectory_id", self.trajectory_id, rule)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the trajectory, even if the caller is being cancelled, within the client's time for closing.

        One that the scheduler has closed meanwhile stays as it is; `end` then tells how it ended.
        """
        if error is None:
            await self._close_unless_closed(TrajectoryEnd.COMPLETED)
            return
        end = TrajectoryEnd.LOST if is_loss(error, self.lost_to) else TrajectoryEnd.ABANDONED
        # The idle timeout closes what stays open.
        closing = self._close_unless_closed(end, _reason_of(error))
        await close_after_error(self.client, f"trajectory {self.job_id}/{self.trajectory_id}", closing)
        self.end = self.end or end

    async def _close_unless_closed(self, end: TrajectoryEnd, reason: str = "") -> None:
        try:
            await self.close(end, reason=reason)
        except _CLOSED_BEFORE as refusal:
            # Closed by the scheduler already: redundant in its group, too stale or idle. Its actions told so.
            logger.info("trajectory was closed job=%s trajectory=%s: %s", self.job_id, self.trajectory_id, refusal)
            self.end = await self._end_at_the_scheduler()

    async def _end_at_the_scheduler(self) -> TrajectoryEnd:
        """How it ended; what cannot be asked any more, as its job is closed, was abandoned with that."""
        try:
            return (await self.status()).end or TrajectoryEnd.ABANDONED
        except CallsheetError as error:
            logger.debug("no end of trajectory job=%s trajectory=%s: %s", self.job_id, self.trajectory_id, error)
            return TrajectoryEnd.ABANDONED

    async def env_reset(
        self,
        *,
        files: FilesLike = (),
        set_up: CommandLike | None = None,
        disk_mib: int | None = None,
        max_processes: int | None = None,
        service: str = "",
        image: str = "",
        repeat_set_up: bool = False,
        network: Iterable[str] = (),
        defaults: CommandDefaults | None = None,
        build: ImageBuild | None = None,
        memory: Literal["guaranteed"] | None = None,
        **options: Unpack[ActionOptions],
    ) -> Outcome[EnvResetResult]:
        """Creates a fresh sandbox for the trajectory. See `EnvReset` and `ActionOptions`.

        The word "gateway" in `network` stands for `ClientOptions.gateway`: an agent in the sandbox reaches it then.
        """
        reset = EnvReset(
            files,
            set_up,
            disk_mib=disk_mib,
            max_processes=max_processes,
            service=service,
            image=image,
            repeat_set_up=repeat_set_up,
            network=named_places(listed(network), self.client.options),
            defaults=defaults,
            build=build,
            memory=memory,
        )
        return await self._perform(reset, options)

    async def env_step(
        self,
        command: CommandLike,
        *,
        files: FilesLike = (),
        stdin: str | bytes = b"",
        session: str = "",
        download: Iterable[str] = (),
        **options: Unpack[ActionOptions],
    ) -> Outcome[CommandResult]:
        """Runs a command in the trajectory's sandbox. See `EnvStep` and `ActionOptions`.

        To watch its output, submit an `EnvStep` with `stream_output` and iterate over `ActionHandle.output`.

        Args:
            command: A text for the shell, a list of a program and its arguments, or a `Command`.
            files: Written before the command: values of `SandboxFile`, or contents by path.
            stdin: Its standard input; a text is given as UTF-8.
            session: Name of the persistent session to run it in.
            download: Paths of files to return.
            **options: See `ActionOptions`.
        """
        step = partial(EnvStep, command, files=files, stdin=stdin, session=session, download=listed(download))
        return await self._try(step, options)


def is_loss(error: BaseException, lost_to: frozenset[FailureKind] = LOST_TO_INFRA) -> bool:
    """Whether an error says that a trajectory is lost, and nothing else: by default that the service failed."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_loss(each, lost_to) for each in error.exceptions)
    if isinstance(error, NotSucceededError) and isinstance(error.outcome, Failed):
        return error.outcome.kind in lost_to
    return isinstance(error, InfraError) and FailureKind.INFRA in lost_to


def _reason_of(error: BaseException) -> str:
    """Why an error ended a rollout, in few words: for status and the trainer, not for logs."""
    if isinstance(error, BaseExceptionGroup):
        return _reason_of(error.exceptions[0])
    if isinstance(error, NotSucceededError) and isinstance(error.outcome, Failed):
        return f"its rollout ended with {error.outcome.kind.name} {error.outcome.reason.value}"
    return f"its rollout ended with {type(error).__name__}"


async def close_after_error(client: Connector, what: str, closing: Coroutine[Any, Any, None]) -> None:
    """Closes what a block leaves behind that raised: the block's own error matters more than one of closing."""
    with anyio.move_on_after(client.options.close_timeout_s, shield=True) as scope:
        try:
            await closing
        except CallsheetError as error:
            logger.warning("left open: %s: %s", what, error)
    if scope.cancelled_caught:
        logger.warning("left open: %s: no answer in %g s", what, client.options.close_timeout_s)
