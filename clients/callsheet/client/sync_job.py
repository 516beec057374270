"""Jobs, trajectories, groups and handles for plain threads: each method blocks its caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack

import anyio
import anyio.to_thread
from callsheet.client.actions import Action
from callsheet.client.backend import ActionHandle
from callsheet.client.group import Group, Member
from callsheet.client.job import Job
from callsheet.client.jobs import OnInfra, Opening, TrajectoryEnd
from callsheet.client.options import ActionOptions
from callsheet.client.outcomes import Outcome
from callsheet.client.results import OutputChunk
from callsheet.client.trajectory import Trajectory
from callsheet.client.verbs import ActionVerbs

P = ParamSpec("P")
T = TypeVar("T")
WrappedT = TypeVar("WrappedT")
WrappedT_co = TypeVar("WrappedT_co", covariant=True)
VerbsT_co = TypeVar("VerbsT_co", bound=ActionVerbs, covariant=True)


class CoroutineThread(Protocol):
    """A thread with an event loop: a `SyncClient` has one."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine there and returns its result."""

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine there, beside the caller."""


class _Blocking(Generic[WrappedT_co]):
    """Something async and the client whose thread runs it."""

    def __init__(self, client: CoroutineThread, wrapped: WrappedT_co) -> None:
        self._client = client
        self._wrapped = wrapped


def _blocking(
    method: Callable[Concatenate[WrappedT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Blocking[WrappedT], P], T]:
    """Returns an async method as a blocking one, with its signature and documentation."""

    def call(self: _Blocking[WrappedT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._client.run(method(self._wrapped, *args, **kwargs))

    return update_wrapper(call, method)


async def _next_of(values: AsyncIterator[T]) -> T | None:
    return await anext(values, None)


class SyncActionHandle(_Blocking[ActionHandle[T]]):
    """See `ActionHandle`."""

    @property
    def job_id(self) -> str:
        """Its job."""
        return self._wrapped.job_id

    @property
    def action_id(self) -> str:
        """Its id."""
        return self._wrapped.action_id

    @property
    def done(self) -> bool:
        """See `ActionHandle.done`."""
        return self._wrapped.done

    def accepted(self) -> None:
        """See `ActionHandle.accepted`."""
        self._client.run(self._wrapped.accepted())

    def outcome(self) -> Outcome[T]:
        """See `ActionHandle.outcome`."""
        return self._client.run(self._wrapped.outcome())

    def output(self) -> Iterator[OutputChunk]:
        """See `ActionHandle.output`."""
        chunks = self._wrapped.output()
        while (chunk := self._client.run(_next_of(chunks))) is not None:
            yield chunk

    def cancel(self, reason: str = "") -> None:
        """See `ActionHandle.cancel`."""
        self._client.run(self._wrapped.cancel(reason))


class _SyncVerbs(_Blocking[VerbsT_co]):
    """See `ActionVerbs`."""

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._wrapped.job_id

    def submit(self, action: Action[T], **options: Unpack[ActionOptions]) -> SyncActionHandle[T]:
        """See `ActionVerbs.submit`."""
        return SyncActionHandle(self._client, self._client.run(self._wrapped.submit(action, **options)))

    generate = _blocking(ActionVerbs.generate)
    tool_call = _blocking(ActionVerbs.tool_call)
    reward_tests = _blocking(ActionVerbs.reward_tests)
    reward_script = _blocking(ActionVerbs.reward_script)
    reward_model = _blocking(ActionVerbs.reward_model)


class SyncTrajectory(_SyncVerbs[Trajectory]):
    """See `Trajectory`."""

    @property
    def trajectory_id(self) -> str:
        """Its id."""
        return self._wrapped.trajectory_id

    @property
    def opening(self) -> Opening | None:
        """What opening it found; None before."""
        return self._wrapped.opening

    @property
    def end(self) -> TrajectoryEnd | None:
        """How this process ended it, or found it ended; None before."""
        return self._wrapped.end

    open = _blocking(Trajectory.open)
    close = _blocking(Trajectory.close)
    status = _blocking(Trajectory.status)
    cancel = _blocking(Trajectory.cancel)
    env_reset = _blocking(Trajectory.env_reset)
    env_step = _blocking(Trajectory.env_step)

    def __enter__(self) -> Self:
        """Opens the trajectory."""
        self._client.run(self._wrapped.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the trajectory, by how the block ends."""
        self._client.run(self._wrapped.__aexit__(kind, error, traceback))


class SyncGroup(_Blocking[Group]):
    """See `Group`. Rollouts run in threads of their own; its block waits for them.

    A rollout cannot be interrupted: once its member is redundant or the group was cancelled, its next action is
    cancelled or refused, and nobody waits for it any more.
    """

    def __init__(self, client: CoroutineThread, wrapped: Group) -> None:
        super().__init__(client, wrapped)
        self._block: Future[None] | None = None
        self._left: asyncio.Event | None = None
        self._stopped = False

    @property
    def group_id(self) -> str:
        """Its id."""
        return self._wrapped.group_id

    @property
    def members(self) -> tuple[Member[Any], ...]:
        """See `Group.members`."""
        return self._wrapped.members

    @property
    def lost(self) -> tuple[str, ...]:
        """See `Group.lost`."""
        return self._wrapped.lost

    @property
    def has_quorum(self) -> bool:
        """See `Group.has_quorum`."""
        return self._wrapped.has_quorum

    status = _blocking(Group.status)
    cancel = _blocking(Group.cancel)

    def trajectory(
        self,
        trajectory_id: str | None = None,
        *,
        idle_timeout_s: float | None = None,
        deadline_s: float | None = None,
    ) -> SyncTrajectory:
        """See `Group.trajectory`."""
        wrapped = self._wrapped.trajectory(trajectory_id, idle_timeout_s=idle_timeout_s, deadline_s=deadline_s)
        return SyncTrajectory(self._client, wrapped)

    def start(self, rollout: Callable[[SyncTrajectory], Any]) -> None:
        """See `Group.start`; each rollout runs in a thread of its own."""
        threads = anyio.CapacityLimiter(self._wrapped.size)

        async def in_thread(trajectory: Trajectory) -> Any:
            blocking = SyncTrajectory(self._client, trajectory)
            return await anyio.to_thread.run_sync(rollout, blocking, abandon_on_cancel=True, limiter=threads)

        async def start() -> None:
            self._wrapped.start(in_thread)

        self._client.run(start())

    def __iter__(self) -> Iterator[Member[Any]]:
        """Members as they end, until the quorum has completed or no seat can end any more; after `start`."""
        members = aiter(self._wrapped)
        while (member := self._client.run(_next_of(members))) is not None:
            yield member

    def __enter__(self) -> Self:
        """Makes room for rollouts; nothing is opened yet."""
        entered: Future[None] = Future()
        self._block = self._client.start(self._hold_block(entered))
        entered.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Waits for the rollouts; after an error in the block it cancels them first."""
        assert self._block is not None
        self._client.run(self._leave(stop=error is not None))
        try:
            self._block.result()
        except BaseException:
            if error is None:
                raise

    async def _hold_block(self, entered: Future[None]) -> None:
        # A block is left by the task that entered it; each blocking call is a task of its own.
        async with self._wrapped as group:
            self._left = asyncio.Event()
            entered.set_result(None)
            await self._left.wait()
            if self._stopped:
                group.stop()

    async def _leave(self, *, stop: bool) -> None:
        assert self._left is not None
        self._stopped = stop
        self._left.set()


class SyncJob(_SyncVerbs[Job]):
    """See `Job`."""

    @property
    def opening(self) -> Opening | None:
        """See `Job`."""
        return self._wrapped.opening

    publish = _blocking(Job.publish)
    close = _blocking(Job.close)
    cancel = _blocking(Job.cancel)
    status = _blocking(Job.status)
    trajectories = _blocking(Job.trajectories)
    groups = _blocking(Job.groups)

    def trajectory(
        self, trajectory_id: str, *, idle_timeout_s: float | None = None, deadline_s: float | None = None
    ) -> SyncTrajectory:
        """See `Job.trajectory`."""
        wrapped = self._wrapped.trajectory(trajectory_id, idle_timeout_s=idle_timeout_s, deadline_s=deadline_s)
        return SyncTrajectory(self._client, wrapped)

    def group(
        self,
        group_id: str,
        *,
        size: int,
        quorum: int | None = None,
        on_infra: OnInfra = OnInfra.REPLACE,
        max_replacements: int | None = None,
    ) -> SyncGroup:
        """See `Job.group`."""
        wrapped = self._wrapped.group(
            group_id, size=size, quorum=quorum, on_infra=on_infra, max_replacements=max_replacements
        )
        return SyncGroup(self._client, wrapped)

    def __enter__(self) -> Self:
        """Nothing more to do: the job is open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the job."""
        self._client.run(self._wrapped.__aexit__(kind, error, traceback))
