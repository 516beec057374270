"""A training or evaluation run (`Job`), and the batches that a trainer takes from its buffer."""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
from callsheet.client.backend import CancelTarget, Connector
from callsheet.client.errors import (
    CallsheetError,
    FailedPreconditionError,
    NotFoundError,
    WeightsNotProvedError,
    not_found,
)
from callsheet.client.group import Group
from callsheet.client.trajectory import Trajectory, close_after_error
from callsheet.client.verbs import ActionVerbs
from callsheet.client.words.arguments import items
from callsheet.client.words.jobs import BatchRequest, FailurePolicy
from callsheet.client.words.weights import DEFAULT_UPDATE_TIMEOUT_S, PublishedWeights, Source, UpdateModeName
from callsheet.v1.buffer_values import BatchContent, FinishedTrajectory
from callsheet.v1.client_service_values import Settlement
from callsheet.v1.job_values import (
    GroupDescription,
    GroupStatus,
    JobStatus,
    OnInfra,
    Opening,
    TrajectoryDescription,
    TrajectoryStatus,
)
from callsheet.v1.names import MAX_BATCH
from callsheet.v1.outcome_values import FailureKind
from callsheet.v1.weights_values import Canary, EngineState, RolloutStatus, TransferGroup

logger = logging.getLogger("callsheet.client")
# How often the scheduler is asked how far a rollout is.
_FIRST_LOOKS_S = (0.02, 0.05, 0.1, 0.2)
_LOOK_S = 0.5
# A lease is extended so many times in its length.
_EXTENSIONS = 3


class Job(ActionVerbs):
    """A training or evaluation run. Its verbs submit actions that belong to no trajectory.

    A living client holds the job, so that the job does not expire. `close` ends the job for all clients.

    Attributes:
        client: The client of the job.
        job_id: The job's id.
        opening: The answer to `open_job`: CREATED or ATTACHED; None for a job that `Client.job` only named.
        failure_policy: The meaning of failures for groups that name no rule of their own.
    """

    def __init__(
        self,
        client: Connector,
        job_id: str,
        opening: Opening | None = None,
        failure_policy: FailurePolicy | None = None,
    ) -> None:
        super().__init__(client, job_id, "")
        client.steps.begin(job_id, anew=opening is Opening.CREATED)
        self.opening = opening
        self.failure_policy = failure_policy or FailurePolicy()

    def trajectory(
        self, trajectory_id: str, *, idle_timeout_s: float | None = None, deadline_s: float | None = None
    ) -> Trajectory:
        """Returns a trajectory, whose `async with` block opens it.

        Args:
            trajectory_id: 1 to 256 characters, unique in the job.
            idle_timeout_s: The scheduler closes the trajectory as abandoned after so many seconds without an action.
                None takes the server's default (1 hour).
            deadline_s: The scheduler closes the trajectory as abandoned so many seconds after its opening; None means
                never.
        """
        return Trajectory(
            self.client, TrajectoryDescription(self.job_id, trajectory_id, None, idle_timeout_s, deadline_s)
        )

    def group(
        self,
        group_id: str,
        *,
        size: int,
        quorum: int | None = None,
        on_infra: OnInfra | None = None,
        max_replacements: int | None = None,
        infra_budget: int | None = None,
        lost_to: Iterable[FailureKind] | None = None,
    ) -> Group:
        """Returns siblings of one prompt. See `Group`.

        Args:
            group_id: Unique in the job.
            size: Seats: trajectories that may complete.
            quorum: After so many completed trajectories the others are redundant and are cancelled; None means `size`.
            on_infra: The treatment of a member that an INFRA failure lost; None takes the job's failure policy.
            max_replacements: The most members that this process replaces; None means `infra_budget`.
            infra_budget: The most members that `on_infra` is applied to, or the most retries of RETRY. None takes the
                budget of the failure policy if `on_infra` is None, else `size`.
            lost_to: Kinds of failure that lose a member; None takes those of the failure policy.

        Raises:
            InvalidArgumentError: A number is out of its range.
        """
        policy = self.failure_policy
        if on_infra is None:
            on_infra = policy.on_infra
            infra_budget = policy.infra_budget if infra_budget is None else infra_budget
        described = GroupDescription(group_id, size, quorum, on_infra, infra_budget)
        kinds = (
            policy.lost_to if lost_to is None else frozenset(items("lost_to", lost_to, FailureKind, "a FailureKind"))
        )
        return Group(self.client, self.job_id, described, max_replacements, lost_to=kinds)

    async def status(self) -> JobStatus:
        """Returns the scheduler's state of the job; raises NotFoundError if the job is not open."""
        for status in await self.client.backend().jobs(self.job_id):
            return status
        raise not_found("job_id", self.job_id, "the job is not open")

    async def trajectories(self, *, closed: bool = False) -> list[TrajectoryStatus]:
        """Returns the job's open trajectories, ordered by id; raises NotFoundError if the job is not open.

        Args:
            closed: Return closed trajectories, too.
        """
        return await self.client.backend().trajectories(self.job_id, closed=closed)

    async def groups(self) -> list[GroupStatus]:
        """Returns the job's groups, ordered by id; raises NotFoundError if the job is not open."""
        return await self.client.backend().groups(self.job_id)

    async def take_batch(
        self,
        *,
        at_least: int = 1,
        at_most: int = MAX_BATCH,
        wait_s: float = 0.0,
        lease_s: float | None = None,
        batch_id: str | None = None,
    ) -> Batch:
        """Takes the oldest finished trajectories out of the job's buffer, groups whole, as a lease to the caller.

        Once `at_least` trajectories are ready, the batch takes all ready ones up to `at_most`.

        Args:
            at_least: The fewest trajectories, 1 to `at_most`.
            at_most: The most trajectories, up to 2,048. The group that completes `at_least` may exceed the number.
            wait_s: Seconds to wait while fewer than `at_least` are ready.
            lease_s: The batch goes back after so many seconds without an acknowledgement or an extension; a day at
                most. None takes the server's default (10 minutes).
            batch_id: 1 to 256 characters, new in the job; None makes an id. The same id again returns the same batch,
                so that a trainer which notes the id finds its batch again after a crash.

        Returns:
            The batch; an empty one if too few trajectories were ready in time.

        Raises:
            InvalidArgumentError: A value is out of its range, or the buffer never holds `at_least` trajectories.
            AlreadyExistsError: A batch of this id was acknowledged, or went back.
            NotFoundError: The job is not open.
            ConnectionLostError: There was no connection for too long.
        """
        name = uuid.uuid4().hex if batch_id is None else batch_id
        wanted = BatchRequest(name, at_least, at_most, wait_s, lease_s)
        return Batch(self.client, self.job_id, await self.client.backend().take_batch(self.job_id, wanted))

    async def publish(
        self,
        version: int,
        source: Source | None = None,
        *,
        mode: UpdateModeName = "drain",
        service: str = "",
        at_once: int = 1,
        canary: Canary | None = None,
        timeout_s: float = DEFAULT_UPDATE_TIMEOUT_S,
        wait_s: float = DEFAULT_UPDATE_TIMEOUT_S,
    ) -> RolloutStatus | None:
        """Publishes a new policy version of the trainer, and cancels trajectories that are too stale.

        With a source the engines of a service take the weights, some at a time, while the others serve. `publish`
        returns once each engine has proved the weights or has failed to. For a `TransferGroup` it returns at the
        scheduler's acceptance. An engine gets work only for weights that the engine has proved: by their version, by
        its tensors if it can report them, and by a canary. A newer publish overtakes engines that have not begun.
        While this job is open no other job may publish weights for the service.

        Args:
            version: The version, 0 or more.
            source: The place of the weights: a path or a URI, `Tensors` or a `TransferGroup`.
            mode: The treatment of running requests. "drain" lets them finish first, "abort" ends them with the tokens
                that they have, and "keep" changes the weights between two of their tokens.
            service: The engines' service; not needed if managers serve generate under one name only.
            at_once: The most engines that update at a time. Without an answer in `canary` the first engine goes alone.
            canary: The prompt by which engines prove the weights; None takes a usual one.
            timeout_s: The longest wait for a drain and for the update itself, each.
            wait_s: The longest wait for the engines; 0 returns at the acceptance. See `rollout` then.

        Returns:
            The progress of the engines, some of which may have failed; None without a source.

        Raises:
            WeightsNotProvedError: No engine has proved the weights, in time or at all; the message has each reason.
            FailedPreconditionError: The version is older than the newest, the service is not clear, or
                another open job publishes weights for the service.
            AccessDeniedError: The token does not name the service, which is reserved, or used by another open job.
            AlreadyExistsError: The version was published with other weights.
            InvalidArgumentError: A value is out of its range.
        """
        weights = None
        if source is not None:
            weights = PublishedWeights(source, mode, service, at_once, canary or Canary(), timeout_s)
        await self.client.backend().publish(self.job_id, version, weights)
        self.client.steps.published(self.job_id, version)
        if weights is None:
            return None
        wait_s = 0.0 if isinstance(source, TransferGroup) else wait_s
        status = await self._look(service, wait_s, lambda each: each.settled or each.version > version)
        if wait_s <= 0.0 or status.version > version:
            return status
        if not any(each.state is EngineState.PROVED for each in status.engines):
            raise WeightsNotProvedError(f"no engine serves what was published: {status}")
        for each in status.engines:
            if told := each.warning or each.reason:
                logger.warning("weights job=%s version=%d %s: %s", self.job_id, version, each.manager_id, told)
        return status

    def step_summary(self) -> dict[str, float]:
        """Returns counts and times of the job's actions since the last summary, for a trainer's log, and begins again.

        The summary counts actions that this client submitted and whose outcomes have arrived. Times are seconds, summed
        over actions that run side by side, so they may exceed `wall_s`. Each summary has all names:

        - `wall_s`: time since the last summary.
        - `time_s/`: `generation`, `environment` (env_reset and env_step), `tools`, `reward`; `waiting` is all waiting.
          Its parts are the `queue`, of which `start_waiting` is the time before trajectories began, and the waits after
          the dispatch by cause, such as `waiting_cores`. `overhead` is transport, dispatch and journal.
        - `actions/KIND`, `ended/succeeded` and the like, `failures/KIND`, `retried`: numbers of actions.
        - `tokens/generated`: new tokens. `staleness/`: policy versions by which arriving tokens were behind the newest
          version that this client had published or seen: `mean` over tokens, `max`; `stale_tokens`;
          `mixed_generations` of several versions; `policy_version`, the newest.
        """
        return self.client.steps.take(self.job_id)

    async def rollout(self, version: int | None = None, *, service: str = "", wait_s: float = 0.0) -> RolloutStatus:
        """Returns the engines' progress with the weights that the job published last.

        Args:
            version: Wait for this version, or a newer one; None takes the newest.
            service: The engines' service; not needed if the job published for one service only.
            wait_s: Wait at most so long until all engines have proved the version. See `RolloutStatus.done` then.

        Raises:
            NotFoundError: The job is not open, or published no weights for the service.
        """
        return await self._look(
            service, wait_s, lambda each: each.done and (version is None or each.version >= version)
        )

    async def _look(self, service: str, wait_s: float, enough: Callable[[RolloutStatus], bool]) -> RolloutStatus:
        ends = anyio.current_time() + wait_s
        pauses = itertools.chain(_FIRST_LOOKS_S, itertools.repeat(_LOOK_S))
        while True:
            status = rollout_of(await self.status(), service)
            left = ends - anyio.current_time()
            if enough(status) or left <= 0.0:
                return status
            await anyio.sleep(min(next(pauses), left))

    async def cancel(self, reason: str = "") -> None:
        """Cancels all actions of the job and closes all its trajectories as abandoned; the job stays open.

        Args:
            reason: The reason in the outcomes; shortened to 256 characters.

        Raises:
            NotFoundError: The job is not open.
        """
        await self.client.backend().cancel_work(CancelTarget(self.job_id, reason=reason))

    async def close(self) -> None:
        """Closes the job: closes its trajectories, cancels its actions, and forgets their ids.

        Raises:
            NotFoundError: The job is not open.
        """
        await self.client.backend().close_job(self.job_id)

    async def __aenter__(self) -> Self:
        """Returns the job, which is open already."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the job; after an error or a cancel of the caller within `close_timeout_s`."""
        if kind is None:
            await self.close()
        else:
            await close_after_error(self.client, f"job {self.job_id}", self.close())


def rollout_of(status: JobStatus, service: str) -> RolloutStatus:
    """Returns the rollout of a job for a service, or the job's only rollout.

    Raises:
        NotFoundError: The service has no rollout, or the job has several and none is named.
    """
    found = [each for each in status.rollouts if service in ("", each.service)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(each.service for each in status.rollouts) or "none"
    raise not_found("service", service, f"the job published weights for: {names}")


class Batch:
    """Finished trajectories that are leased to this process, until it acknowledges them.

    Its `async with` block acknowledges the batch at the end, and gives the batch back if the block raises. Meanwhile
    the block extends the lease, if the event loop runs::

        async with await job.take_batch(at_least=64, wait_s=600) as batch:
            if batch:
                optimise(batch.trajectories)
                await job.publish(version)

    A batch for which there were too few trajectories is empty and false. Its block does nothing.

    Attributes:
        job_id: The batch's job.
        content: The samples.
    """

    def __init__(self, client: Connector, job_id: str, content: BatchContent) -> None:
        self.client = client
        self.job_id = job_id
        self.content = content
        self._extending: anyio.abc.TaskGroup | None = None

    @property
    def batch_id(self) -> str:
        """The id of the batch."""
        return self.content.batch_id

    @property
    def trajectories(self) -> tuple[FinishedTrajectory, ...]:
        """The trajectories of the batch, the oldest group first, and groups whole."""
        return self.content.trajectories

    @property
    def groups(self) -> Mapping[str, tuple[FinishedTrajectory, ...]]:
        """The trajectories by group; those without a group are under the empty id."""
        found: dict[str, tuple[FinishedTrajectory, ...]] = {}
        for each in self.trajectories:
            found[each.group_id] = (*found.get(each.group_id, ()), each)
        return found

    def __len__(self) -> int:
        """Returns the number of trajectories."""
        return len(self.trajectories)

    async def acknowledge(self) -> None:
        """Ends the batch after its training: none of it comes again. A second call does nothing.

        Raises:
            NotFoundError: The lease has ended, so the batch went back and may have another taker.
            ConnectionLostError: There was no connection for too long.
        """
        await self._settle(Settlement.ACKNOWLEDGE)

    async def give_back(self) -> None:
        """Returns the whole batch to its place in the buffer; raises the errors of `acknowledge`."""
        await self._settle(Settlement.GIVE_BACK)

    async def extend(self) -> None:
        """Begins the lease again, with its former length; raises NotFoundError if the lease has ended."""
        await self._settle(Settlement.EXTEND)

    async def _settle(self, settlement: Settlement) -> None:
        if self:
            await self.client.backend().settle_batch(self.job_id, self.batch_id, settlement)

    async def __aenter__(self) -> Self:
        """Extends the lease from now on."""
        self._extending = anyio.create_task_group()
        await self._extending.__aenter__()
        if self:
            self._extending.start_soon(self._extend_for_ever)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Acknowledges the batch. After an error it gives the batch back, within the client's time for closing."""
        assert self._extending is not None
        self._extending.cancel_scope.cancel()
        try:
            await self._extending.__aexit__(None, None, None)
        finally:
            if error is not None:
                await self._give_back_after_error()
        if error is None:
            await self.acknowledge()
        return None

    async def _give_back_after_error(self) -> None:
        """Gives the batch back and ignores errors: the block's error matters more, and the lease ends anyway."""
        with anyio.move_on_after(self.client.options.close_timeout_s, shield=True):
            try:
                await self.give_back()
            except CallsheetError:
                return

    async def _extend_for_ever(self) -> None:
        pause_s = max(self.content.lease_s / _EXTENSIONS, 0.05)
        while True:
            await anyio.sleep(pause_s)
            try:
                await self.extend()
            except (NotFoundError, FailedPreconditionError):
                return  # It is another's, or nobody's: the acknowledgement tells.
            except CallsheetError:
                continue  # A connection that is lost may be back before the lease ends.
