"""ClientService: the stream of batches and the unary rpcs that do the same one at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import cache
from importlib import metadata
from types import MappingProxyType

import anyio
import structlog
from callsheet.scheduler.access.identity import Scope
from callsheet.scheduler.core.state.buffer import LeasedBatch
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.service.audit import AuditTrail
from callsheet.scheduler.service.codec.buffer_answers import batch_message, list_buffer
from callsheet.scheduler.service.codec.decode_buffer import decode_settlement, decode_take
from callsheet.scheduler.service.codec.listing import list_groups, list_jobs, list_trajectories
from callsheet.scheduler.service.codec.openings import end_of, opening_of
from callsheet.scheduler.service.codec.refusal_status import Context
from callsheet.scheduler.service.codec.requests import (
    UnaryReply,
    decode_key,
    decode_request,
    job_of_references,
    require_job_of,
)
from callsheet.scheduler.service.limits.guard import caller, check_caller, publish_right
from callsheet.scheduler.service.limits.peer_limits import PeerLimits, peer_of
from callsheet.scheduler.service.limits.unread import UnreadBytes
from callsheet.scheduler.service.loop import CoreLoop
from callsheet.scheduler.service.payloads.claims import PayloadClaims
from callsheet.scheduler.service.sessions import ClientStream
from callsheet.scheduler.service.turns import LoopTurn
from callsheet.v1 import client_service_pb2, client_service_pb2_grpc
from callsheet.v1.contract import CONTRACT, OLDEST_CONTRACT
from callsheet.v1.rules.fields import seconds

ANSWER_TIMEOUT = 30.0
MAX_OUTCOME_WAIT = 600.0
# Characters of what a client says of itself.
MAX_LOGGED = 64

_log = structlog.get_logger(__name__)


@cache
def scheduler_version() -> str:
    """The version of the installed distribution; "unknown" where the code runs without one."""
    try:
        return metadata.version("callsheet")
    except metadata.PackageNotFoundError:
        return "unknown"


class ClientServicer(client_service_pb2_grpc.ClientServiceServicer):
    """See the contract."""

    def __init__(
        self,
        loop: CoreLoop,
        claims: PayloadClaims,
        limits: PeerLimits,
        unread: UnreadBytes,
        audit: AuditTrail,
        *,
        prices: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._loop = loop
        self._prices = prices
        self._audit = audit
        self._claims = claims
        self._limits = limits
        self._unread = unread

    # grpc.aio also takes a coroutine that writes; the generated types know generators only.
    async def ClientSession(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[client_service_pb2.ClientSessionRequest], context: Context
    ) -> None:
        """One session of one client."""
        session, peer, address = ClientStream(self._unread, self._loop.tally.refused), peer_of(context), context.peer()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.outbox.write_all, context.write)
                async for request in request_iterator:
                    await self._loop.wait_for_room()
                    await self._read(session, request, address)
                    await self._limits.pace(peer, len(request.items))
                tasks.cancel_scope.cancel()
        finally:
            session.outbox.abandon()
            self._loop.post([events.SessionEnded(session)])

    async def _read(self, session: ClientStream, request: client_service_pb2.ClientSessionRequest, peer: str) -> None:
        happened: list[events.Event] = []
        identity, turn = caller(), LoopTurn()
        try:
            for item in request.items:
                await turn.next_thing()
                reply_to = events.ReplyTo(session, item.sequence, holds=True, told=self._audit.of_item(item, peer))
                try:
                    require_job_of(item, identity)
                    event, references = decode_request(item, reply_to, session, publish_right)
                    if references:
                        claim = await self._claims.of_submit(identity, job_of_references(item), references)
                        session.expect_result(item.sequence, claim)
                except RefusedError as refusal:
                    if reply_to.told is not None:
                        reply_to.told(refusal)
                    session.put_result(item.sequence, refusal)
                else:
                    happened.append(event)
        finally:
            # Also of a session that ends meanwhile: who has claimed payloads must be answered.
            self._loop.post(happened)

    async def _ask(self, item: client_service_pb2.ClientItem, context: Context) -> UnaryReply:
        identity, reply = caller(), UnaryReply()
        told = self._audit.of_item(item, context.peer())
        try:
            require_job_of(item, identity)
            event, references = decode_request(item, events.ReplyTo(reply, 0, told=told), None, publish_right)
            if references:
                reply.claim = await self._claims.of_submit(identity, job_of_references(item), references)
        except RefusedError as refusal:
            if told is not None:
                told(refusal)
            raise
        try:
            await self._loop.wait_for_room()
        except BaseException:
            if reply.claim is not None:
                reply.claim.settle(accepted=False)
            raise
        self._loop.post([event])
        await reply.result(ANSWER_TIMEOUT)
        return reply

    async def OpenJob(  # noqa: N802
        self, request: client_service_pb2.OpenJobRequest, context: Context
    ) -> client_service_pb2.OpenJobResponse:
        """Opens a job."""
        reply = await self._ask(client_service_pb2.ClientItem(open_job=request.job), context)
        return client_service_pb2.OpenJobResponse(opening=opening_of(reply.opened))

    async def CloseJob(  # noqa: N802
        self, request: client_service_pb2.CloseJobRequest, context: Context
    ) -> client_service_pb2.CloseJobResponse:
        """Closes a job."""
        await self._ask(client_service_pb2.ClientItem(close_job=request.job_id), context)
        return client_service_pb2.CloseJobResponse()

    async def OpenTrajectory(  # noqa: N802
        self, request: client_service_pb2.OpenTrajectoryRequest, context: Context
    ) -> client_service_pb2.OpenTrajectoryResponse:
        """Opens a trajectory."""
        reply = await self._ask(client_service_pb2.ClientItem(open_trajectory=request.trajectory), context)
        return client_service_pb2.OpenTrajectoryResponse(opening=opening_of(reply.opened), end=end_of(reply.opened))

    async def CloseTrajectory(  # noqa: N802
        self, request: client_service_pb2.CloseTrajectoryRequest, context: Context
    ) -> client_service_pb2.CloseTrajectoryResponse:
        """Closes a trajectory."""
        await self._ask(client_service_pb2.ClientItem(close_trajectory=request), context)
        return client_service_pb2.CloseTrajectoryResponse()

    async def SubmitAction(  # noqa: N802
        self, request: client_service_pb2.SubmitActionRequest, context: Context
    ) -> client_service_pb2.SubmitActionResponse:
        """Submits one action."""
        await self._ask(client_service_pb2.ClientItem(submit=request.action), context)
        return client_service_pb2.SubmitActionResponse()

    async def CancelAction(  # noqa: N802
        self, request: client_service_pb2.CancelActionRequest, context: Context
    ) -> client_service_pb2.CancelActionResponse:
        """Cancels an action."""
        await self._ask(client_service_pb2.ClientItem(cancel=request), context)
        return client_service_pb2.CancelActionResponse()

    async def PublishPolicyVersion(  # noqa: N802
        self, request: client_service_pb2.PublishPolicyVersionRequest, context: Context
    ) -> client_service_pb2.PublishPolicyVersionResponse:
        """Publishes a policy version."""
        await self._ask(client_service_pb2.ClientItem(publish_policy_version=request), context)
        return client_service_pb2.PublishPolicyVersionResponse()

    async def GetOutcome(  # noqa: N802
        self, request: client_service_pb2.GetOutcomeRequest, context: Context
    ) -> client_service_pb2.GetOutcomeResponse:
        """The outcome of an action, waiting for it if asked."""
        reply = UnaryReply()
        response = client_service_pb2.GetOutcomeResponse()
        try:
            caller().require_job("key.job_id", request.key.job_id)
            wait = min(seconds("wait", request.wait), MAX_OUTCOME_WAIT)
            await self._loop.wait_for_room()
            self._loop.post([events.OutcomeRequested(events.ReplyTo(reply, 0), decode_key(request.key), reply)])
            await reply.result(ANSWER_TIMEOUT)
            # A stored outcome takes a read of the journal even for those who do not wait.
            outcome = await reply.outcome(max(wait, 1.0 if self._loop.has_outcome(request.key) else 0.0))
        finally:
            reply.gone = True
        check_caller()
        if outcome is not None:
            response.outcome.CopyFrom(outcome)
        return response

    async def CancelWork(  # noqa: N802
        self, request: client_service_pb2.CancelWorkRequest, context: Context
    ) -> client_service_pb2.CancelWorkResponse:
        """Gives up unfinished work."""
        await self._ask(client_service_pb2.ClientItem(cancel_work=request), context)
        return client_service_pb2.CancelWorkResponse()

    async def GetServerInfo(  # noqa: N802
        self, request: client_service_pb2.GetServerInfoRequest, context: Context
    ) -> client_service_pb2.GetServerInfoResponse:
        """Describes this scheduler and the clients that it serves."""
        _log.info("client_greeted", version=request.client_version[:MAX_LOGGED])
        identity = caller()
        if request.token_id:
            identity.require(frozenset({Scope.GATEWAY}), "GetServerInfo with token_id")
            check_caller(request.token_id)
        return client_service_pb2.GetServerInfoResponse(
            version=scheduler_version(),
            contract=CONTRACT,
            oldest_contract=OLDEST_CONTRACT,
            epoch=self._loop.state.epoch,
            caller_scope=identity.scope.value if identity.token_id else "",
            caller_subject=identity.subject,
            prices=self._prices,
        )

    async def ListJobs(  # noqa: N802
        self, request: client_service_pb2.ListJobsRequest, context: Context
    ) -> client_service_pb2.ListJobsResponse:
        """Open jobs."""
        if request.job_id:
            caller().require_job("job_id", request.job_id)
        async with self._limits.question(peer_of(context)), self._limits.one_answer:
            return await list_jobs(self._loop.state, request, self._loop.clock.now(), caller().sees_job)

    async def ListTrajectories(  # noqa: N802
        self, request: client_service_pb2.ListTrajectoriesRequest, context: Context
    ) -> client_service_pb2.ListTrajectoriesResponse:
        """Trajectories of an open job."""
        caller().require_job("job_id", request.job_id)
        async with self._limits.question(peer_of(context)), self._limits.one_answer:
            return await list_trajectories(self._loop.state, request, self._loop.clock.now())

    async def ListGroups(  # noqa: N802
        self, request: client_service_pb2.ListGroupsRequest, context: Context
    ) -> client_service_pb2.ListGroupsResponse:
        """Groups of an open job."""
        caller().require_job("job_id", request.job_id)
        async with self._limits.question(peer_of(context)), self._limits.one_answer:
            return await list_groups(self._loop.state, request, self._loop.clock.now())

    async def TakeBatch(  # noqa: N802
        self, request: client_service_pb2.TakeBatchRequest, context: Context
    ) -> client_service_pb2.TakeBatchResponse:
        """Takes a batch of finished trajectories, waiting for one if asked."""
        reply = UnaryReply()
        response = client_service_pb2.TakeBatchResponse()
        try:
            caller().require_job("job_id", request.job_id)
            wait = min(seconds("wait", request.wait), MAX_OUTCOME_WAIT)
            await self._loop.wait_for_room()
            self._loop.post([decode_take(request, events.ReplyTo(reply, 0), reply)])
            await reply.result(ANSWER_TIMEOUT)
            # What was given at once has been told by now: with the acceptance, after the same commit.
            with anyio.move_on_after(wait):
                await reply.batch_given.wait()
            if (leased := self._leased_to(request, reply)) is not None:
                # Whose time is up as the lease is being committed gets the batch still.
                with anyio.move_on_after(ANSWER_TIMEOUT):
                    await reply.batch_given.wait()
            check_caller()
            if leased is not None and reply.batch_given.is_set() and leased is self._leased_to(request, reply):
                job = self._loop.state.jobs[request.job_id]
                async with self._limits.one_answer:
                    response.batch.CopyFrom(await batch_message(job, leased, self._loop.clock.now()))
        finally:
            reply.gone = True
            if not response.HasField("batch"):
                self._loop.post([events.BatchMissed(request.job_id, request.batch_id, reply)])
        return response

    def _leased_to(self, request: client_service_pb2.TakeBatchRequest, reply: UnaryReply) -> LeasedBatch | None:
        job = self._loop.state.jobs.get(request.job_id)
        batch = job.buffer.batches.get(request.batch_id) if job is not None else None
        return batch if batch is not None and batch.taker is reply else None

    async def SettleBatch(  # noqa: N802
        self, request: client_service_pb2.SettleBatchRequest, context: Context
    ) -> client_service_pb2.SettleBatchResponse:
        """Acknowledges a batch, gives it back or extends its lease."""
        caller().require_job("job_id", request.job_id)
        reply = UnaryReply()
        await self._loop.wait_for_room()
        self._loop.post([decode_settlement(request, events.ReplyTo(reply, 0))])
        await reply.result(ANSWER_TIMEOUT)
        return client_service_pb2.SettleBatchResponse()

    async def ListBuffer(  # noqa: N802
        self, request: client_service_pb2.ListBufferRequest, context: Context
    ) -> client_service_pb2.ListBufferResponse:
        """Lists the trajectories in a job's buffer."""
        caller().require_job("job_id", request.job_id)
        async with self._limits.question(peer_of(context)), self._limits.one_answer:
            return await list_buffer(self._loop.state, request, self._loop.clock.now())
