"""Jobs, trajectories, groups and handles for plain threads: each method blocks its caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from functools import update_wrapper
from inspect import signature
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack

import anyio
import anyio.to_thread
from callsheet.client.backend import ActionHandle
from callsheet.client.group import Group, Member
from callsheet.client.job import Batch, Job
from callsheet.client.trajectory import Trajectory
from callsheet.client.verbs import ActionVerbs
from callsheet.client.words.actions import Action
from callsheet.client.words.options import ActionOptions
from callsheet.client.words.outcomes import Outcome
from callsheet.client.words.results import OutputChunk
from callsheet.v1.buffer_values import FinishedTrajectory
from callsheet.v1.job_values import Opening, TrajectoryEnd

P = ParamSpec("P")
T = TypeVar("T")
WrappedT = TypeVar("WrappedT")
WrappedT_co = TypeVar("WrappedT_co", covariant=True)
SyncT = TypeVar("SyncT")
BlockT_co = TypeVar("BlockT_co", bound=Group | Batch, covariant=True)
VerbsT_co = TypeVar("VerbsT_co", bound=Job | Trajectory, covariant=True)


class CoroutineThread(Protocol):
    """A thread with an event loop: a `SyncClient` has one."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine there and returns its result."""

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine there, beside the caller."""


class Forwarding(Protocol[WrappedT_co]):
    """An object that forwards to an async one, and runs the coroutines of that one in a thread."""

    @property
    def _wrapped(self) -> WrappedT_co:
        """The async object."""

    @property
    def _thread(self) -> CoroutineThread:
        """The thread that runs its coroutines."""


def plain(method: Callable[Concatenate[WrappedT, P], T]) -> Callable[Concatenate[Forwarding[WrappedT], P], T]:
    """Returns a method that forwards to one that does not wait, with its signature and documentation."""

    def call(self: Forwarding[WrappedT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = getattr(self._wrapped, method.__name__)(*args, **kwargs)
        return result

    return update_wrapper(call, method)


def blocking(
    method: Callable[Concatenate[WrappedT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Forwarding[WrappedT], P], T]:
    """Returns an async method as a blocking one; see `plain`."""
    begin = plain(method)

    def call(self: Forwarding[WrappedT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(begin(self, *args, **kwargs))

    return update_wrapper(call, method)


def giving(
    kind: Callable[[CoroutineThread, T], SyncT], method: Callable[Concatenate[Forwarding[WrappedT], P], T]
) -> Callable[Concatenate[Forwarding[WrappedT], P], SyncT]:
    """Returns a forwarded method whose result is forwarded itself, by a value of `kind`."""

    def call(self: Forwarding[WrappedT], /, *args: P.args, **kwargs: P.kwargs) -> SyncT:
        return kind(self._thread, method(self, *args, **kwargs))

    update_wrapper(call, method)
    call.__signature__ = signature(method).replace(return_annotation=kind)  # type: ignore[attr-defined]
    return call


class _Blocking(Generic[WrappedT_co]):
    """Base of the objects that forward to an async one."""

    def __init__(self, client: CoroutineThread, wrapped: WrappedT_co) -> None:
        self._thread = client
        self._wrapped = wrapped


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

    accepted = blocking(ActionHandle.accepted)
    cancel = blocking(ActionHandle.cancel)

    def outcome(self) -> Outcome[T]:
        """See `ActionHandle.outcome`."""
        return self._thread.run(self._wrapped.outcome())

    def output(self) -> Iterator[OutputChunk]:
        """See `ActionHandle.output`."""
        chunks = self._wrapped.output()
        while (chunk := self._thread.run(_next_of(chunks))) is not None:
            yield chunk


class _SyncVerbs(_Blocking[VerbsT_co]):
    """See `ActionVerbs`."""

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._wrapped.job_id

    def submit(self, action: Action[T], **options: Unpack[ActionOptions]) -> SyncActionHandle[T]:
        """See `ActionVerbs.submit`."""
        return SyncActionHandle(self._thread, self._thread.run(self._wrapped.submit(action, **options)))

    generate = blocking(ActionVerbs.generate)
    tool_call = blocking(ActionVerbs.tool_call)
    reward_tests = blocking(ActionVerbs.reward_tests)
    reward_script = blocking(ActionVerbs.reward_script)
    reward_function = blocking(ActionVerbs.reward_function)
    reward_model = blocking(ActionVerbs.reward_model)
    teacher_log_probs = blocking(ActionVerbs.teacher_log_probs)
    judge = blocking(ActionVerbs.judge)

    def __enter__(self) -> Self:
        """Opens a trajectory; a job is open."""
        self._thread.run(self._wrapped.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the job, or the trajectory by how the block ends."""
        self._thread.run(self._wrapped.__aexit__(kind, error, traceback))


class SyncTrajectory(_SyncVerbs[Trajectory]):
    """See `Trajectory`."""

    @property
    def trajectory_id(self) -> str:
        """Its id."""
        return self._wrapped.trajectory_id

    @property
    def opening(self) -> Opening | None:
        """The result of opening it; None before."""
        return self._wrapped.opening

    @property
    def end(self) -> TrajectoryEnd | None:
        """How this process ended it, or found it ended; None before."""
        return self._wrapped.end

    def number_actions(self) -> None:
        """See `Trajectory.number_actions`."""
        self._wrapped.number_actions()

    open = blocking(Trajectory.open)
    close = blocking(Trajectory.close)
    finish = blocking(Trajectory.finish)
    status = blocking(Trajectory.status)
    cancel = blocking(Trajectory.cancel)
    env_reset = blocking(Trajectory.env_reset)
    env_step = blocking(Trajectory.env_step)
    gateway = blocking(Trajectory.gateway)
    samples = blocking(Trajectory.samples)


class _BlockFailedError(Exception):
    """A block of a plain thread ended by an error, which is raised in that thread."""


class _SyncBlock(_Blocking[BlockT_co]):
    """An async context manager for plain threads. One task enters and leaves it; each blocking call is another task."""

    def __init__(self, client: CoroutineThread, wrapped: BlockT_co) -> None:
        super().__init__(client, wrapped)
        self._block: Future[None] = Future()
        self._left: asyncio.Event | None = None
        self._failed = False

    def __enter__(self) -> Self:
        """Enters the block of the async object."""
        entered: Future[None] = Future()
        self._block = self._thread.start(self._hold(entered))
        entered.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leaves the block, as the async object does with or without an error."""
        self._failed = error is not None
        self._thread.run(self._leave())
        try:
            self._block.result()
        except BaseException:
            if error is None:
                raise

    async def _hold(self, entered: Future[None]) -> None:
        async with self._wrapped:
            self._left = asyncio.Event()
            entered.set_result(None)
            await self._left.wait()
            if self._failed:
                self._fail()

    async def _leave(self) -> None:
        assert self._left is not None
        self._left.set()

    def _fail(self) -> None:
        """Lets the async object know that the block failed. An interrupt raised here would end the thread's loop."""
        raise _BlockFailedError


class SyncGroup(_SyncBlock[Group]):
    """See `Group`. Rollouts run in threads of their own; its block waits for them, and cancels them after an error.

    A rollout cannot be interrupted: once its member is redundant or the group was cancelled, its next action is
    cancelled or refused, and nobody waits for it any more.
    """

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

    status = blocking(Group.status)
    cancel = blocking(Group.cancel)
    trajectory = giving(SyncTrajectory, plain(Group.trajectory))

    def start(self, rollout: Callable[[SyncTrajectory], Any]) -> None:
        """See `Group.start`; each rollout runs in a thread of its own."""
        threads = anyio.CapacityLimiter(self._wrapped.size)

        async def in_thread(trajectory: Trajectory) -> Any:
            member = SyncTrajectory(self._thread, trajectory)
            return await anyio.to_thread.run_sync(rollout, member, abandon_on_cancel=True, limiter=threads)

        async def start() -> None:
            self._wrapped.start(in_thread)

        self._thread.run(start())

    def __iter__(self) -> Iterator[Member[Any]]:
        """Members as they end, until the quorum has completed or no seat can end any more; after `start`."""
        members = aiter(self._wrapped)
        while (member := self._thread.run(_next_of(members))) is not None:
            yield member

    def _fail(self) -> None:
        self._wrapped.stop()


class SyncBatch(_SyncBlock[Batch]):
    """See `Batch`. Its block extends the lease in the client's thread, whatever the caller computes meanwhile.

    At its end the block acknowledges the batch, or gives it back after an error.
    """

    @property
    def batch_id(self) -> str:
        """Its id."""
        return self._wrapped.batch_id

    @property
    def trajectories(self) -> tuple[FinishedTrajectory, ...]:
        """See `Batch.trajectories`."""
        return self._wrapped.trajectories

    @property
    def groups(self) -> Mapping[str, tuple[FinishedTrajectory, ...]]:
        """See `Batch.groups`."""
        return self._wrapped.groups

    def __len__(self) -> int:
        """How many trajectories it has."""
        return len(self._wrapped)

    acknowledge = blocking(Batch.acknowledge)
    give_back = blocking(Batch.give_back)
    extend = blocking(Batch.extend)


class SyncJob(_SyncVerbs[Job]):
    """See `Job`."""

    @property
    def opening(self) -> Opening | None:
        """See `Job`."""
        return self._wrapped.opening

    publish = blocking(Job.publish)
    step_summary = plain(Job.step_summary)
    rollout = blocking(Job.rollout)
    close = blocking(Job.close)
    cancel = blocking(Job.cancel)
    status = blocking(Job.status)
    trajectories = blocking(Job.trajectories)
    groups = blocking(Job.groups)
    trajectory = giving(SyncTrajectory, plain(Job.trajectory))

    take_batch = giving(SyncBatch, blocking(Job.take_batch))
    group = giving(SyncGroup, plain(Job.group))
