"""Carries out the requests of clients by one session with the scheduler; and the handles of actions."""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from callsheet.client.backend import ActionHandle, CancelTarget, Opened
from callsheet.client.codec.actions import content_bytes, encode_submission
from callsheet.client.codec.fields import BlobReader, duration, numbers, put
from callsheet.client.codec.jobs import (
    encode_batch_request,
    encode_job,
    encode_publish,
    encode_result,
    encode_trajectory,
    encode_trajectory_end,
)
from callsheet.client.errors import (
    AlreadyExistsError,
    CallsheetError,
    FailedPreconditionError,
    NotFoundError,
    RefusalCode,
)
from callsheet.client.session.channel import answer_of, keep_trying, read_outcome
from callsheet.client.session.session import Reply, Session
from callsheet.client.session.ticket import LiveOutput, Ticket
from callsheet.client.settings import ClientOptions
from callsheet.client.step_summary import StepTallies, ended_by_message
from callsheet.client.words.actions import Submission
from callsheet.client.words.arguments import instance
from callsheet.client.words.jobs import BatchRequest
from callsheet.client.words.outcomes import Outcome
from callsheet.client.words.results import OutputChunk
from callsheet.client.words.weights import PublishedWeights
from callsheet.v1 import action_pb2, client_service_pb2, common_pb2, outcome_pb2
from callsheet.v1.action_values import ActionKind
from callsheet.v1.buffer_values import BatchContent, FinishedResult
from callsheet.v1.client_service_values import SETTLEMENT, Settlement
from callsheet.v1.job_values import (
    OPENING,
    TRAJECTORY_END,
    GroupStatus,
    JobDescription,
    JobStatus,
    Opening,
    TrajectoryDescription,
    TrajectoryEnd,
    TrajectoryStatus,
)
from callsheet.wire.encoded_fields import embedded, tag

_SUBMIT = tag(client_service_pb2.ClientItem.SUBMIT_FIELD_NUMBER)
_ENCODE_IN_THREAD_BYTES = 1024 * 1024
_PAGE = 1000
# A longer wait for a batch asks again, so that a connection that is gone is noticed.
_LONGEST_ASK_S = 20.0
_SETTLEMENT = numbers(SETTLEMENT)
_ALREADY_GONE = frozenset({RefusalCode.NOT_FOUND})
# A version that was published and then overtaken is refused when it is sent again.
_ALREADY_OVERTAKEN = frozenset({RefusalCode.FAILED_PRECONDITION})
T = TypeVar("T")
_MAX_REASON = 256


class SchedulerBackend:
    """The `Backend` that talks to a scheduler. Belongs to the loop it was made in."""

    def __init__(self, target: str, options: ClientOptions, steps: StepTallies | None = None) -> None:
        self._steps = steps or StepTallies()
        self._session = Session(target, options)
        self._options = options
        self._id_prefix = uuid.uuid4().hex
        self._ids = 0

    @property
    def is_over(self) -> bool:
        """True once the session has ended."""
        return self._session.is_over

    async def connect(self) -> None:
        """Makes the connection now. See `Session.connect`."""
        await self._session.connect()

    async def close(self) -> None:
        """Ends the session. See `Session.close`."""
        await self._session.close()

    def stop(self) -> None:
        """Ends the session without waiting."""
        self._session.stop()

    async def open_job(self, job: JobDescription) -> Opening:
        """Opens a job."""
        reply = await self._control(job.job_id, client_service_pb2.ClientItem(open_job=encode_job(job)))
        return _opened(reply).opening

    async def close_job(self, job_id: str) -> None:
        """Closes a job."""
        held = self._session.held
        held.release(job_id)  # a stream that resumes meanwhile would find it closed
        await self._control(job_id, client_service_pb2.ClientItem(close_job=job_id), _ALREADY_GONE)
        held.release(job_id)
        self._session.payloads.forget_all()

    async def publish(self, job_id: str, version: int, weights: PublishedWeights | None) -> None:
        """Publishes a new policy version of a job's trainer, and the place of its weights if there are any."""
        request, uploads = await anyio.to_thread.run_sync(encode_publish, job_id, version, weights)
        item = client_service_pb2.ClientItem(publish_policy_version=request)
        await self._control_with_payloads(job_id, item, _ALREADY_OVERTAKEN, uploads)

    async def _control_with_payloads(
        self,
        job_id: str,
        item: client_service_pb2.ClientItem,
        replay_success: frozenset[RefusalCode],
        uploads: Mapping[str, bytes],
    ) -> None:
        if uploads:
            await self._session.connect()
            await self._session.payloads.store(uploads)
        try:
            await self._control(job_id, item, replay_success)
        except FailedPreconditionError as error:
            if not _names_payload(error, uploads):
                raise
            # It was stored once, and is not any more.
            self._session.payloads.forget(uploads)
            await self._session.payloads.store(uploads)
            await self._control(job_id, item, replay_success)

    async def open_trajectory(self, trajectory: TrajectoryDescription, *, close_if_cancelled: bool = True) -> Opened:
        """Opens a trajectory."""
        item = client_service_pb2.ClientItem(open_trajectory=encode_trajectory(trajectory))
        on_late = partial(self._close_if_new, trajectory) if close_if_cancelled else None
        return _opened(await self._control(trajectory.job_id, item, on_late=on_late))

    def _close_if_new(self, trajectory: TrajectoryDescription, reply: Reply | None) -> None:
        """Closes a trajectory that a cancelled caller has opened; one that others had opened stays open."""
        if _opened(reply).opening is Opening.CREATED and not self._session.is_over:
            close = _close_trajectory(trajectory.job_id, trajectory.trajectory_id, TrajectoryEnd.ABANDONED)
            self._session.put_now(close.SerializeToString(), replay_success=_ALREADY_GONE)

    async def close_trajectory(self, job_id: str, trajectory_id: str, end: TrajectoryEnd, reason: str = "") -> None:
        """Closes a trajectory."""
        item = _close_trajectory(job_id, trajectory_id, end)
        put(item.close_trajectory, "", reason=shortened(instance("reason", reason, str, "text")))
        await self._control(job_id, item, _ALREADY_GONE)

    async def finish_trajectory(self, job_id: str, trajectory_id: str, result: FinishedResult) -> None:
        """Closes a trajectory as completed, with its reward and its payload."""
        message, uploads = encode_result(result)
        item = _close_trajectory(job_id, trajectory_id, TrajectoryEnd.COMPLETED)
        item.close_trajectory.result.CopyFrom(message)
        await self._control_with_payloads(job_id, item, _ALREADY_GONE, uploads)

    async def take_batch(self, job_id: str, request: BatchRequest) -> BatchContent:
        """Takes a batch; a caller that is cancelled, or cannot read the batch, gives it back."""
        message = encode_batch_request(job_id, request)
        try:
            return await self._take(message, request.wait_s)
        except (CallsheetError, anyio.get_cancelled_exc_class()):
            with anyio.move_on_after(self._options.close_timeout_s, shield=True), suppress(CallsheetError):
                await self.settle_batch(job_id, request.batch_id, Settlement.GIVE_BACK)
            raise

    async def _take(self, request: client_service_pb2.TakeBatchRequest, wait_s: float) -> BatchContent:
        ends = anyio.current_time() + wait_s
        while True:
            left = max(ends - anyio.current_time(), 0.0)
            asked_s = min(left, _LONGEST_ASK_S)
            request.wait.CopyFrom(duration("wait_s", asked_s))
            response = await self._ask(self._session.stub.TakeBatch, request, asked_s)
            if response.HasField("batch"):
                blobs = BlobReader({})
                content = BatchContent.from_message(response.batch, blobs.read)
                if blobs.missing:
                    fetched = await self._session.payloads.fetch(blobs.missing)
                    content = BatchContent.from_message(response.batch, BlobReader(fetched).read)
                return content
            if left <= asked_s:
                return BatchContent(request.batch_id)

    async def settle_batch(self, job_id: str, batch_id: str, settlement: Settlement) -> None:
        """Acknowledges a batch, gives it back or extends its lease."""
        request = client_service_pb2.SettleBatchRequest(settlement=_SETTLEMENT[settlement])
        put(request, "", job_id=job_id, batch_id=batch_id)
        await self._ask(self._session.stub.SettleBatch, request)

    async def cancel_work(self, work: CancelTarget) -> None:
        """Cancels unfinished work."""
        request = client_service_pb2.CancelWorkRequest(reason=shortened(instance("reason", work.reason, str, "text")))
        put(request, "", job_id=work.job_id, group_id=work.group_id, trajectory_id=work.trajectory_id)
        await self._control(work.job_id, client_service_pb2.ClientItem(cancel_work=request), _ALREADY_GONE)

    async def jobs(self, job_id: str) -> list[JobStatus]:
        """Open jobs; with an id only that one."""
        request = client_service_pb2.ListJobsRequest(job_id=job_id)
        response = await self._ask(self._session.stub.ListJobs, request)
        return [JobStatus.from_message(status) for status in response.jobs]

    async def trajectories(
        self, job_id: str, *, trajectory_id: str = "", group_id: str = "", closed: bool = False
    ) -> list[TrajectoryStatus]:
        """Trajectories of an open job, all pages."""
        request = client_service_pb2.ListTrajectoriesRequest(page_size=_PAGE)
        put(request, "", job_id=job_id, trajectory_id=trajectory_id, group_id=group_id, closed=closed)
        found: list[TrajectoryStatus] = []
        while True:
            response = await self._ask(self._session.stub.ListTrajectories, request)
            found += map(TrajectoryStatus.from_message, response.trajectories)
            if not (response.more and response.trajectories):
                return found
            request.after = found[-1].trajectory_id

    async def groups(self, job_id: str, group_id: str = "") -> list[GroupStatus]:
        """Groups of an open job, all pages."""
        request = client_service_pb2.ListGroupsRequest(page_size=_PAGE)
        put(request, "", job_id=job_id, group_id=group_id)
        found: list[GroupStatus] = []
        while True:
            response = await self._ask(self._session.stub.ListGroups, request)
            found += map(GroupStatus.from_message, response.groups)
            if not (response.more and response.groups):
                return found
            request.after = found[-1].group_id

    def new_action_id(self) -> str:
        """Returns an id that no other action has."""
        self._ids += 1
        return f"{self._id_prefix}-{self._ids}"

    async def submit(self, submission: Submission[Any]) -> ActionHandle[Any]:
        """Submits an action.

        Returns once the action is in the outbox. An action with stored payloads must be accepted first, because only
        the scheduler knows if they are still stored.
        """
        if content_bytes(submission.action) > _ENCODE_IN_THREAD_BYTES:
            spec, uploads = await anyio.to_thread.run_sync(encode_submission, submission)
        else:
            spec, uploads = encode_submission(submission)
        if not uploads:
            return await self._enqueue(spec)
        try:
            return await self._submit_with_payloads(spec, uploads)
        except FailedPreconditionError as error:
            if not _names_payload(error, uploads):
                raise
        self._session.payloads.forget(uploads)
        return await self._submit_with_payloads(spec, uploads)

    async def _submit_with_payloads(
        self, spec: action_pb2.ActionSpec, uploads: Mapping[str, bytes]
    ) -> ActionHandle[Any]:
        await self._session.connect()  # a first connection fails sooner than an upload would
        await self._session.payloads.store(uploads)
        handle = await self._enqueue(spec)
        try:
            await handle.accepted()
        except anyio.get_cancelled_exc_class():
            handle.abandon("its caller was cancelled")
            raise
        return handle

    async def _enqueue(self, spec: action_pb2.ActionSpec) -> ActionHandle[Any]:
        key = (spec.job_id, spec.action_id)
        await self._session.room()
        open_submit = self._session.open_submit(key)
        if open_submit is None:
            item = embedded(_SUBMIT, spec.SerializeToString())
            ticket = self._session.put_now(item, key=key, patience_s=_patience_s(spec.timeouts))
            ticket.on_end = partial(self._count, spec.job_id, ActionKind(spec.WhichOneof("payload")), ticket)
            if spec.HasField("env_step") and spec.env_step.stream_output:
                ticket.output = LiveOutput()
            return SessionHandle(self._session, key, ticket)
        sent = client_service_pb2.ClientSessionRequest.FromString(open_submit.message).items[0].submit
        sent.traceparent = spec.traceparent  # from whichever span: it is no part of the body
        if sent != spec:
            raise AlreadyExistsError(
                RefusalCode.ALREADY_EXISTS,
                field="action_id",
                value=key[1],
                rule="an action of this id has another body",
            )
        assert isinstance(open_submit.waiter, Ticket)
        open_submit.waiter.owners += 1
        return SessionHandle(self._session, key, open_submit.waiter)

    def _count(self, job_id: str, kind: ActionKind, ticket: Ticket[Reply]) -> None:
        """Counts an action whose outcome has arrived, with or without a waiter."""
        if isinstance(ticket.value, outcome_pb2.Outcome):
            self._steps.prices = self._session.prices
            self._steps.ended(job_id, ended_by_message(kind, ticket.value))

    async def _control(
        self,
        job_id: str,
        item: client_service_pb2.ClientItem,
        replay_success: frozenset[RefusalCode] = frozenset(),
        on_late: Callable[[Reply | None], None] | None = None,
    ) -> Reply | None:
        await self._session.room()
        ticket = self._session.put_now(item.SerializeToString(), replay_success=replay_success)
        try:
            reply = await ticket.end()
        except anyio.get_cancelled_exc_class():
            if on_late is not None:
                _once_answered(ticket, on_late)
            raise
        except NotFoundError as error:
            if error.field == "job_id":
                self._session.held.release(job_id)
            raise
        self._session.held.hold(job_id)
        return reply

    async def _ask(self, rpc: Callable[..., Any], request: Any, wait_s: float = 0.0) -> Any:
        await self._session.connect()
        self._session.check_understood(request)

        async def call() -> Any:
            timeout_s = self._options.call_timeout_s + wait_s
            return await answer_of(rpc(request, timeout=timeout_s, metadata=self._options.credentials.metadata()))

        return await keep_trying(call, self._options)


def _once_answered(ticket: Ticket[Reply], take: Callable[[Reply | None], None]) -> None:
    """Runs a callback with the answer to an item without a waiter; an error is no answer."""

    def ended() -> None:
        if not isinstance(ticket.value, CallsheetError):
            take(ticket.value)
        # Last, so that a client that closes waits for what was put just now, too.
        if first is not None:
            first()

    first = None
    if ticket.has_ended:
        ended()
    else:
        first, ticket.on_end = ticket.on_end, ended


def _patience_s(timeouts: action_pb2.Timeouts) -> float:
    """Seconds for which a submit may wait for a full queue: accepted at once, it would have expired then."""
    set_ones = [each for each in ("schedule_to_start", "schedule_to_close") if timeouts.HasField(each)]
    return min((getattr(timeouts, each).ToTimedelta().total_seconds() for each in set_ones), default=math.inf)


def _opened(reply: Reply | None) -> Opened:
    if isinstance(reply, client_service_pb2.ItemOpened):
        return Opened(OPENING.get(reply.opening, Opening.CREATED), TRAJECTORY_END.get(reply.end), reply.life)
    return Opened(Opening.CREATED)


def _close_trajectory(job_id: str, trajectory_id: str, end: TrajectoryEnd) -> client_service_pb2.ClientItem:
    return client_service_pb2.ClientItem(
        close_trajectory=client_service_pb2.CloseTrajectoryRequest(
            job_id=job_id, trajectory_id=trajectory_id, end=encode_trajectory_end(end)
        )
    )


def _names_payload(error: FailedPreconditionError, uploads: Mapping[str, bytes]) -> bool:
    return "reference" in error.field or any(sha256 in error.value for sha256 in uploads)


class SessionHandle(ActionHandle[T]):
    """An `ActionHandle` on an item of a session."""

    def __init__(self, session: Session, key: tuple[str, str], ticket: Ticket[Reply]) -> None:
        super().__init__(*key)
        self._session = session
        self._ticket = ticket
        self._outcome: Outcome[T] | None = None

    @property
    def done(self) -> bool:
        """True once the outcome (or the refusal) has arrived."""
        return self._ticket.has_ended

    async def accepted(self) -> None:
        """Returns once the action is durable."""
        await self._ticket.accepted()

    async def outcome(self) -> Outcome[T]:
        """Returns the outcome; results by reference are fetched first."""
        if self._outcome is None:
            message = await self._ticket.end()
            assert isinstance(message, outcome_pb2.Outcome)  # the end of a submit is an outcome
            self._outcome = await read_outcome(message, self._session.payloads)
        return self._outcome

    async def output(self) -> AsyncIterator[OutputChunk]:
        """Yields what the action prints while it runs."""
        if self._ticket.output is not None:
            async for chunk in self._ticket.output.chunks():
                yield chunk

    async def cancel(self, reason: str = "") -> None:
        """Asks for a cancel."""
        said = shortened(instance("reason", reason, str, "text"))
        if not self._ticket.has_ended and not self._session.stop_trying((self.job_id, self.action_id)):
            self._ticket.cancel_requested = True
            await self._put_cancel(said).end()

    def abandon(self, reason: str) -> None:
        """Cancels the action unless another caller waits for it."""
        self._ticket.owners -= 1
        if self._ticket.owners or self._ticket.has_ended or self._ticket.cancel_requested or self._session.is_over:
            return
        if not self._session.withdraw((self.job_id, self.action_id)):
            self._ticket.cancel_requested = True
            self._put_cancel(shortened(reason))

    def _put_cancel(self, reason: str) -> Ticket[Reply]:
        key = common_pb2.ActionKey(job_id=self.job_id, action_id=self.action_id)
        cancel = client_service_pb2.CancelActionRequest(key=key, reason=reason)
        item = client_service_pb2.ClientItem(cancel=cancel)
        return self._session.put_now(item.SerializeToString(), replay_success=_ALREADY_GONE)


def shortened(reason: str) -> str:
    """Returns a reason as the contract takes it."""
    return reason[:_MAX_REASON].replace("\0", "").encode(errors="replace").decode()
