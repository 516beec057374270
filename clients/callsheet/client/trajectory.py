"""One rollout: `Trajectory`."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable
from dataclasses import fields
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, Unpack, cast

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
from callsheet.client.words.actions import EnvReset, EnvResetOptions, EnvStep
from callsheet.client.words.arguments import listed
from callsheet.client.words.commands import CommandLike, FilesLike
from callsheet.client.words.jobs import LOST_TO_INFRA
from callsheet.client.words.options import ActionOptions
from callsheet.client.words.outcomes import Failed, Outcome
from callsheet.v1.buffer_values import FinishedResult
from callsheet.v1.job_values import Opening, TrajectoryDescription, TrajectoryEnd, TrajectoryStatus
from callsheet.v1.outcome_values import CommandResult, EnvResetResult, FailureKind

logger = logging.getLogger("callsheet.client")

_CLOSED_BEFORE: Final = (NotFoundError, AlreadyExistsError, FailedPreconditionError)


class Trajectory(ActionVerbs):
    """One rollout. Its `async with` block opens the trajectory, and closes it according to the block's end.

    A block that ends without an error closes the trajectory as COMPLETED. An InfraError that leaves the block closes
    the trajectory as LOST, and any other error closes it as ABANDONED.

    Attributes:
        client: The client of the job.
        job_id: The job's id.
        trajectory_id: The trajectory's id.
        opening: The answer to `open`: CREATED, ATTACHED or CLOSED; None before.
        end: The end of the trajectory, as far as this process knows; None before.
        tries: How often the group has begun this rollout. Action ids of your own must differ between tries.
        lost_to: Kinds of failure that lose the trajectory.
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
        """Numbers the actions without an id of your own, from here on: the n-th action is "TRAJECTORY_ID#n".

        A restarted process that does the same work in the same order then submits the same actions. An ended action
        returns its outcome, a running one is attached to, and none runs twice. A submit that differs from the earlier
        one raises AlreadyExistsError. Rollouts that run one action at a time can use this.
        """
        self._numbered = self._numbered or 0

    def _own_action_id(self) -> str | None:
        if self._numbered is None:
            return None
        self._numbered += 1
        return f"{self.trajectory_id}#{self._numbered}"

    @property
    def trajectory_id(self) -> str:
        """The trajectory's id, unique in the job."""
        return self._trajectory_id

    async def open(self, *, close_if_cancelled: bool = True) -> Opening:
        """Opens the trajectory; `close` closes it. An `async with` block does both.

        Args:
            close_if_cancelled: A caller that is cancelled meanwhile closes a new trajectory again. A trajectory that
                others had opened stays open in any case.

        Returns:
            CREATED for a new trajectory, ATTACHED for an open one, CLOSED for one that has ended; then it stays closed,
            and `end` has its end. ATTACHED is also returned if the connection lost the answer to a first try.

        Raises:
            RefusedError: The scheduler refused the trajectory.
            ConnectionLostError: There was no connection for too long.
        """
        found = await self.client.backend().open_trajectory(self._description, close_if_cancelled=close_if_cancelled)
        self.opening, self.end, self._life = found.opening, found.end, found.life
        return found.opening

    async def close(self, end: TrajectoryEnd = TrajectoryEnd.COMPLETED, *, reason: str = "") -> None:
        """Closes the trajectory: cancels its open actions and releases its sandbox. The same close again does nothing.

        Args:
            end: The trajectory's end.
            reason: The reason for an end other than COMPLETED, for status and the trainer; shortened to 256 characters.

        Raises:
            AlreadyExistsError: The trajectory has another end.
            NotFoundError: The trajectory does not exist, or its job is not open.
            ConnectionLostError: There was no connection for too long.
        """
        await self.client.backend().close_trajectory(self.job_id, self.trajectory_id, end, reason)
        self.end = end

    async def finish(self, reward: float, payload: bytes = b"") -> None:
        """Closes the trajectory as COMPLETED, and puts it into the buffer that trainers take batches from.

        A second call with the same values does nothing.

        Args:
            reward: The trajectory's reward; a finite number.
            payload: Any bytes for the trainer; above 4 KiB they travel through the payload store.

        Raises:
            AlreadyExistsError: The trajectory has another end, or another result.
            InvalidArgumentError: A value is out of its range.
            NotFoundError: The trajectory does not exist, or its job is not open.
            QueueFullError: The job's buffer was full for too long.
            ConnectionLostError: There was no connection for too long.
        """
        await self.client.backend().finish_trajectory(self.job_id, self.trajectory_id, FinishedResult(reward, payload))
        self.end = TrajectoryEnd.COMPLETED

    async def status(self) -> TrajectoryStatus:
        """Returns the scheduler's state of the trajectory.

        Raises:
            NotFoundError: The job is not open, or never had the trajectory.
        """
        found = await self.client.backend().trajectories(self.job_id, trajectory_id=self.trajectory_id, closed=True)
        for status in found:
            return status
        raise not_found("trajectory_id", self.trajectory_id, "there is no such trajectory")

    async def cancel(self, reason: str = "") -> None:
        """Cancels the open actions, and closes the trajectory as abandoned.

        Args:
            reason: The reason in the outcomes; shortened to 256 characters.

        Raises:
            NotFoundError: The trajectory does not exist, or its job is not open.
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
        """Returns a base URL and a key, with which an agent calls the model in this trajectory's name.

        The key lets its bearer generate in this trajectory and do nothing else. Sampling parameters given here
        replace those of every call.

        Args:
            lifetime_s: The key is valid for so many seconds, at most 30 days.
            temperature: At least 0.
            top_p: Above 0 and at most 1.
            top_k: At least 0; 0 means all.
            max_tokens: The most new tokens of a call.

        Raises:
            InvalidArgumentError: A number is out of its range.
            AccessDeniedError: This client's token is not for the job.
            ConnectionLostError: No gateway at `ClientOptions.gateway` answered in time.
        """
        asked = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "max_tokens": max_tokens}
        sampling = {name: value for name, value in asked.items() if value is not None}
        body = {"lifetime_s": lifetime_s, "sampling": sampling}
        return await issue_key(self.client.options, self.job_id, self.trajectory_id, body, self._life)

    async def samples(self) -> TrajectorySamples:
        """Returns the model's replies to agents in this trajectory as training samples, also after its close.

        Replies in a trajectory of this id in an earlier job of the same id are left out.

        Raises:
            NotFoundError: The trajectory was never opened, or is forgotten.
            AccessDeniedError: This client's token is not for the job.
            ConnectionLostError: No gateway at `ClientOptions.gateway` answered in time.
        """
        return await read_samples(self.client.options, self.job_id, self.trajectory_id, self._life)

    async def __aenter__(self) -> Self:
        """Opens the trajectory.

        Raises:
            FailedPreconditionError: The trajectory has ended, and stays closed.
        """
        if await self.open() is Opening.CLOSED:
            ended = self.end.name if self.end else "closed"
            rule = f"the trajectory has ended before as {ended} and cannot be opened again: take a new id"
            raise unfit("trajectory_id", self.trajectory_id, rule)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the trajectory within `close_timeout_s`, even if the caller is being cancelled.

        A trajectory that the scheduler has closed meanwhile keeps its end, and `end` has it.
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
        """Returns the trajectory's end; the close of a job abandons its trajectories, and answers no such question."""
        try:
            return (await self.status()).end or TrajectoryEnd.ABANDONED
        except CallsheetError as error:
            logger.debug("no end of trajectory job=%s trajectory=%s: %s", self.job_id, self.trajectory_id, error)
            return TrajectoryEnd.ABANDONED

    async def env_reset(self, **given: Unpack[EnvResetOptions]) -> Outcome[EnvResetResult]:
        """Creates a fresh sandbox for the trajectory. See `EnvReset` for its fields, and `ActionOptions`.

        The word "gateway" in `network` stands for `ClientOptions.gateway`, which agents in the sandbox then reach.
        """
        options: dict[str, Any] = dict(given)
        own = {field.name: options.pop(field.name) for field in fields(EnvReset) if field.name in options}
        if "network" in own:
            own["network"] = named_places(listed(own["network"]), self.client.options)
        return await self._perform(EnvReset(**own), cast("ActionOptions", options))

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
            files: Files that are written before the command: values of `SandboxFile`, or contents by path.
            stdin: The command's standard input; a text is given as UTF-8.
            session: Name of the persistent session that runs the command.
            download: Paths of files to return.
            **options: See `ActionOptions`.
        """
        step = partial(EnvStep, command, files=files, stdin=stdin, session=session, download=listed(download))
        return await self._try(step, options)


def is_loss(error: BaseException, lost_to: frozenset[FailureKind] = LOST_TO_INFRA) -> bool:
    """Returns whether an error consists only of failures that lose a trajectory: by default INFRA failures."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_loss(each, lost_to) for each in error.exceptions)
    if isinstance(error, NotSucceededError) and isinstance(error.outcome, Failed):
        return error.outcome.kind in lost_to
    return isinstance(error, InfraError) and FailureKind.INFRA in lost_to


def _reason_of(error: BaseException) -> str:
    """Returns in few words why an error ended a rollout: for status and the trainer, not for logs."""
    if isinstance(error, BaseExceptionGroup):
        return _reason_of(error.exceptions[0])
    if isinstance(error, NotSucceededError) and isinstance(error.outcome, Failed):
        return f"its rollout ended with {error.outcome.kind.name} {error.outcome.reason.value}"
    return f"its rollout ended with {type(error).__name__}"


async def close_after_error(client: Connector, what: str, closing: Coroutine[Any, Any, None]) -> None:
    """Closes the trajectory of a failed block. An error of closing is logged: the block's own error matters more."""
    with anyio.move_on_after(client.options.close_timeout_s, shield=True) as scope:
        try:
            await closing
        except CallsheetError as error:
            logger.warning("left open: %s: %s", what, error)
    if scope.cancelled_caught:
        logger.warning("left open: %s: no answer in %g s", what, client.options.close_timeout_s)
