"""Sources of the numbers on pages: a scheduler that runs, or the journal of one that does not."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import anyio
import anyio.abc
import grpc.aio
from callsheet.client.codec.handshake import greeting, mismatch
from callsheet.client.session.channel import answer_of, open_channel
from callsheet.client.settings import ClientOptions
from callsheet.dashboard.shared_answers import SharedAnswers
from callsheet.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    client_service_pb2,
    client_service_pb2_grpc,
    payload_service_pb2,
    payload_service_pb2_grpc,
)
from google.protobuf.message import Message

T = TypeVar("T")
KEEP_S: Final = 2.0
"""How old an answer may be that viewers with one token share."""
_KEEP_LONGER_S: Final = 4.0
"""The same of what costs a scheduler more: whole stories, predictions, and pages of the journal."""
CALL_S: Final = 10.0
"""Deadline of a question."""
_CLOSE_S: Final = 2.0


class Source(Protocol):
    """Questions that pages ask. The methods are the rpcs of their names, with their messages.

    All may raise RefusedError, and ConnectionLostError if there is no answer.
    """

    @property
    def last_alive(self) -> float | None:
        """Time when the run was last alive, in seconds since 1970; None while it is."""

    async def get_server_info(self) -> client_service_pb2.GetServerInfoResponse:
        """Returns the viewer's identity. Its scope is empty if no tokens are asked for."""

    async def get_status(self, request: admin_service_pb2.GetStatusRequest, /) -> admin_service_pb2.GetStatusResponse:
        """Jobs, managers and nodes."""

    async def list_jobs(self, request: client_service_pb2.ListJobsRequest, /) -> client_service_pb2.ListJobsResponse:
        """Open jobs that the viewer may see."""

    async def list_groups(
        self, request: client_service_pb2.ListGroupsRequest, /
    ) -> client_service_pb2.ListGroupsResponse:
        """Groups of an open job."""

    async def list_actions(
        self, request: admin_service_pb2.ListActionsRequest, /
    ) -> admin_service_pb2.ListActionsResponse:
        """The oldest open actions of a job."""

    async def explain(self, request: admin_service_pb2.ExplainRequest, /) -> admin_service_pb2.ExplainResponse:
        """Returns why an action is where it is."""

    async def what_if(self, request: admin_service_pb2.WhatIfRequest, /) -> admin_service_pb2.WhatIfResponse:
        """Returns the effects that more nodes would have."""

    async def list_closed_jobs(
        self, request: admin_service_pb2.ListClosedJobsRequest, /
    ) -> admin_service_pb2.ListClosedJobsResponse:
        """Closed jobs that the viewer may see."""

    async def list_trajectory_history(
        self, request: admin_service_pb2.ListTrajectoryHistoryRequest, /
    ) -> admin_service_pb2.ListTrajectoryHistoryResponse:
        """Trajectories of a job, open and ended."""

    async def list_action_history(
        self, request: admin_service_pb2.ListActionHistoryRequest, /
    ) -> admin_service_pb2.ListActionHistoryResponse:
        """Actions of a job or of trajectories, open and ended."""

    async def get_payload(
        self, request: payload_service_pb2.GetPayloadRequest, /
    ) -> payload_service_pb2.GetPayloadResponse:
        """The beginning of stored bytes."""

    async def cancel_action(
        self, request: client_service_pb2.CancelActionRequest, /
    ) -> client_service_pb2.CancelActionResponse:
        """Asks for the cancel of an action."""

    async def close_job(self, request: client_service_pb2.CloseJobRequest, /) -> client_service_pb2.CloseJobResponse:
        """Closes a job."""

    async def drain_manager(
        self, request: admin_service_pb2.DrainManagerRequest, /
    ) -> admin_service_pb2.DrainManagerResponse:
        """Takes a manager out of service, or only tells what would die."""


class SchedulerConnection:
    """A connection to a scheduler, and what its viewers share."""

    def __init__(self, tasks: anyio.abc.TaskGroup, target: str, options: ClientOptions) -> None:
        """Opens the connection, which is made when it is first used.

        Args:
            tasks: Where it is asked.
            target: Where the scheduler is.
            options: How to connect; each viewer has a token of its own, so these must hold none.

        Raises:
            InvalidArgumentError: A file of the options cannot be read.
        """
        self.target, self.options = target, options
        self._channel: grpc.aio.Channel = open_channel(target, options)
        self.client: Any = client_service_pb2_grpc.ClientServiceStub(self._channel)
        self.admin: Any = admin_service_pb2_grpc.AdminServiceStub(self._channel)
        self.payloads: Any = payload_service_pb2_grpc.PayloadServiceStub(self._channel)
        self.answers = SharedAnswers(tasks, time.monotonic)

    def source(self, token: str | None) -> GrpcSource:
        """Returns the source for a viewer with this token, or with none."""
        return GrpcSource(self, token)

    async def close(self) -> None:
        """Closes the connection, also where the caller is cancelled."""
        with anyio.move_on_after(_CLOSE_S, shield=True):
            await self._channel.close()


class GrpcSource:
    """A running scheduler, as it shows itself to one token."""

    last_alive: float | None = None

    def __init__(self, connection: SchedulerConnection, token: str | None) -> None:
        self._connection = connection
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._viewer = hashlib.sha256((token or "").encode()).digest()
        client, admin = connection.client, connection.admin
        self.get_status = self._rpc(admin.GetStatus, admin_service_pb2.GetStatusResponse)
        self.list_jobs = self._rpc(client.ListJobs, client_service_pb2.ListJobsResponse)
        self.list_groups = self._rpc(client.ListGroups, client_service_pb2.ListGroupsResponse)
        self.list_actions = self._rpc(admin.ListActions, admin_service_pb2.ListActionsResponse, _KEEP_LONGER_S)
        self.explain = self._rpc(admin.Explain, admin_service_pb2.ExplainResponse, _KEEP_LONGER_S)
        self.what_if = self._rpc(admin.WhatIf, admin_service_pb2.WhatIfResponse, _KEEP_LONGER_S)
        self.list_closed_jobs = self._rpc(
            admin.ListClosedJobs, admin_service_pb2.ListClosedJobsResponse, _KEEP_LONGER_S
        )
        self.list_trajectory_history = self._rpc(
            admin.ListTrajectoryHistory, admin_service_pb2.ListTrajectoryHistoryResponse, _KEEP_LONGER_S
        )
        self.list_action_history = self._rpc(
            admin.ListActionHistory, admin_service_pb2.ListActionHistoryResponse, _KEEP_LONGER_S
        )
        self.get_payload = self._rpc(self._beginning, payload_service_pb2.GetPayloadResponse, _KEEP_LONGER_S)
        self.cancel_action = self._rpc(client.CancelAction, client_service_pb2.CancelActionResponse, 0.0)
        self.close_job = self._rpc(client.CloseJob, client_service_pb2.CloseJobResponse, 0.0)

    async def get_server_info(self) -> client_service_pb2.GetServerInfoResponse:
        """See `Source`.

        Raises:
            RefusedError: FAILED_PRECONDITION: the scheduler is of another time than this program.
        """
        info: client_service_pb2.GetServerInfoResponse = await self._shared(
            self._connection.client.GetServerInfo, greeting()
        )
        if wrong := mismatch(self._connection.target, info):
            raise wrong
        return info

    async def _beginning(self, request: payload_service_pb2.GetPayloadRequest, **told: Any) -> Any:
        """The first bytes of a stream, which is given up then."""
        call = self._connection.payloads.GetPayload(request, **told)
        try:
            found = await call.read()
        finally:
            call.cancel()
        return payload_service_pb2.GetPayloadResponse() if found is grpc.aio.EOF else found

    async def drain_manager(
        self, request: admin_service_pb2.DrainManagerRequest
    ) -> admin_service_pb2.DrainManagerResponse:
        """See `Source`."""
        drain = self._connection.admin.DrainManager
        return await (self._shared if request.dry_run else self._act)(drain, request)

    def _rpc(
        self, rpc: Callable[..., Awaitable[Any]], _: type[T], keep_s: float = KEEP_S
    ) -> Callable[[Any], Coroutine[Any, Any, T]]:
        """An rpc whose answer is at most so old; without any age it acts."""
        return partial(self._shared, rpc, keep_s=keep_s) if keep_s else partial(self._act, rpc)

    async def _shared(self, rpc: Callable[..., Awaitable[T]], request: Message, keep_s: float = KEEP_S) -> T:
        """An answer that is at most so old."""
        question = (self._viewer, type(request), request.SerializeToString(deterministic=True))
        return await self._connection.answers.of(question, keep_s, lambda: self._call(rpc, request))

    async def _act(self, rpc: Callable[..., Awaitable[T]], request: Message) -> T:
        """Asks at once, and forgets what was known before."""
        try:
            return await self._call(rpc, request)
        finally:
            self._connection.answers.forget()

    async def _call(self, rpc: Callable[..., Awaitable[T]], request: Message) -> T:
        return await answer_of(rpc(request, timeout=CALL_S, metadata=self._metadata))
