"""A client in memory, for tests of code that uses the client: no scheduler, no gRPC, scripted outcomes.

    fake = FakeClient()
    fake.on_env_step(lambda step: Succeeded(CommandResult(0, stdout=b"ok")))
    await code_under_test(fake)
    assert [submission.action for submission in fake.submitted] == [EnvStep(Command.shell("make test"))]

Wrap it for code that uses the sync facade: `SyncClient(fake)`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import anyio
from callsheet.client.actions import (
    Action,
    EnvReset,
    EnvStep,
    Generate,
    RewardModel,
    RewardTests,
    Submission,
    ToolCall,
    kind_of,
)
from callsheet.client.backend import Backend, Handle
from callsheet.client.client import Client
from callsheet.client.errors import ClientClosedError, RefusedError, refused
from callsheet.client.jobs import JobDescription, TrajectoryDescription, TrajectoryEnd
from callsheet.client.outcomes import (
    Cancelled,
    CommandResult,
    EnvResetResult,
    GenerateResult,
    Outcome,
    OutputChunk,
    OutputStream,
    RewardResult,
    ToolCallResult,
)

T = TypeVar("T")
ActionT = TypeVar("ActionT")
Script: TypeAlias = Callable[[ActionT], Outcome[T] | Awaitable[Outcome[T]]]
"""Makes the outcome of an action. May be async, to wait for something; may raise a RefusedError."""


class FakeClient(Client):
    """A `Client` whose outcomes come from scripts, one per sort of action.

    An action without a script raises LookupError. Jobs and trajectories must be open, a trajectory opens once, and an
    action id belongs to one action, as with a real scheduler.

    Attributes:
        submitted: All accepted submissions, in order.
        cancelled: (job id, action id, reason) of all cancels, those by a cancelled caller included.
        published: (job id, version) of all published policy versions.
        closed_trajectories: How closed trajectories ended, by (job id, trajectory id).
        open_jobs: Descriptions of open jobs by id.
    """

    def __init__(self) -> None:
        super().__init__("fake")
        self.submitted: list[Submission[Any]] = []
        self.cancelled: list[tuple[str, str, str]] = []
        self.published: list[tuple[str, int]] = []
        self.closed_trajectories: dict[tuple[str, str], TrajectoryEnd] = {}
        self.open_jobs: dict[str, JobDescription] = {}
        self._scripts: dict[type[Any], Script[Any, Any]] = {}
        self._fake = _FakeBackend(self, self._scripts)

    def on_generate(self, script: Script[Generate, GenerateResult]) -> None:
        """Sets the script of generate actions."""
        self._scripts[Generate] = script

    def on_env_reset(self, script: Script[EnvReset, EnvResetResult]) -> None:
        """Sets the script of env_reset actions."""
        self._scripts[EnvReset] = script

    def on_env_step(self, script: Script[EnvStep, CommandResult]) -> None:
        """Sets the script of env_step actions."""
        self._scripts[EnvStep] = script

    def on_tool_call(self, script: Script[ToolCall, ToolCallResult]) -> None:
        """Sets the script of tool_call actions."""
        self._scripts[ToolCall] = script

    def on_reward_tests(self, script: Script[RewardTests, RewardResult]) -> None:
        """Sets the script of rewards by tests."""
        self._scripts[RewardTests] = script

    def on_reward_model(self, script: Script[RewardModel, RewardResult]) -> None:
        """Sets the script of rewards by a model."""
        self._scripts[RewardModel] = script

    def backend(self) -> Backend:
        """Returns the backend in memory.

        Raises:
            ClientClosedError: The client was closed.
        """
        if self._closed:
            raise ClientClosedError("the client is closed")
        return self._fake


class _FakeBackend:
    """The `Backend` of a `FakeClient`."""

    def __init__(self, client: FakeClient, scripts: dict[type[Any], Script[Any, Any]]) -> None:
        self._client = client
        self._scripts = scripts
        self._trajectories: dict[tuple[str, str], TrajectoryDescription] = {}
        self._handles: dict[tuple[str, str], tuple[Submission[Any], _FakeHandle[Any]]] = {}
        self._ids = 0

    async def open_job(self, job: JobDescription) -> None:
        """Opens a job."""
        if self._client.open_jobs.setdefault(job.job_id, job) != job:
            raise refused("ALREADY_EXISTS", field="job_id", value=job.job_id, rule="the job is open with another body")

    async def close_job(self, job_id: str) -> None:
        """Closes a job and its trajectories, and forgets its action ids."""
        self._check_job(job_id)
        del self._client.open_jobs[job_id]
        for key in [key for key in self._trajectories if key[0] == job_id]:
            self.abandon_trajectory(*key)
        self._handles = {key: kept for key, kept in self._handles.items() if key[0] != job_id}

    async def publish_policy_version(self, job_id: str, version: int) -> None:
        """Records the version."""
        self._check_job(job_id)
        newest = max((old for job, old in self._client.published if job == job_id), default=0)
        if version < newest:
            raise refused(
                "FAILED_PRECONDITION", field="version", value=str(version), rule=f"not older than the newest ({newest})"
            )
        self._client.published.append((job_id, version))

    async def open_trajectory(self, trajectory: TrajectoryDescription) -> None:
        """Opens a trajectory."""
        self._check_job(trajectory.job_id)
        key = (trajectory.job_id, trajectory.trajectory_id)
        if key in self._client.closed_trajectories or self._trajectories.setdefault(key, trajectory) != trajectory:
            raise refused(
                "ALREADY_EXISTS", field="trajectory_id", value=key[1], rule="a trajectory of this id was opened before"
            )

    async def close_trajectory(self, job_id: str, trajectory_id: str, end: TrajectoryEnd) -> None:
        """Closes a trajectory."""
        self._check_trajectory(job_id, trajectory_id)
        del self._trajectories[job_id, trajectory_id]
        self._client.closed_trajectories[job_id, trajectory_id] = end

    def abandon_trajectory(self, job_id: str, trajectory_id: str) -> None:
        """Closes a trajectory as abandoned, if it is open."""
        if self._trajectories.pop((job_id, trajectory_id), None):
            self._client.closed_trajectories[job_id, trajectory_id] = TrajectoryEnd.ABANDONED

    def new_action_id(self) -> str:
        """Returns "action-1", "action-2" and so on."""
        self._ids += 1
        return f"action-{self._ids}"

    async def submit(self, submission: Submission[Any]) -> Handle[Any]:
        """Accepts an action; its script runs when the outcome is awaited."""
        key = (submission.job_id, submission.action_id)
        known = self._handles.get(key)
        if known is not None:
            return self._attach(submission, *known)
        self._check_job(submission.job_id)
        if submission.trajectory_id:
            self._check_trajectory(submission.job_id, submission.trajectory_id)
        script = self._scripts.get(type(submission.action))
        if script is None:
            raise LookupError(f"no script for {kind_of(submission.action).value}: {submission.action!r}")
        handle = _FakeHandle(self._client, submission, script)
        self._handles[key] = (submission, handle)
        self._client.submitted.append(submission)
        return handle

    @staticmethod
    def _attach(submission: Submission[Any], known: Submission[Any], handle: Handle[Any]) -> Handle[Any]:
        if submission != known:
            raise refused(
                "ALREADY_EXISTS",
                field="action_id",
                value=submission.action_id,
                rule="an action of this id has another body",
            )
        return handle

    def _check_job(self, job_id: str) -> None:
        if job_id not in self._client.open_jobs:
            raise refused("NOT_FOUND", field="job_id", value=job_id, rule="the job is not open")

    def _check_trajectory(self, job_id: str, trajectory_id: str) -> None:
        if (job_id, trajectory_id) not in self._trajectories:
            raise refused("NOT_FOUND", field="trajectory_id", value=trajectory_id, rule="the trajectory is not open")


class _FakeHandle(Handle[T]):
    """An action of a `FakeClient`."""

    def __init__(self, client: FakeClient, submission: Submission[T], script: Script[Any, T]) -> None:
        super().__init__(submission.job_id, submission.action_id)
        self._client = client
        self._action: Action[T] = submission.action
        self._script = script
        self._ended: Outcome[T] | RefusedError | None = None
        self._running = anyio.Lock()
        self._script_scope = anyio.CancelScope()

    async def accepted(self) -> None:
        """Returns at once."""

    async def outcome(self) -> Outcome[T]:
        """Runs the script, once."""
        async with self._running:
            if self._ended is None:
                await self._run()
        if isinstance(self._ended, RefusedError):
            raise self._ended
        assert self._ended is not None
        return self._ended

    async def output(self) -> AsyncIterator[OutputChunk]:
        """Yields the output of the script's result, each stream as one part, if the action asks for it."""
        result = getattr(await self.outcome(), "value", None)
        if isinstance(self._action, EnvStep) and self._action.stream_output and isinstance(result, CommandResult):
            for stream, content in ((OutputStream.STDOUT, result.stdout), (OutputStream.STDERR, result.stderr)):
                if content:
                    yield OutputChunk(stream, content)

    async def cancel(self, reason: str = "") -> None:
        """Makes the outcome Cancelled, unless the script has made one."""
        self.abandon(reason)

    def abandon(self, reason: str) -> None:
        """Like `cancel`."""
        if self._ended is None:
            self._client.cancelled.append((self.job_id, self.action_id, reason))
            self._ended = Cancelled(reason, job_id=self.job_id, action_id=self.action_id)
            self._script_scope.cancel()

    async def _run(self) -> None:
        with self._script_scope:
            try:
                made = self._script(self._action)
                outcome = await made if inspect.isawaitable(made) else made
            except RefusedError as refusal:
                self._ended = refusal
            else:
                self._ended = replace(outcome, job_id=self.job_id, action_id=self.action_id)
