"""Carries out what clients ask for by one session with the scheduler."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from callsheet.client.actions import Submission
from callsheet.client.backend import Handle
from callsheet.client.encode import (
    content_bytes,
    encode_job,
    encode_submission,
    encode_trajectory,
    encode_trajectory_end,
)
from callsheet.client.errors import AlreadyExistsError, FailedPreconditionError
from callsheet.client.fields import put
from callsheet.client.jobs import JobDescription, TrajectoryDescription, TrajectoryEnd
from callsheet.client.live_output import LiveOutput
from callsheet.client.outcomes import Outcome, OutputChunk
from callsheet.client.payloads import read_outcome
from callsheet.client.session import Session
from callsheet.client.settings import ClientOptions
from callsheet.client.ticket import Ticket
from callsheet.v1 import action_pb2, client_service_pb2, common_pb2, outcome_pb2
from callsheet.v1.encoded_fields import embedded, tag

T = TypeVar("T")

_SUBMIT = tag(client_service_pb2.ClientItem.SUBMIT_FIELD_NUMBER)
_MAX_REASON = 256
_ENCODE_IN_THREAD_BYTES = 1024 * 1024
_ALREADY_GONE = frozenset({"NOT_FOUND"})
# A version that was published and then overtaken is refused when it is sent again.
_ALREADY_OVERTAKEN = frozenset({"FAILED_PRECONDITION"})


class SchedulerBackend:
    """The `Backend` that talks to a scheduler. Belongs to the loop it was made in."""

    def __init__(self, target: str, options: ClientOptions) -> None:
        self._session = Session(target, options)
        self._id_prefix = uuid.uuid4().hex
        self._ids = 0

    @property
    def is_over(self) -> bool:
        """Whether its session has ended."""
        return self._session.is_over

    async def aclose(self) -> None:
        """Ends the session. See `Session.aclose`."""
        await self._session.aclose()

    def stop(self) -> None:
        """Ends the session without waiting."""
        self._session.stop()

    async def open_job(self, job: JobDescription) -> None:
        """Opens a job."""
        await self._control(client_service_pb2.ClientItem(open_job=encode_job(job)))

    async def close_job(self, job_id: str) -> None:
        """Closes a job."""
        await self._control(client_service_pb2.ClientItem(close_job=job_id), _ALREADY_GONE)
        self._session.payloads.forget_all()

    async def publish_policy_version(self, job_id: str, version: int) -> None:
        """Tells that a job's trainer has a new policy version."""
        request = client_service_pb2.PublishPolicyVersionRequest()
        put(request, "", job_id=job_id, version=version)
        await self._control(client_service_pb2.ClientItem(publish_policy_version=request), _ALREADY_OVERTAKEN)

    async def open_trajectory(self, trajectory: TrajectoryDescription) -> None:
        """Opens a trajectory."""
        await self._control(client_service_pb2.ClientItem(open_trajectory=encode_trajectory(trajectory)))

    async def close_trajectory(self, job_id: str, trajectory_id: str, end: TrajectoryEnd) -> None:
        """Closes a trajectory."""
        await self._control(_close_trajectory(job_id, trajectory_id, end), _ALREADY_GONE)

    def abandon_trajectory(self, job_id: str, trajectory_id: str) -> None:
        """Closes a trajectory as abandoned without waiting for the answer."""
        self._session.put_now(
            _close_trajectory(job_id, trajectory_id, TrajectoryEnd.ABANDONED).SerializeToString(),
            replay_success=_ALREADY_GONE,
        )

    def new_action_id(self) -> str:
        """Returns an id that no other action has."""
        self._ids += 1
        return f"{self._id_prefix}-{self._ids}"

    async def submit(self, submission: Submission[Any]) -> Handle[Any]:
        """Submits an action.

        Returns once it is in the outbox; one that refers to stored payloads once it is accepted, as only the scheduler
        knows whether they are still stored.
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

    async def _submit_with_payloads(self, spec: action_pb2.ActionSpec, uploads: Mapping[str, bytes]) -> Handle[Any]:
        await self._session.payloads.store(uploads)
        handle = await self._enqueue(spec)
        try:
            await handle.accepted()
        except anyio.get_cancelled_exc_class():
            handle.abandon("its caller was cancelled")
            raise
        return handle

    async def _enqueue(self, spec: action_pb2.ActionSpec) -> Handle[Any]:
        key = (spec.job_id, spec.action_id)
        await self._session.room()
        open_submit = self._session.open_submit(key)
        if open_submit is None:
            ticket = self._session.put_now(embedded(_SUBMIT, spec.SerializeToString()), key=key)
            if spec.HasField("env_step") and spec.env_step.stream_output:
                ticket.output = LiveOutput()
            return _SessionHandle(self._session, key, ticket)
        sent = client_service_pb2.ClientSessionRequest.FromString(open_submit.message)
        if sent.items[0].submit != spec:
            raise AlreadyExistsError(
                "ALREADY_EXISTS", field="action_id", value=key[1], rule="an action of this id has another body"
            )
        assert isinstance(open_submit.waiter, Ticket)
        open_submit.waiter.owners += 1
        return _SessionHandle(self._session, key, open_submit.waiter)

    async def _control(self, item: client_service_pb2.ClientItem, replay_success: frozenset[str] = frozenset()) -> None:
        await self._session.room()
        await self._session.put_now(item.SerializeToString(), replay_success=replay_success).end()


class _SessionHandle(Handle[T]):
    """A `Handle` on an item of a session."""

    def __init__(self, session: Session, key: tuple[str, str], ticket: Ticket[outcome_pb2.Outcome]) -> None:
        super().__init__(*key)
        self._session = session
        self._ticket = ticket
        self._outcome: Outcome[T] | None = None

    async def accepted(self) -> None:
        """Returns once the action is durable."""
        await self._ticket.accepted()

    async def outcome(self) -> Outcome[T]:
        """Returns the outcome; results by reference are fetched first."""
        if self._outcome is None:
            message = await self._ticket.end()
            assert message is not None  # the end of a submit is an outcome
            self._outcome = await read_outcome(message, self._session.payloads)
        return self._outcome

    async def output(self) -> AsyncIterator[OutputChunk]:
        """Yields what the action prints while it runs."""
        if self._ticket.output is not None:
            async for chunk in self._ticket.output.chunks():
                yield chunk

    async def cancel(self, reason: str = "") -> None:
        """Asks for a cancel."""
        if not self._ticket.has_ended:
            self._ticket.cancel_requested = True
            await self._put_cancel(reason).end()

    def abandon(self, reason: str) -> None:
        """Cancels the action unless another caller waits for it."""
        self._ticket.owners -= 1
        if self._ticket.owners or self._ticket.has_ended or self._ticket.cancel_requested or self._session.is_over:
            return
        if not self._session.withdraw((self.job_id, self.action_id)):
            self._ticket.cancel_requested = True
            self._put_cancel(reason)

    def _put_cancel(self, reason: str) -> Ticket[outcome_pb2.Outcome]:
        key = common_pb2.ActionKey(job_id=self.job_id, action_id=self.action_id)
        cancel = client_service_pb2.CancelActionRequest(key=key, reason=reason[:_MAX_REASON])
        item = client_service_pb2.ClientItem(cancel=cancel)
        return self._session.put_now(item.SerializeToString(), replay_success=_ALREADY_GONE)


def _close_trajectory(job_id: str, trajectory_id: str, end: TrajectoryEnd) -> client_service_pb2.ClientItem:
    return client_service_pb2.ClientItem(
        close_trajectory=client_service_pb2.CloseTrajectoryRequest(
            job_id=job_id, trajectory_id=trajectory_id, end=encode_trajectory_end(end)
        )
    )


def _names_payload(error: FailedPreconditionError, uploads: Mapping[str, bytes]) -> bool:
    return "reference" in error.field or any(sha256 in error.value for sha256 in uploads)
