"""ManagerService: registration, dispatches out, outcomes in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import anyio
import structlog
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import Token
from callsheet.scheduler.core.words.refusals import RefusedError, invalid
from callsheet.scheduler.service.codec.manager_wire import decode_item, decode_registration, references_of
from callsheet.scheduler.service.codec.refusal_status import Context, abort, first_of
from callsheet.scheduler.service.limits.guard import caller
from callsheet.scheduler.service.limits.unread import UnreadBytes
from callsheet.scheduler.service.loop import CoreLoop
from callsheet.scheduler.service.payloads.claims import PayloadClaims
from callsheet.scheduler.service.sessions import ClientStream, ManagerStream
from callsheet.scheduler.service.turns import LoopTurn
from callsheet.scheduler.store.payloads import PayloadStoreError
from callsheet.v1 import client_service_pb2, common_pb2, manager_service_pb2, manager_service_pb2_grpc
from callsheet.v1.rules.fields import at_least, known

# What commands print while they run, on its way to the client sessions that watch them.
#
# It passes by the core and the journal: it is worth nothing once the outcome is there, which has it all.
MAX_CHUNK = 65_536


def forward_output(state: SchedulerState, manager_id: str, output: manager_service_pb2.AttemptOutput) -> None:
    """Puts a part of an attempt's output into the streams of those who wait for its action.

    What an attempt prints that is not the current one of its action, or not this manager's, is dropped.

    Raises:
        RefusedError: INVALID_ARGUMENT if it breaks the contract.
    """
    _check(output.chunk)
    attempt = state.attempts.get(Token(output.token.epoch, output.token.sequence))
    if attempt is None or attempt.manager_id != manager_id or attempt.action.attempt is not attempt:
        return
    watching = [watcher for watcher in attempt.action.watchers if isinstance(watcher, ClientStream)]
    if not watching:
        return
    told = client_service_pb2.ActionOutput(chunk=output.chunk)
    told.key.job_id, told.key.action_id = attempt.action.key
    for watcher in watching:
        watcher.put_output(told)


def _check(chunk: common_pb2.OutputChunk) -> None:
    known("output.chunk.stream", chunk.stream, common_pb2.OutputStream.values(), required=True)
    at_least("output.chunk.offset", chunk.offset, 0)
    if not 0 < len(chunk.content) <= MAX_CHUNK:
        raise invalid("output.chunk.content", f"{len(chunk.content)} bytes", f"must have 1 to {MAX_CHUNK} bytes")


Requests = AsyncIterator[manager_service_pb2.ManagerSessionRequest]

_log = structlog.get_logger(__name__)


class ManagerServicer(manager_service_pb2_grpc.ManagerServiceServicer):
    """See the contract."""

    def __init__(self, loop: CoreLoop, claims: PayloadClaims, unread: UnreadBytes) -> None:
        self._loop = loop
        self._claims = claims
        self._unread = unread

    # grpc.aio also takes a coroutine that writes; the generated types know generators only.
    async def ManagerSession(  # type: ignore[override]  # noqa: N802
        self, request_iterator: Requests, context: Context
    ) -> None:
        """One session of one manager."""
        requests = aiter(request_iterator)
        session, items = _register(self._loop, await anext(requests, None), self._unread)
        refusal: RefusedError | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.outbox.write_all, context.write)
                await self._read(session, items)
                async for request in requests:
                    await self._loop.wait_for_room()
                    await self._read(session, request.items)
                tasks.cancel_scope.cancel()
        except* RefusedError as group:
            refusal = first_of(group)
        finally:
            self._end(session)
        if refusal is not None:
            await abort(context, refusal)

    def _end(self, session: ManagerStream) -> None:
        """Tells the core that a stream is over, and the log in one line why."""
        refusal = session.outbox.closing
        session.outbox.abandon()
        if refusal is None:
            _log.info("manager_disconnected", manager_id=session.manager_id)
        else:
            _log.warning("manager_refused", manager_id=session.manager_id, reason=str(refusal))
        self._loop.post([events.ManagerDisconnected(session, session.manager_id)])

    async def _read(self, session: ManagerStream, items: Iterable[manager_service_pb2.ManagerItem]) -> None:
        happened: list[events.Event] = []
        turn = LoopTurn()
        try:
            for item in items:
                await turn.next_thing()
                if item.HasField("output"):
                    forward_output(self._loop.state, session.manager_id, item.output)
                    continue
                happened.append(decode_item(session.manager_id, session, item))
                references = references_of(item.ended) if item.HasField("ended") else []
                if references:
                    await self._retain(item.ended, references)
        except RefusedError as refusal:
            session.outbox.close(refusal)
        finally:
            self._loop.post(happened)

    async def _retain(self, ended: manager_service_pb2.AttemptEnded, references: list[str]) -> None:
        """Keeps the stored output of an attempt for its job, before its outcome is committed.

        What the manager did not put is not kept: its job could read what is another's. Nor is anything of a job that is
        not open: nobody would let go of it.
        """
        if ended.key.job_id not in self._loop.state.jobs:
            return
        for sha256 in references:
            try:
                await self._claims.of_result(caller(), ended.key.job_id, sha256)
            except PayloadStoreError as error:
                _log.error(
                    "result_payload_not_kept",
                    job_id=ended.key.job_id,
                    action_id=ended.key.action_id,
                    attempt=ended.attempt,
                    reason=str(error),
                )


def _register(
    loop: CoreLoop, first: manager_service_pb2.ManagerSessionRequest | None, unread: UnreadBytes
) -> tuple[ManagerStream, list[manager_service_pb2.ManagerItem]]:
    if first is None or not first.items or first.items[0].WhichOneof("item") != "registration":
        raise invalid("items[0]", "", "must be the registration")
    registration = first.items[0].registration
    caller().require_manager("registration.manager_id", registration.manager_id)
    session = ManagerStream(registration.manager_id, unread)
    loop.post([decode_registration(session, registration)])
    return session, list(first.items[1:])
