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
VerbsT_co = TypeVar("VerbsT_co", bound=Job | Trajectory, covariant=True)


class CoroutineThread(Protocol):
    """A thread with an event loop: a `SyncClient` has one."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine there and returns its result."""

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine there, beside the caller."""


class Forwarding(Protocol[WrappedT_co]):
    """What has something async, and a thread that runs it for its callers."""

    @property
    def _wrapped(self) -> WrappedT_co:
        """What is async."""

    @property
    def _thread(self) -> CoroutineThread:
        """What runs it."""


def plain(method: Callable[Concatenate[WrappedT, P], T]) -> Callable[Concatenate[Forwarding[WrappedT], P], T]:
    """Returns a method that does not wait as one of what forwards it, with its signature and documentation."""

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
    """What forwards to something async."""

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
        """What opening it found; None before."""
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

    def __enter__(self) -> Self:
        """Makes room for rollouts; nothing is opened yet."""
        entered: Future[None] = Future()
        self._block = self._thread.start(self._hold_block(entered))
        entered.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Waits for the rollouts; after an error in the block it cancels them first."""
        assert self._block is not None
        self._thread.run(self._leave(stop=error is not None))
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


class SyncBatch(_Blocking[Batch]):
    """See `Batch`. Its block extends the lease in the client's thread, whatever the caller computes meanwhile."""

    def __init__(self, client: CoroutineThread, wrapped: Batch) -> None:
        super().__init__(client, wrapped)
        self._block: Future[None] | None = None
        self._left: asyncio.Event | None = None
        self._error: BaseException | None = None

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

    def __enter__(self) -> Self:
        """Extends its lease from now on."""
        entered: Future[None] = Future()
        self._block = self._thread.start(self._hold_block(entered))
        entered.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Acknowledges it, or gives it back after an error."""
        assert self._block is not None
        self._error = error
        self._thread.run(self._leave())
        self._block.result()

    async def _hold_block(self, entered: Future[None]) -> None:
        # A block is left by the task that entered it; each blocking call is a task of its own.
        await self._wrapped.__aenter__()
        self._left = asyncio.Event()
        entered.set_result(None)
        await self._left.wait()
        await self._wrapped.__aexit__(type(self._error) if self._error else None, self._error, None)

    async def _leave(self) -> None:
        assert self._left is not None
        self._left.set()


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
