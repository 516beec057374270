"""The client of operators and tools: status, explanations, manual control, and single outcomes. One rpc per call.

async with AdminClient("127.0.0.1:7077") as admin:
    print((await admin.explain("my-job", "a-1")).explanation)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import grpc.aio
from callsheet.client.admin_predictions import WhatIf
from callsheet.client.admin_values import (
    ClosedJob,
    DrainReport,
    Explanation,
    OpenActions,
    SchedulerStatus,
    ServiceStatus,
)
from callsheet.client.codec.fields import BlobReader, duration, put, put_list
from callsheet.client.codec.handshake import greeting
from callsheet.client.errors import ClientClosedError, invalid
from callsheet.client.per_loop import PerLoop
from callsheet.client.session.channel import PayloadTransfer, answer_of, open_channel, read_outcome
from callsheet.client.session.target import check_target
from callsheet.client.settings import ClientOptions
from callsheet.client.words.outcomes import Outcome
from callsheet.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    client_service_pb2,
    client_service_pb2_grpc,
    common_pb2,
)
from callsheet.v1.buffer_values import FinishedTrajectory
from callsheet.v1.job_values import JobStatus
from callsheet.v1.weights_values import RolloutStatus

MAX_OUTCOME_WAIT_S = 600.0
MAX_WHAT_IF_NODES = 10_000
_HISTORY_PAGE = 200
# How often it is asked how far a rollout is, by somebody who waits.
_LOOK_S = 0.3
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """The scheduler's view of a caller, by the caller's token.

    Attributes:
        scope: "admin", "read-only", "job", "manager" or "gateway"; empty where the scheduler asks for no tokens.
        subject: The one job or manager that the token is for; empty for the other scopes.
    """

    scope: str
    subject: str


@dataclass(frozen=True, slots=True)
class _Connection:
    """A channel and the stubs on it."""

    channel: grpc.aio.Channel
    admin: Any
    client: Any
    payloads: PayloadTransfer


class AdminClient:
    """A scheduler's address for tools. The client connects at its first use, once per process and event loop.

    Every method may raise RefusedError, and ConnectionLostError if the scheduler does not answer in time.
    """

    def __init__(self, target: str, options: ClientOptions | None = None) -> None:
        self.options = ClientOptions() if options is None else options
        self.target = check_target(target, self.options)
        self._closed = False
        self._connections: PerLoop[_Connection] = PerLoop()

    async def identity(self, token_id: str = "") -> CallerIdentity:
        """Returns the scope and the subject of this client's token.

        Args:
            token_id: The public part of another token, which must be valid, too; gateways and administrators may ask.

        Raises:
            AccessDeniedError: The scheduler does not know the token.
        """
        request = greeting()
        request.token_id = token_id
        info = await self._call(self._connection().client.GetServerInfo, request)
        return CallerIdentity(info.caller_scope, info.caller_subject)

    async def prices(self) -> dict[str, float]:
        """Returns money for one unit of each resource of a `Cost`, as the scheduler's settings have it."""
        return dict((await self._call(self._connection().client.GetServerInfo, greeting())).prices)

    async def status(self) -> SchedulerStatus:
        """Returns jobs, managers, nodes and counts."""
        request = admin_service_pb2.GetStatusRequest()
        return SchedulerStatus.from_message(await self._call(self._connection().admin.GetStatus, request))

    async def explain(self, job_id: str, action_id: str) -> Explanation:
        """Returns why an action is where it is, and its whole story.

        Args:
            job_id: The action's job; empty where the action id is unique among open jobs.
            action_id: The action.

        Raises:
            NotFoundError: The action is unknown.
        """
        request = admin_service_pb2.ExplainRequest(key=_key(job_id, action_id))
        return Explanation.from_message(await self._call(self._connection().admin.Explain, request))

    async def actions(self, job_id: str, *, at_most: int = 100) -> OpenActions:
        """Returns the oldest open actions of a job, and why each is where it is.

        Args:
            job_id: The job.
            at_most: The most actions to return, 1 to 1,000.

        Raises:
            NotFoundError: The job is not open.
        """
        request = admin_service_pb2.ListActionsRequest()
        put(request, "", job_id=job_id, page_size=at_most)
        response = await self._call(self._connection().admin.ListActions, request)
        return OpenActions.from_message(response)

    def trajectory_history(self, job_id: str) -> AsyncIterator[admin_service_pb2.TrajectoryHistory]:
        """Iterates over what became of a job's trajectories, open and ended; each page is asked for as it is needed.

        Raises:
            NotFoundError: The job is neither open nor kept.
        """
        request = admin_service_pb2.ListTrajectoryHistoryRequest(page_size=_HISTORY_PAGE)
        put(request, "", job_id=job_id)
        return self._history("ListTrajectoryHistory", request, "trajectories")

    def action_history(
        self, job_id: str, trajectory_ids: Sequence[str] = ()
    ) -> AsyncIterator[admin_service_pb2.ActionHistory]:
        """Iterates likewise over what became of a job's actions, by trajectory and in the order of their submits.

        Args:
            job_id: The job.
            trajectory_ids: Only actions of these trajectories; none: of all, and of none.

        Raises:
            NotFoundError: The job is neither open nor kept.
        """
        request = admin_service_pb2.ListActionHistoryRequest(page_size=_HISTORY_PAGE)
        put(request, "", job_id=job_id)
        put_list(request, "", "trajectory_ids", trajectory_ids)
        return self._history("ListActionHistory", request, "actions")

    async def closed_jobs(self, job_id: str = "") -> AsyncIterator[ClosedJob]:
        """Iterates likewise over closed jobs, the newest close first.

        Args:
            job_id: Only jobs of this id, which may have been opened again; empty: all that the caller may see.
        """
        request = admin_service_pb2.ListClosedJobsRequest(page_size=_HISTORY_PAGE)
        put(request, "", job_id=job_id)
        async for each in self._history("ListClosedJobs", request, "jobs"):
            yield ClosedJob.from_message(each)

    async def _history(self, rpc: str, request: Any, listed: str) -> AsyncIterator[Any]:
        more = True
        while more:
            page = await self._call(getattr(self._connection().admin, rpc), request)
            for each in getattr(page, listed):
                yield each
            more, request.page_token = bool(page.next_page_token), page.next_page_token

    async def what_if(self, pool: str, nodes: int) -> WhatIf:
        """Returns the effect of more nodes of a pool on the actions that wait and run now.

        Args:
            pool: Name of the pool, or the id of one of its nodes.
            nodes: Nodes to add, 1 to 10,000.

        Raises:
            InvalidArgumentError: `nodes` is out of its range.
            NotFoundError: The pool is unknown; the message names the known pools.
        """
        if not 1 <= nodes <= MAX_WHAT_IF_NODES:
            raise invalid("nodes", nodes, f"must be between 1 and {MAX_WHAT_IF_NODES}")
        request = admin_service_pb2.WhatIfRequest()
        put(request, "", pool=pool, nodes=nodes)
        return WhatIf.from_message(await self._call(self._connection().admin.WhatIf, request))

    async def drain(self, manager_id: str, *, deadline_s: float | None = None, dry_run: bool = False) -> DrainReport:
        """Takes a manager out of service: it gets no new sandboxes, and leaves after the end of its last sandbox.

        Args:
            manager_id: The manager.
            deadline_s: After so many seconds the manager leaves, whatever it still has; None waits for the last
                sandbox.
            dry_run: Return the report, and change nothing.

        Returns:
            The sandboxes and attempts that die with the manager if it leaves before their end.

        Raises:
            NotFoundError: The manager is not registered.
            InvalidArgumentError: The deadline is below 0, or no number.
        """
        request = admin_service_pb2.DrainManagerRequest(manager_id=manager_id, deadline_s=deadline_s, dry_run=dry_run)
        return DrainReport.from_message(await self._call(self._connection().admin.DrainManager, request))

    async def heal(self, manager_id: str, *, wait_s: float = 0.0) -> tuple[ServiceStatus, ...]:
        """Makes a manager's quarantined engines load the weights that they were started with.

        The engines serve these weights until the next publish for their service.

        Args:
            manager_id: The manager.
            wait_s: Wait at most so long until all of the manager's engines may serve.

        Returns:
            The state of the manager's engines.

        Raises:
            NotFoundError: The manager is not registered.
            FailedPreconditionError: The manager is away or draining, or has no engine.
        """
        request = admin_service_pb2.HealManagerRequest(manager_id=manager_id)
        await self._call(self._connection().admin.HealManager, request)
        ends = anyio.current_time() + wait_s
        while True:
            managers = {each.manager_id: each.services for each in (await self.status()).managers}
            engines = tuple(each for each in managers.get(manager_id, ()) if each.weights is not None)
            left = ends - anyio.current_time()
            if all(each.weights.may_serve for each in engines if each.weights) or left <= 0.0:
                return engines
            await anyio.sleep(min(_LOOK_S, left))

    async def cancel(self, job_id: str, action_id: str, reason: str = "") -> None:
        """Asks for the cancel of an action; the outcome follows later.

        Raises:
            NotFoundError: The action is unknown.
        """
        request = client_service_pb2.CancelActionRequest(key=_key(job_id, action_id), reason=reason[:256])
        await self._call(self._connection().client.CancelAction, request)

    async def jobs(self) -> tuple[JobStatus, ...]:
        """Returns the open jobs, in the order in which they were opened."""
        response = await self._call(self._connection().client.ListJobs, client_service_pb2.ListJobsRequest())
        return tuple(map(JobStatus.from_message, response.jobs))

    async def buffered(self, job_id: str) -> tuple[FinishedTrajectory, ...]:
        """Returns the finished trajectories in a job's buffer, the oldest first, at most 10,000 and without payloads.

        Raises:
            NotFoundError: The job is not open.
        """
        request = client_service_pb2.ListBufferRequest(job_id=job_id, page_size=10_000)
        response = await self._call(self._connection().client.ListBuffer, request)
        return tuple(FinishedTrajectory.from_message(each, BlobReader({}).read) for each in response.trajectories)

    async def rollouts(self, job_id: str, *, wait_s: float = 0.0) -> tuple[RolloutStatus, ...]:
        """Returns the engines' progress with a job's published weights, by service.

        Args:
            job_id: The job.
            wait_s: Wait at most so long until all engines have proved the weights.

        Raises:
            NotFoundError: The job is not open.
        """
        ends = anyio.current_time() + wait_s
        while True:
            request = client_service_pb2.ListJobsRequest(job_id=job_id)
            response = await self._call(self._connection().client.ListJobs, request)
            found = tuple(each for job in response.jobs for each in JobStatus.from_message(job).rollouts)
            left = ends - anyio.current_time()
            if all(each.done for each in found) or left <= 0.0:
                return found
            await anyio.sleep(min(_LOOK_S, left))

    async def cancel_work(self, job_id: str, *, group_id: str = "", trajectory_id: str = "", reason: str = "") -> None:
        """Cancels the unfinished work of a job, or of one group or trajectory of the job. The job stays open.

        Raises:
            NotFoundError: The job, the group or the trajectory does not exist.
        """
        request = client_service_pb2.CancelWorkRequest(
            job_id=job_id, group_id=group_id, trajectory_id=trajectory_id, reason=reason
        )
        await self._call(self._connection().client.CancelWork, request)

    async def close_job(self, job_id: str) -> None:
        """Closes a job: closes its trajectories and cancels its actions.

        Raises:
            NotFoundError: The job is not open.
        """
        await self._call(self._connection().client.CloseJob, client_service_pb2.CloseJobRequest(job_id=job_id))

    async def outcome(self, job_id: str, action_id: str, *, wait_s: float = 0.0) -> Outcome[Any] | None:
        """Returns the outcome of an action; None if the action has not ended.

        Args:
            job_id: The action's job.
            action_id: The action.
            wait_s: Seconds to wait for the outcome, at most 600.

        Raises:
            NotFoundError: The action is unknown.
            PayloadError: A stored result could not be read.
        """
        if not 0 <= wait_s <= MAX_OUTCOME_WAIT_S:
            raise invalid("wait", wait_s, f"must be between 0 and {MAX_OUTCOME_WAIT_S:g} s")
        request = client_service_pb2.GetOutcomeRequest(key=_key(job_id, action_id), wait=duration("wait", wait_s))
        connection = self._connection()
        response: client_service_pb2.GetOutcomeResponse = await self._call(
            connection.client.GetOutcome, request, wait_s=wait_s
        )
        return await read_outcome(response.outcome, connection.payloads) if response.HasField("outcome") else None

    async def close(self) -> None:
        """Closes the connections of the running loop and of other loops that still run."""
        self._closed = True
        running = asyncio.get_running_loop()
        for loop, connection in self._connections.take_all().items():
            closing = connection.channel.close()
            if loop is running:
                await closing
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(closing, loop)
            else:
                closing.close()

    async def __aenter__(self) -> Self:
        """Returns the client, which connects at its first use."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the client."""
        await self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the address and the options, without connections."""
        return {"target": self.target, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes a client that has not connected yet."""
        self.__init__(state["target"], state["options"])  # type: ignore[misc]

    async def _call(self, rpc: Callable[..., Any], request: Any, *, wait_s: float = 0.0) -> Any:
        return await answer_of(
            rpc(request, timeout=self.options.call_timeout_s + wait_s, metadata=self.options.credentials.metadata())
        )

    def _connection(self) -> _Connection:
        connection = self._connections.get()
        if connection is None:
            if self._closed:
                raise ClientClosedError("the client is closed")
            channel = open_channel(self.target, self.options)
            connection = _Connection(
                channel,
                admin_service_pb2_grpc.AdminServiceStub(channel),
                client_service_pb2_grpc.ClientServiceStub(channel),
                PayloadTransfer(channel, self.options),
            )
            self._connections.put(connection)
        return connection


def _key(job_id: str, action_id: str) -> common_pb2.ActionKey:
    return common_pb2.ActionKey(job_id=job_id, action_id=action_id)
