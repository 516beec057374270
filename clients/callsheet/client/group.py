"""Siblings of one prompt: a quorum of these rollouts must complete."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from callsheet.client.backend import CancelTarget, Connector
from callsheet.client.codec.jobs import encode_group
from callsheet.client.errors import (
    AlreadyExistsError,
    CallsheetError,
    FailedPreconditionError,
    NotFoundError,
    NotSucceededError,
    QueueFullError,
    RefusedError,
    UnavailableError,
    invalid,
    not_found,
    raise_alone,
    unfit,
)
from callsheet.client.trajectory import Trajectory, is_loss
from callsheet.client.words.jobs import LOST_TO_INFRA
from callsheet.v1 import job_pb2
from callsheet.v1.job_values import (
    GroupDescription,
    GroupStatus,
    OnInfra,
    Opening,
    TrajectoryDescription,
    TrajectoryEnd,
)
from callsheet.v1.outcome_values import FailureKind

logger = logging.getLogger("callsheet.client")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Member(Generic[T]):
    """A member of a group that has ended.

    Attributes:
        trajectory_id: The member's trajectory.
        end: The trajectory's end.
        value: The value that the rollout returned; None unless the rollout completed in this process.
        error: The error that ended the rollout; None for a rollout that returned. `unwrap()` raised it, or a verb whose
            trajectory the scheduler had closed: for a quorum, staleness, a deadline, idleness or a cancel.
    """

    trajectory_id: str
    end: TrajectoryEnd
    value: T | None = None
    error: CallsheetError | None = None


class Group:
    """Siblings of one prompt. Its `async with` block ends once all rollouts that `start` began have ended.

    A rollout that returns completes its member. A rollout that raises the InfraError of an `unwrap()` loses its member,
    and `on_infra` decides what follows. By default another trajectory takes the place, up to `max_replacements`. If
    replacements run out below the quorum, the block ends the group, so that a trainer gets the finished members.

    A rollout that raises another NotSucceededError abandons its member, which keeps its seat with the failure as its
    reason. A refusal does the same if the scheduler has closed the trajectory, or if its queue was full for longer than
    the client waits. Any other exception is a mistake in the rollout: it ends the block, which raises it::

        async with job.group("p7", size=8, quorum=6) as group:
            group.start(rollout)
            async for done in group:
                print(done.trajectory_id, done.value)

    Attributes:
        job_id: The group's job.
        group_id: The group's id.
        size: Number of seats.
        quorum: After so many completed members the others are redundant and are cancelled.
    """

    def __init__(
        self,
        client: Connector,
        job_id: str,
        description: GroupDescription,
        max_replacements: int | None = None,
        *,
        lost_to: frozenset[FailureKind] = LOST_TO_INFRA,
    ) -> None:
        encode_group(job_pb2.GroupSpec(), description)  # its rules are the contract's
        if max_replacements is not None and not (isinstance(max_replacements, Integral) and max_replacements >= 0):
            raise invalid("max_replacements", max_replacements, "0 or more, or None for the group's size")
        self.client = client
        self.job_id = job_id
        self.group_id = description.group_id
        self.size = description.size
        self.quorum = description.quorum or description.size
        self._description = description
        budget = description.size if description.infra_budget is None else description.infra_budget
        self._replacements_left = budget if max_replacements is None else max_replacements
        self._retries_left = budget if description.on_infra is OnInfra.RETRY else 0
        self._lost_to = lost_to
        self._next = 0
        self._given: list[Trajectory] = []
        self._started: dict[str, Member[Any]] = {}
        self._has_quorum_there = False
        self._mistake: Exception | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._seats: list[anyio.CancelScope] = []
        self._ended: MemoryObjectReceiveStream[Member[Any]] | None = None

    def trajectory(
        self,
        trajectory_id: str | None = None,
        *,
        idle_timeout_s: float | None = None,
        deadline_s: float | None = None,
    ) -> Trajectory:
        """Returns the next member for the caller to drive; its `async with` block opens it.

        Args:
            trajectory_id: 1 to 256 characters, unique in the job; None numbers the members of this object: "p7/0".
            idle_timeout_s: See `Job.trajectory`.
            deadline_s: See `Job.trajectory`.
        """
        if trajectory_id is None:
            trajectory_id = f"{self.group_id}/{self._next}"
            self._next += 1
        described = TrajectoryDescription(self.job_id, trajectory_id, self._description, idle_timeout_s, deadline_s)
        trajectory = Trajectory(self.client, described)
        trajectory.lost_to = self._lost_to
        self._given.append(trajectory)
        return trajectory

    def start(self, rollout: Callable[[Trajectory], Awaitable[Any]]) -> None:
        """Runs a rollout for every seat, all at once, each in an open trajectory. Call `start` once, in the block.

        Args:
            rollout: A function that takes the trajectory and returns the member's value.

        Raises:
            FailedPreconditionError: The block was not entered, or rollouts were started before.
            InvalidArgumentError: `rollout` cannot be called.
        """
        if not callable(rollout):
            raise invalid("rollout", rollout, "an async function of a trajectory")
        if self._tasks is None or self._ended is not None:
            rule = "rollouts start once, within the group's `async with` block"
            raise unfit("group_id", self.group_id, rule)
        ended, self._ended = anyio.create_memory_object_stream[Member[Any]](self.size)
        with ended:
            for _ in range(self.size):
                self._tasks.start_soon(self._seat, rollout, ended.clone())

    def __aiter__(self) -> AsyncIterator[Member[Any]]:
        """Yields members as they end, until the quorum has completed or no seat is left; after `start`."""
        return self._members_as_they_end()

    @property
    def members(self) -> tuple[Member[Any], ...]:
        """The ended members of this process that have a seat, redundant ones included."""
        return tuple(member for member in self._known() if member.end is not TrajectoryEnd.LOST or member.error)

    @property
    def lost(self) -> tuple[str, ...]:
        """Ids of this process's trajectories that INFRA failures lost."""
        return tuple(each.trajectory_id for each in self._given if each.end is TrajectoryEnd.LOST)

    @property
    def has_quorum(self) -> bool:
        """True if enough members have completed, as far as this process knows.

        This process counts its own members. It learns of the quorum of other processes from `status`, or if the quorum
        ends a rollout here.
        """
        completed = sum(each.end is TrajectoryEnd.COMPLETED for each in self._given)
        return self._has_quorum_there or completed >= self.quorum

    async def status(self) -> GroupStatus:
        """Returns the scheduler's state of the group, members that others drive included.

        Raises:
            NotFoundError: No member was opened yet, or the job is not open.
        """
        for status in await self.client.backend().groups(self.job_id, self.group_id):
            self._has_quorum_there = status.has_quorum
            return status
        raise not_found("group_id", self.group_id, "there is no such group")

    async def cancel(self, reason: str = "") -> None:
        """Closes the open members as abandoned and cancels their actions; the group takes no more members.

        Args:
            reason: The reason in the outcomes; shortened to 256 characters.

        Raises:
            NotFoundError: No member was opened yet, or the job is not open.
        """
        await self.client.backend().cancel_work(CancelTarget(self.job_id, group_id=self.group_id, reason=reason))
        self.stop()

    def stop(self, besides: anyio.CancelScope | None = None) -> None:
        """Cancels the rollouts of this process, except the rollout of `besides`."""
        for scope in self._seats:
            if scope is not besides:
                scope.cancel()

    async def __aenter__(self) -> Self:
        """Prepares the block for rollouts; no trajectory is open yet."""
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Waits for the rollouts; after an error in the block the rollouts are cancelled first."""
        assert self._tasks is not None
        try:
            handled = await self._tasks.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as errors:
            if error is None or errors.exceptions != (error,):
                raise
            handled = False  # the block's own error, as it was raised
        finally:
            self._tasks = None
            if self._ended is not None:
                self._ended.close()
        if self._mistake is not None and (error is None or handled):
            raise_alone(self._mistake)
        if error is None and self._ended is not None and not self.has_quorum:
            await self._end_if_short()
        return handled

    async def _end_if_short(self) -> None:
        """Cancels the group if its lost members are no longer replaced: a trainer would wait for them in vain.

        While a member of another process is open, the group continues.
        """
        with anyio.move_on_after(self.client.options.close_timeout_s), suppress(CallsheetError):
            status = await self.status()
            if status.lost and status.completed and not (status.has_quorum or status.open):
                await self.cancel("the group's lost members are no longer replaced")

    async def _members_as_they_end(self) -> AsyncIterator[Member[Any]]:
        if self._ended is None:
            rule = "start rollouts before waiting for members"
            raise unfit("group_id", self.group_id, rule)
        # A mistake of a rollout may end the block while another thread waits here.
        with suppress(anyio.ClosedResourceError):
            async for member in self._ended:
                yield member

    def _known(self) -> list[Member[Any]]:
        ended = [each for each in self._given if each.end is not None]
        return [self._started.get(each.trajectory_id, Member(each.trajectory_id, each.end)) for each in ended]  # type: ignore[arg-type]

    async def _seat(
        self, rollout: Callable[[Trajectory], Awaitable[Any]], ended: MemoryObjectSendStream[Member[Any]]
    ) -> None:
        """Fills one seat: another member follows a lost one."""
        with ended, anyio.CancelScope() as scope:
            self._seats.append(scope)
            try:
                member = await self._member_with_seat(rollout)
            except Exception as mistake:
                if self._mistake is None:
                    self._mistake = mistake
                assert self._tasks is not None
                self._tasks.cancel_scope.cancel()
                return
            if member is not None:
                self._started[member.trajectory_id] = member
                redundant = await self._is_redundant(member)
                if not redundant:
                    ended.send_nowait(member)
            if self.has_quorum:
                self.stop(besides=scope)

    async def _is_redundant(self, member: Member[Any]) -> bool:
        """Returns whether the quorum ended a member; the scheduler knows the quorum before this process does."""
        if member.end is TrajectoryEnd.COMPLETED:
            return False
        if member.end is TrajectoryEnd.ABANDONED and not self.has_quorum:
            with suppress(CallsheetError):  # what cannot be asked is not redundant
                await self.status()
        return self.has_quorum

    async def _member_with_seat(self, rollout: Callable[[Trajectory], Awaitable[Any]]) -> Member[Any] | None:
        lost: Member[Any] | None = None
        while not self.has_quorum:
            trajectory = self.trajectory()
            try:
                opening = await trajectory.open()
            except FailedPreconditionError:
                with suppress(NotFoundError):
                    await self.status()
                if self.has_quorum:
                    return None  # other processes drove enough members
                if lost is not None:
                    return lost  # no more are replaced
                raise
            if opening is Opening.CLOSED:
                if trajectory.end is not TrajectoryEnd.LOST:
                    return Member(trajectory.trajectory_id, trajectory.end or TrajectoryEnd.ABANDONED)
                lost = Member(trajectory.trajectory_id, TrajectoryEnd.LOST)
                continue
            member = await _driven(trajectory, self._with_retries(rollout))
            replaces = self._description.on_infra is OnInfra.REPLACE and self._replacements_left > 0
            if member.end is not TrajectoryEnd.LOST or not replaces:
                return member
            self._replacements_left -= 1
            lost = member
        return None

    def _with_retries(self, rollout: Callable[[Trajectory], Awaitable[Any]]) -> Callable[[Trajectory], Awaitable[Any]]:
        """Returns a rollout that starts over in its trajectory, instead of losing it, while retries are left."""

        async def tried(trajectory: Trajectory) -> Any:
            while True:
                trajectory.tries += 1
                try:
                    return await rollout(trajectory)
                except Exception as raised:
                    if not (self._retries_left and is_loss(raised, self._lost_to)) or await _was_closed(trajectory):
                        raise
                    self._retries_left -= 1
                    logger.info("rollout starts over job=%s trajectory=%s", self.job_id, trajectory.trajectory_id)

        return tried


async def _driven(trajectory: Trajectory, rollout: Callable[[Trajectory], Awaitable[Any]]) -> Member[Any]:
    """Runs a rollout in an open trajectory, closes the trajectory, and returns the member."""
    value, error = None, None
    try:
        async with AsyncExitStack() as block:
            block.push_async_exit(partial(_leave, trajectory))
            try:
                value = await rollout(trajectory)
            except Exception as raised:
                error = await _end_of_rollout(trajectory, raised)
                raise
    except Exception:
        if error is None:
            raise
    return Member(trajectory.trajectory_id, trajectory.end or TrajectoryEnd.ABANDONED, value, error)


async def _leave(
    trajectory: Trajectory,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
) -> None:
    """Closes a member's trajectory, even while a quorum of others cancels the rollout that has returned."""
    with anyio.move_on_after(trajectory.client.options.close_timeout_s, shield=True) as scope:
        await trajectory.__aexit__(kind, error, traceback)
    if scope.cancelled_caught:
        logger.warning("no answer to the close of job=%s trajectory=%s", trajectory.job_id, trajectory.trajectory_id)


async def _end_of_rollout(trajectory: Trajectory, raised: Exception) -> CallsheetError | None:
    """Returns the failure that ended a rollout; None for a mistake. A rollout's tasks may raise several errors."""
    errors = list(_leaves(raised))
    failures = [error for error in errors if isinstance(error, NotSucceededError)]
    refusals = [error for error in errors if isinstance(error, RefusedError) and _may_tell_of_closing(error)]
    # The scheduler had no room for longer than the client waits: no mistake, and nothing that its siblings share.
    passing = [error for error in errors if isinstance(error, QueueFullError | UnavailableError)]
    if len(failures) + len(refusals) + len(passing) < len(errors):
        return None
    if refusals and not await _was_closed(trajectory):
        return None
    return [*failures, *refusals, *passing][0]


def _leaves(raised: Exception) -> Iterator[Exception]:
    if isinstance(raised, ExceptionGroup):
        for each in raised.exceptions:
            yield from _leaves(each)
    else:
        yield raised


def _may_tell_of_closing(error: RefusedError) -> bool:
    """Returns whether a refusal may come from a closed trajectory: of a verb, or of a close with another end."""
    if isinstance(error, AlreadyExistsError):
        return error.field == "end"
    return isinstance(error, FailedPreconditionError) and error.field == "trajectory_id"


async def _was_closed(trajectory: Trajectory) -> bool:
    try:
        return (await trajectory.status()).end is not None
    except CallsheetError:
        return False  # the refusal says more than this error would
