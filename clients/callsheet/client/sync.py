"""The client for plain threads: the same verbs, each blocking its caller.

with SyncClient("127.0.0.1:7077") as client:
    job = client.open_job("my-job")
    with job.trajectory("t-1") as trajectory:
        trajectory.env_reset()
        outcome = trajectory.env_step(Command.shell("ls"))
    job.close()
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from callsheet.client.actions import Action, ActionOptions
from callsheet.client.backend import Handle
from callsheet.client.client import Client
from callsheet.client.job import ActionVerbs, Job, Trajectory
from callsheet.client.jobs import Group, PriorityClass
from callsheet.client.loop_thread import LoopThread
from callsheet.client.outcomes import Outcome, OutputChunk
from callsheet.client.settings import ClientOptions

P = ParamSpec("P")
T = TypeVar("T")
WrappedT = TypeVar("WrappedT")
WrappedT_co = TypeVar("WrappedT_co", covariant=True)
VerbsT_co = TypeVar("VerbsT_co", bound=ActionVerbs, covariant=True)


class _Blocking(Generic[WrappedT_co]):
    """Something async and the client whose thread runs it."""

    def __init__(self, client: SyncClient, wrapped: WrappedT_co) -> None:
        self._client = client
        self._wrapped = wrapped


def _blocking(
    method: Callable[Concatenate[WrappedT, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Blocking[WrappedT], P], T]:
    """Returns an async method as a blocking one, with its signature and documentation."""

    def call(self: _Blocking[WrappedT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._client.run(method(self._wrapped, *args, **kwargs))

    return update_wrapper(call, method)


async def _next_of(chunks: AsyncIterator[OutputChunk]) -> OutputChunk | None:
    return await anext(chunks, None)


class SyncHandle(_Blocking[Handle[T]]):
    """See `Handle`."""

    @property
    def job_id(self) -> str:
        """Its job."""
        return self._wrapped.job_id

    @property
    def action_id(self) -> str:
        """Its id."""
        return self._wrapped.action_id

    def accepted(self) -> None:
        """See `Handle.accepted`."""
        self._client.run(self._wrapped.accepted())

    def outcome(self) -> Outcome[T]:
        """See `Handle.outcome`."""
        return self._client.run(self._wrapped.outcome())

    def output(self) -> Iterator[OutputChunk]:
        """See `Handle.output`."""
        chunks = self._wrapped.output()
        while (chunk := self._client.run(_next_of(chunks))) is not None:
            yield chunk

    def cancel(self, reason: str = "") -> None:
        """See `Handle.cancel`."""
        self._client.run(self._wrapped.cancel(reason))


class _SyncVerbs(_Blocking[VerbsT_co]):
    """See `ActionVerbs`."""

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._wrapped.job_id

    def submit(self, action: Action[T], **options: Unpack[ActionOptions]) -> SyncHandle[T]:
        """See `ActionVerbs.submit`."""
        return SyncHandle(self._client, self._client.run(self._wrapped.submit(action, **options)))

    generate = _blocking(ActionVerbs.generate)
    tool_call = _blocking(ActionVerbs.tool_call)
    reward_model = _blocking(ActionVerbs.reward_model)


class SyncTrajectory(_SyncVerbs[Trajectory]):
    """See `Trajectory`."""

    @property
    def trajectory_id(self) -> str:
        """Its id."""
        return self._wrapped.trajectory_id

    open = _blocking(Trajectory.open)
    close = _blocking(Trajectory.close)
    env_reset = _blocking(Trajectory.env_reset)
    env_step = _blocking(Trajectory.env_step)
    reward_tests = _blocking(Trajectory.reward_tests)

    def __enter__(self) -> Self:
        """Opens the trajectory."""
        self._client.run(self._wrapped.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the trajectory: as completed, or as abandoned when the block raises."""
        self._client.run(self._wrapped.__aexit__(kind, error, traceback))


class SyncJob(_SyncVerbs[Job]):
    """See `Job`."""

    publish_policy_version = _blocking(Job.publish_policy_version)
    close = _blocking(Job.close)
    reward_tests = _blocking(Job.reward_tests)

    def trajectory(
        self, trajectory_id: str, *, group: Group | None = None, idle_timeout_s: float | None = None
    ) -> SyncTrajectory:
        """Returns a trajectory, which opens when its `with` block is entered. See `TrajectoryDescription`."""
        wrapped = self._wrapped.trajectory(trajectory_id, group=group, idle_timeout_s=idle_timeout_s)
        return SyncTrajectory(self._client, wrapped)

    def __enter__(self) -> Self:
        """Nothing more to do: the job is open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the job."""
        self._client.run(self._wrapped.__aexit__(kind, error, traceback))


class SyncClient:
    """A `Client` for plain threads, usable from several at once.

    Starts a thread with an event loop when it is first used, once per process; can be pickled like a `Client`.

    Args:
        target: The scheduler's address, or a client to use (for instance a fake).
        options: How to connect, wait and give up; not with a client.
    """

    def __init__(self, target: str | Client, options: ClientOptions | None = None) -> None:
        self._client = target if isinstance(target, Client) else Client(target, options)
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None
        self._pid = os.getpid()

    def open_job(
        self,
        job_id: str,
        *,
        weight: float = 1.0,
        priority_class: PriorityClass = PriorityClass.TRAIN,
        max_actions: int | None = None,
        max_staleness: int | None = None,
    ) -> SyncJob:
        """See `Client.open_job`."""
        opening = self._client.open_job(
            job_id,
            weight=weight,
            priority_class=priority_class,
            max_actions=max_actions,
            max_staleness=max_staleness,
        )
        return SyncJob(self, self.run(opening))

    def job(self, job_id: str) -> SyncJob:
        """See `Client.job`."""
        return SyncJob(self, self._client.job(job_id))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the client's thread and returns its result."""
        return self._started().run(coroutine)

    def close(self) -> None:
        """Closes the client and ends its thread. Calls that wait in other threads raise ClientClosedError."""
        thread = self._started()
        thread.run(self._client.aclose())
        thread.stop()
        with self._lock:
            self._thread = None

    def __enter__(self) -> Self:
        """Returns the client; it connects when it is first used."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the client."""
        self.close()

    def _started(self) -> LoopThread:
        with self._lock:
            if self._thread is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._thread = LoopThread(f"callsheet client of {self._client.target}")
            return self._thread

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the client alone."""
        return {"client": self._client}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes a client that has not started its thread yet."""
        self.__init__(state["client"])  # type: ignore[misc]
