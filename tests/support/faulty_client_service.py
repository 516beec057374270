"""The scheduler's side of the client contract in memory, with faults on demand.

It keeps the contract's promises (idempotent items, one outcome per action, results before outcomes) and breaks what a
client must survive: streams, delays, repetition, refusals. It schedules nothing: an action ends when `decide` says how.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from callsheet.client import ClientOptions
from callsheet.v1 import (
    action_pb2,
    admin_service_pb2,
    admin_service_pb2_grpc,
    client_service_pb2,
    client_service_pb2_grpc,
    common_pb2,
    outcome_pb2,
    payload_service_pb2,
    payload_service_pb2_grpc,
)
from callsheet.v1.google_rpc import status_pb2

Key = tuple[str, str]
FAST = ClientOptions(backoff_initial_s=0.01, backoff_max_s=0.05, give_up_after_s=30.0)
"""For clients of such a service: its faults are over at once."""
Status = Any  # google.rpc.Status, whichever module declares it


def refusal(code: grpc.StatusCode, *, field: str, value: str, rule: str, retry_delay_s: int | None = None) -> Status:
    """Returns a google.rpc.Status with one ErrorDetail."""
    detail = common_pb2.ErrorDetail(field=field, value=value, rule=rule)
    if retry_delay_s is not None:
        detail.retry_delay.seconds = retry_delay_s
    status: Status = status_pb2.Status(code=code.value[0], message=f"{field}: {rule}")
    status.details.add().Pack(detail)
    return status


def succeed(spec: action_pb2.ActionSpec) -> outcome_pb2.Outcome:
    """Returns the outcome that an action has by default: a success whose result echoes something of it."""
    outcome = outcome_pb2.Outcome(attempts=1, manager_id="in-memory")
    kind = spec.WhichOneof("payload")
    if kind == "generate":
        outcome.succeeded.generate.token_ids.extend(reversed(spec.generate.prompt_token_ids))
    elif kind == "env_reset":
        outcome.succeeded.env_reset.sandbox_id = f"sandbox of {spec.trajectory_id}"
    elif kind == "env_step":
        outcome.succeeded.env_step.stdout.inline = spec.env_step.command.shell.encode()
    elif kind == "tool_call":
        outcome.succeeded.tool_call.response.CopyFrom(spec.tool_call.arguments)
    else:
        outcome.succeeded.reward.score = 1.0
    return outcome


def never(spec: action_pb2.ActionSpec) -> outcome_pb2.Outcome | None:
    """For `decide`: no action ends by itself."""
    return None


class FaultyClientService:
    """State, scripts and faults of the service.

    Attributes:
        items: Every item that arrived, in order, repeated ones included.
        batches: Items of each request that arrived.
        streams: How many sessions were opened.
        actions: Accepted actions.
        jobs: Open jobs.
        trajectories: Open trajectories.
        started: How often each action began: once, whatever is repeated.
        decide: Makes the outcome of an action; None leaves it open until `end_action`.
        refuse: Makes the refusal of an item; None accepts it.
        break_after_items: Ends the stream before the item of this number (counted from 1 over all streams) is handled.
        break_before_results: Ends the stream after the item of this number is handled, before its result is sent.
        repeat_outcomes: Sends each outcome twice.
        answering: While cleared, nothing is sent.
        reading: While cleared, nothing is read.
        storing: While cleared, uploads wait at their end.
        payloads: Stored payloads by SHA-256.
        puts: SHA-256 of each upload, in order.
    """

    def __init__(self) -> None:
        self.items: list[client_service_pb2.ClientItem] = []
        self.batches: list[int] = []
        self.streams = 0
        self.actions: dict[Key, action_pb2.ActionSpec] = {}
        self.jobs: dict[str, Any] = {}
        self.trajectories: dict[Key, Any] = {}
        self.closed: dict[Key, int] = {}
        self.versions: list[tuple[str, int]] = []
        self.started: Counter[Key] = Counter()
        self.outcomes: dict[Key, outcome_pb2.Outcome] = {}
        self.decide: Callable[[action_pb2.ActionSpec], outcome_pb2.Outcome | None] = succeed
        self.refuse: Callable[[client_service_pb2.ClientItem], Status | None] = lambda item: None
        self.break_after_items: set[int] = set()
        self.break_before_results: set[int] = set()
        self.break_code = grpc.StatusCode.UNAVAILABLE
        self.repeat_outcomes = False
        self.answering = asyncio.Event()
        self.answering.set()
        self.reading = asyncio.Event()
        self.reading.set()
        self.storing = asyncio.Event()
        self.storing.set()
        self.payloads: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.changed = asyncio.Condition()
        self._sessions: list[_Session] = []

    def kinds(self) -> list[str | None]:
        """What each received item was, in their order."""
        return [item.WhichOneof("item") for item in self.items]

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Returns once a condition on this service holds."""
        async with self.changed:
            await self.changed.wait_for(condition)

    async def end_action(self, key: Key, outcome: outcome_pb2.Outcome | None = None) -> None:
        """Ends an open action and tells every session attached to it."""
        self._end(key, outcome or succeed(self.actions[key]))
        await self._notify()

    async def break_streams(self) -> None:
        """Ends all streams that are open."""
        for session in self._sessions:
            session.broken.set()
        await self._notify()

    async def serve_session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """One ClientSession."""
        self.streams += 1
        session = _Session()
        self._sessions.append(session)
        reader = asyncio.create_task(self._read(requests, session))
        try:
            while True:
                await session.something.wait()
                await self.answering.wait()
                if session.broken.is_set():
                    await context.abort(self.break_code, "broken on purpose")
                session.something.clear()
                if response := session.take(twice=self.repeat_outcomes):
                    yield response
        finally:
            reader.cancel()
            self._sessions.remove(session)

    async def _read(self, requests: AsyncIterator[Any], session: _Session) -> None:
        async for request in requests:
            await self.reading.wait()
            self.batches.append(len(request.items))
            for item in request.items:
                self.items.append(item)
                number = len(self.items)
                if number in self.break_after_items:
                    session.broken.set()
                    break
                self._handle(item, session)
                if number in self.break_before_results:
                    session.broken.set()
                    break
            session.something.set()
            await self._notify()
            if session.broken.is_set():
                return

    def _handle(self, item: client_service_pb2.ClientItem, session: _Session) -> None:
        status = self.refuse(item) or self._apply(item, session)
        if status is None:
            session.accepted.append(item.sequence)
        else:
            session.results.append(client_service_pb2.ItemResult(sequence=item.sequence, status=status))

    def _apply(self, item: client_service_pb2.ClientItem, session: _Session) -> Status | None:
        which = item.WhichOneof("item")
        if which == "submit":
            return self._submit(item.submit, session)
        if which == "cancel":
            return self._cancel(item.cancel)
        if which == "open_job":
            return _put_once(self.jobs, item.open_job.job_id, item.open_job)
        if which == "open_trajectory":
            spec = item.open_trajectory
            return _put_once(self.trajectories, (spec.job_id, spec.trajectory_id), spec)
        if which == "close_trajectory":
            return self._close_trajectory(item.close_trajectory)
        if which == "close_job":
            return None if self.jobs.pop(item.close_job, None) is not None else _not_found("job_id", item.close_job)
        request = item.publish_policy_version
        return self._publish(request.job_id, request.version)

    def _submit(self, spec: action_pb2.ActionSpec, session: _Session) -> Status | None:
        key = (spec.job_id, spec.action_id)
        for reference in _references(spec):
            if reference not in self.payloads:
                return refusal(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    field="env_reset.files[0].content.reference",
                    value=reference,
                    rule="a payload is put before it is used",
                )
        if refused := _put_once(self.actions, key, spec):
            return refused
        session.attached.add(key)
        if key not in self.started:
            self.started[key] += 1
            if (outcome := self.decide(spec)) is not None:
                self._end(key, outcome)
        elif key in self.outcomes:
            session.outcomes.append(self.outcomes[key])
        return None

    def _cancel(self, request: client_service_pb2.CancelActionRequest) -> Status | None:
        key = (request.key.job_id, request.key.action_id)
        if key not in self.actions:
            return _not_found("action_id", key[1])
        if key not in self.outcomes:
            self._end(key, outcome_pb2.Outcome(cancelled=outcome_pb2.Cancelled(reason=request.reason)))
        return None

    def _close_trajectory(self, request: client_service_pb2.CloseTrajectoryRequest) -> Status | None:
        key = (request.job_id, request.trajectory_id)
        if self.trajectories.pop(key, None) is None:
            return _not_found("trajectory_id", request.trajectory_id)
        self.closed[key] = request.end
        return None

    def _publish(self, job_id: str, version: int) -> Status | None:
        if self.versions and version < self.versions[-1][1]:
            return refusal(
                grpc.StatusCode.FAILED_PRECONDITION, field="version", value=str(version), rule="never goes back"
            )
        self.versions.append((job_id, version))
        return None

    def _end(self, key: Key, outcome: outcome_pb2.Outcome) -> None:
        outcome.key.job_id, outcome.key.action_id = key
        self.outcomes[key] = outcome
        for session in self._sessions:
            if key in session.attached:
                session.outcomes.append(outcome)
                session.something.set()

    async def _notify(self) -> None:
        for session in self._sessions:
            session.something.set()
        async with self.changed:
            self.changed.notify_all()


class _Session:
    """What one stream still has to send."""

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.results: list[client_service_pb2.ItemResult] = []
        self.outcomes: list[outcome_pb2.Outcome] = []
        self.attached: set[Key] = set()
        self.something = asyncio.Event()
        self.broken = asyncio.Event()

    def take(self, *, twice: bool) -> client_service_pb2.ClientSessionResponse | None:
        if not (self.accepted or self.results or self.outcomes):
            return None
        response = client_service_pb2.ClientSessionResponse(
            accepted=self.accepted, results=self.results, outcomes=self.outcomes * (2 if twice else 1)
        )
        self.accepted, self.results, self.outcomes = [], [], []
        return response


def _put_once(known: dict[Any, Any], key: Any, body: Any) -> Status | None:
    if known.setdefault(key, body) == body:
        return None
    return refusal(grpc.StatusCode.ALREADY_EXISTS, field="id", value=str(key), rule="the id has another body")


def _not_found(field: str, value: str) -> Status:
    return refusal(grpc.StatusCode.NOT_FOUND, field=field, value=value, rule="there is none")


def _references(spec: action_pb2.ActionSpec) -> list[str]:
    blobs = [file.content for file in spec.env_reset.files] + [spec.tool_call.arguments]
    return [blob.reference.sha256 for blob in blobs if blob.HasField("reference")]


class _ClientServicer(client_service_pb2_grpc.ClientServiceServicer):
    def __init__(self, service: FaultyClientService) -> None:
        self._service = service

    async def ClientSession(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        async for response in self._service.serve_session(request_iterator, context):
            yield response

    async def GetOutcome(self, request: Any, context: Any) -> Any:  # noqa: N802
        key = (request.key.job_id, request.key.action_id)
        if key not in self._service.actions:
            await abort(context, _not_found("key.action_id", key[1]))
        return client_service_pb2.GetOutcomeResponse(outcome=self._service.outcomes.get(key))


class _PayloadServicer(payload_service_pb2_grpc.PayloadServiceServicer):
    def __init__(self, service: FaultyClientService) -> None:
        self._service = service

    async def PutPayload(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        content = b"".join([request.chunk async for request in request_iterator])
        await self._service.storing.wait()
        sha256 = hashlib.sha256(content).hexdigest()
        self._service.puts.append(sha256)
        self._service.payloads[sha256] = content
        reference = common_pb2.PayloadReference(sha256=sha256, size=len(content))
        return payload_service_pb2.PutPayloadResponse(reference=reference)

    async def GetPayload(self, request: Any, context: Any) -> Any:  # noqa: N802
        content = self._service.payloads.get(request.reference.sha256)
        if content is None:
            await abort(context, _not_found("reference", request.reference.sha256))
            return
        for start in range(0, len(content), 1 << 20):
            yield payload_service_pb2.GetPayloadResponse(chunk=content[start : start + (1 << 20)])


async def abort(context: Any, status: Status) -> None:
    """Ends a unary call with a refusal, the way gRPC carries a google.rpc.Status."""
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    await context.abort(code, status.message)


@asynccontextmanager
async def serving(
    service: FaultyClientService,
    *,
    port: int = 0,
    admin: admin_service_pb2_grpc.AdminServiceServicer | None = None,
) -> AsyncIterator[str]:
    """Serves on a loopback port and yields "127.0.0.1:port"."""
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 1 << 23)))
    # Its other rpcs answer UNIMPLEMENTED; the stubs declare them abstract.
    client_servicer: Any = _ClientServicer
    client_service_pb2_grpc.add_ClientServiceServicer_to_server(client_servicer(service), server)
    payload_service_pb2_grpc.add_PayloadServiceServicer_to_server(_PayloadServicer(service), server)
    if admin is not None:
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(admin, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{bound}"
    finally:
        await server.stop(grace=None)


__all__ = ["FAST", "FaultyClientService", "abort", "admin_service_pb2", "never", "refusal", "serving", "succeed"]
