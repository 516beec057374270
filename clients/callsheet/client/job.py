"""Jobs and trajectories as users hold them, and the verbs that submit actions."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import anyio
from callsheet.client.actions import (
    Action,
    ActionOptions,
    Command,
    EnvReset,
    EnvStep,
    Generate,
    Options,
    RewardModel,
    RewardTests,
    SandboxFile,
    Submission,
    ToolCall,
)
from callsheet.client.backend import Handle
from callsheet.client.errors import AlreadyExistsError, CallsheetError, FailedPreconditionError, NotFoundError
from callsheet.client.jobs import Group, TrajectoryDescription, TrajectoryEnd
from callsheet.client.outcomes import (
    CommandResult,
    EnvResetResult,
    GenerateResult,
    Outcome,
    RewardResult,
    ToolCallResult,
)

if TYPE_CHECKING:
    from callsheet.client.client import Client

logger = logging.getLogger("callsheet.client")
T = TypeVar("T")


class ActionVerbs:
    """What jobs and trajectories have in common. Holds ids only, so it pickles with its client.

    The verbs wait for the outcome of their action; cancelling the task that waits cancels the action. They raise
    RefusedError if the scheduler refuses the action, and ConnectionLostError if there is no connection for too long.

    Attributes:
        client: The client it was opened with.
        job_id: The job.
    """

    def __init__(self, client: Client, job_id: str, trajectory_id: str) -> None:
        self.client = client
        self.job_id = job_id
        self._trajectory_id = trajectory_id

    async def submit(self, action: Action[T], **options: Unpack[ActionOptions]) -> Handle[T]:
        """Submits an action and returns a handle, once the action is in the client's outbox.

        Args:
            action: What to do.
            **options: See `Options`.

        Raises:
            InvalidArgumentError: The action breaks a rule that the client knows.
            RefusedError: The scheduler refused an action that refers to stored payloads. Any other refusal is raised
                by the handle.
            ConnectionLostError: There was no connection for too long.
        """
        backend = self.client.backend()
        given = Options(**options)
        action_id = given.action_id if given.action_id is not None else backend.new_action_id()
        return await backend.submit(Submission(self.job_id, self._trajectory_id, action_id, action, given))

    async def generate(
        self,
        prompt_token_ids: Sequence[int],
        *,
        max_new_tokens: int = 16,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        stop_token_ids: Sequence[int] = (),
        model: str = "policy",
        **options: Unpack[ActionOptions],
    ) -> Outcome[GenerateResult]:
        """Runs a language model. See `Generate` and `Options`."""
        action = Generate(prompt_token_ids, max_new_tokens, temperature, top_p, top_k, seed, stop_token_ids, model)
        return await self._perform(action, options)

    async def tool_call(
        self, service: str, method: str, arguments: bytes = b"", **options: Unpack[ActionOptions]
    ) -> Outcome[ToolCallResult]:
        """Calls an outside API. See `ToolCall` and `Options`."""
        return await self._perform(ToolCall(service, method, arguments), options)

    async def reward_model(
        self, token_ids: Sequence[int], *, model: str = "scorer", **options: Unpack[ActionOptions]
    ) -> Outcome[RewardResult]:
        """Scores by a model. See `RewardModel` and `Options`."""
        return await self._perform(RewardModel(token_ids, model), options)

    async def _perform(self, action: Action[T], options: ActionOptions) -> Outcome[T]:
        handle = await self.submit(action, **options)
        try:
            return await handle.outcome()
        except anyio.get_cancelled_exc_class():
            handle.abandon("its caller was cancelled")
            raise


class Trajectory(ActionVerbs):
    """One rollout: opens when its block is entered; closes as completed, or as abandoned when the block raises.

    Attributes:
        client: The client it was opened with.
        job_id: Its job.
        trajectory_id: Its id.
    """

    def __init__(self, client: Client, description: TrajectoryDescription) -> None:
        super().__init__(client, description.job_id, description.trajectory_id)
        self._description = description

    @property
    def trajectory_id(self) -> str:
        """Its id, unique in the job."""
        return self._trajectory_id

    async def open(self) -> None:
        """Opens the trajectory; to be closed by `close`. An `async with` block does both.

        Raises:
            RefusedError: The scheduler refused it.
            ConnectionLostError: There was no connection for too long.
        """
        backend = self.client.backend()
        try:
            await backend.open_trajectory(self._description)
        except anyio.get_cancelled_exc_class():
            backend.abandon_trajectory(self.job_id, self.trajectory_id)
            raise

    async def close(self, end: TrajectoryEnd = TrajectoryEnd.COMPLETED) -> None:
        """Closes the trajectory: cancels its open actions and releases its sandbox.

        Raises:
            RefusedError: The scheduler refused it, for instance as it was closed otherwise before.
            ConnectionLostError: There was no connection for too long.
        """
        await self.client.backend().close_trajectory(self.job_id, self.trajectory_id, end)

    async def __aenter__(self) -> Self:
        """Opens the trajectory."""
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the trajectory, even if the caller is being cancelled, within the client's time for closing."""
        if kind is None:
            await self._close_unless_closed()
            return
        # The idle timeout closes what stays open.
        closing = self.close(TrajectoryEnd.ABANDONED)
        await _close_after_error(self.client, f"trajectory {self.job_id}/{self.trajectory_id}", closing)

    async def _close_unless_closed(self) -> None:
        try:
            await self.close()
        except (NotFoundError, AlreadyExistsError, FailedPreconditionError) as refusal:
            # Closed by the scheduler already: redundant in its group, too stale or idle. Its actions told so.
            logger.info("trajectory was closed job=%s trajectory=%s: %s", self.job_id, self.trajectory_id, refusal)

    async def env_reset(
        self,
        *,
        files: Iterable[SandboxFile] = (),
        set_up: Command | None = None,
        disk_mib: int | None = None,
        max_processes: int | None = None,
        service: str = "",
        image: str = "",
        repeat_set_up: bool = False,
        network: Iterable[str] = (),
        **options: Unpack[ActionOptions],
    ) -> Outcome[EnvResetResult]:
        """Creates a fresh sandbox for the trajectory. See `EnvReset` and `Options`."""
        reset = EnvReset(tuple(files), set_up, disk_mib, max_processes, service, image, repeat_set_up, tuple(network))
        return await self._perform(reset, options)

    async def env_step(
        self,
        command: Command,
        *,
        files: Iterable[SandboxFile] = (),
        session: str = "",
        download: Iterable[str] = (),
        **options: Unpack[ActionOptions],
    ) -> Outcome[CommandResult]:
        """Runs a command in the trajectory's sandbox. See `EnvStep` and `Options`.

        To watch its output, submit an `EnvStep` with `stream_output` and iterate over `Handle.output`.
        """
        return await self._perform(EnvStep(command, tuple(files), session, tuple(download)), options)

    async def reward_tests(
        self,
        command: Command,
        *,
        files: Iterable[SandboxFile] = (),
        in_sandbox: bool = True,
        service: str = "",
        **options: Unpack[ActionOptions],
    ) -> Outcome[RewardResult]:
        """Scores by a test suite, by default in the trajectory's sandbox. See `RewardTests` and `Options`."""
        return await self._perform(RewardTests(command, tuple(files), in_sandbox, service), options)


class Job(ActionVerbs):
    """A training or evaluation run. Its verbs submit actions that belong to no trajectory.

    Attributes:
        client: The client it was opened with.
        job_id: Its id.
    """

    def __init__(self, client: Client, job_id: str) -> None:
        super().__init__(client, job_id, "")

    def trajectory(
        self, trajectory_id: str, *, group: Group | None = None, idle_timeout_s: float | None = None
    ) -> Trajectory:
        """Returns a trajectory, which opens when its `async with` block is entered. See `TrajectoryDescription`."""
        return Trajectory(self.client, TrajectoryDescription(self.job_id, trajectory_id, group, idle_timeout_s))

    async def publish_policy_version(self, version: int) -> None:
        """Tells the scheduler that the trainer has a new policy version; trajectories too stale are cancelled.

        Raises:
            FailedPreconditionError: The version is older than the newest.
        """
        await self.client.backend().publish_policy_version(self.job_id, version)

    async def close(self) -> None:
        """Closes the job: closes its trajectories, cancels its actions, forgets their ids.

        Raises:
            NotFoundError: It is not open.
        """
        await self.client.backend().close_job(self.job_id)

    async def __aenter__(self) -> Self:
        """Nothing more to do: the job is open."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the job; after an error, or while the caller is being cancelled, within the client's time for that."""
        if kind is None:
            await self.close()
        else:
            await _close_after_error(self.client, f"job {self.job_id}", self.close())

    async def reward_tests(
        self,
        command: Command,
        *,
        files: Iterable[SandboxFile] = (),
        service: str = "",
        **options: Unpack[ActionOptions],
    ) -> Outcome[RewardResult]:
        """Scores by a test suite in a sandbox of its own. See `RewardTests` and `Options`."""
        return await self._perform(RewardTests(command, tuple(files), False, service), options)


async def _close_after_error(client: Client, what: str, closing: Coroutine[Any, Any, None]) -> None:
    """Closes what a block leaves behind that raised: the block's own error matters more than one of closing."""
    with anyio.move_on_after(client.options.close_timeout_s, shield=True) as scope:
        try:
            await closing
        except CallsheetError as error:
            logger.warning("left open: %s: %s", what, error)
    if scope.cancelled_caught:
        logger.warning("left open: %s: no answer in %g s", what, client.options.close_timeout_s)
