"""The session of one process and loop with the scheduler: one stream of batches, resumed whenever it breaks.

The `Ledger` has the open items, and this module moves them. All items go through one bounded outbox. A writer sends
waiting items as soon as the stream takes them, so a single item leaves at once and a burst leaves in batches. A reader
passes results and outcomes to their waiters, whose tasks decode them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from dataclasses import dataclass
from typing import Any, TypeAlias

import anyio
import grpc
import grpc.aio
from callsheet.client.codec.decode import refusal_of_status
from callsheet.client.codec.handshake import greeting, mismatch, not_understood
from callsheet.client.errors import (
    CallsheetError,
    ClientClosedError,
    ConnectionLostError,
    RefusalCode,
    RefusedError,
    invalid,
)
from callsheet.client.session.channel import (
    NOT_LET_IN,
    PayloadTransfer,
    asked_wait_s,
    error_of_call,
    is_hopeless,
    open_channel,
)
from callsheet.client.session.ledger import ActionKey, HeldJobs, Item, Ledger
from callsheet.client.session.long_waits import tell_long_waits
from callsheet.client.session.ticket import Ticket
from callsheet.client.settings import ClientOptions
from callsheet.credentials.channel import Metadata
from callsheet.timing.backoff import backoff_s
from callsheet.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    client_service_pb2,
    client_service_pb2_grpc,
    common_pb2,
    outcome_pb2,
)
from callsheet.v1.common_values import OUTPUT_STREAM, OutputStream
from callsheet.v1.contract import CONTRACT
from callsheet.wire.encoded_fields import embedded, tag
from google.protobuf.message import Message

logger = logging.getLogger("callsheet.client")

# A scheduler that starts at the same moment is found well within `connect_timeout_s`.
FIRST_CONNECTION_WAIT_S = 0.5

MAX_ITEM_BYTES = 4 * 1024 * 1024 - 4096
"""gRPC servers take 4 MiB by default: one larger item would break the stream again with each resume."""

# How long the scheduler may take to end a stream that its client leaves.
_GOODBYE_S = 1.0
# Seconds between two lines of the log that tell of a scheduler without room.
_TELL_FULL_S = 10.0
# A call needs some time, even if none is left.
_SHORTEST_S = 0.1
_ITEM = tag(client_service_pb2.ClientSessionRequest.ITEMS_FIELD_NUMBER)
_SERVICE = client_service_pb2.DESCRIPTOR.services_by_name["ClientService"]
_METHOD = f"/{_SERVICE.full_name}/{_SERVICE.methods_by_name['ClientSession'].name}"

Reply: TypeAlias = outcome_pb2.Outcome | client_service_pb2.ItemOpened
"""A reply of the scheduler to an item that is more than its acceptance."""


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a stream: its status, and the meaning of it."""

    code: grpc.StatusCode
    error: CallsheetError


class Session:
    """Sends items and settles their tickets. Belongs to the loop it was made in; connects when there is work."""

    def __init__(self, target: str, options: ClientOptions) -> None:
        """Makes the channel, which connects later, and starts the session's task.

        Raises:
            ForkedProcessError: gRPC cannot work in this process.
        """
        self._target = target
        self._options = options
        self._random = random.Random()
        self._ledger: Ledger[Reply] = Ledger()
        self._sequence = 0
        self._work = asyncio.Event()
        self._controls = 0
        self._no_controls = asyncio.Event()
        self._room: deque[asyncio.Future[None]] = deque()
        self._failures = 0
        self._down_since: float | None = None
        self._tell_full_at = -math.inf
        self._leaving = False
        self._streaming = False
        self._greeted = False
        self._contract: int | None = None
        self._presented: Metadata = ()
        self._greetings: list[asyncio.Future[None]] = []
        self.held = HeldJobs()
        self.prices: dict[str, float] = {}
        self._channel = open_channel(target, options)
        self.stub: Any = client_service_pb2_grpc.ClientServiceStub(self._channel)
        self._admin: Any = admin_service_pb2_grpc.AdminServiceStub(self._channel)
        self.payloads = PayloadTransfer(self._channel, options)
        # Not a child of the caller's task group: the session serves every task of its loop and ends with the client.
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"callsheet session with {target}")

    @property
    def is_over(self) -> bool:
        """True once the session's task has ended; then a new session is needed."""
        return self._task.done()

    async def connect(self) -> None:
        """Returns once the scheduler serves this client.

        Raises:
            ConnectionLostError: There was no answer in time.
            FailedPreconditionError: The scheduler or this client is too old for the other.
            ClientClosedError: The session has ended.
        """
        if self.is_over:
            raise ClientClosedError("the client is closed")
        if not self._greeted:
            greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._greetings.append(greeted)
            self._work.set()
            await greeted

    def open_submit(self, key: ActionKey) -> Item[Reply] | None:
        """Returns the open submit of an action."""
        return self._ledger.open_submit(key)

    async def room(self) -> None:
        """Returns once the outbox has room; to be followed by `put_now` without waiting in between.

        Raises:
            ConnectionLostError: There was no connection for too long while the outbox was full.
            ClientClosedError: The session has ended.
        """
        while self._ledger.waiting >= self._options.outbox_items and not self.is_over:
            await self._wait_for_room()

    def put_now(
        self,
        item: bytes,
        *,
        key: ActionKey | None = None,
        replay_success: frozenset[RefusalCode] = frozenset(),
        patience_s: float = math.inf,
    ) -> Ticket[Reply]:
        """Puts an item into the outbox and returns its ticket.

        This does not check the outbox's bound. Without `room` before it, use it only for items that must not wait and
        have another bound: one cancel for each action, one close for each trajectory.

        Args:
            item: The ClientItem without a sequence, encoded.
            key: The action, for a submit.
            replay_success: See `Item`.
            patience_s: Seconds for which it may wait if the scheduler's queue is full; `give_up_after_s` at most.

        Raises:
            InvalidArgumentError: The item is too large for a message.
            ClientClosedError: The session has ended.
        """
        if self.is_over:
            raise ClientClosedError("the client is closed")
        self._sequence += 1
        numbered = client_service_pb2.ClientItem(sequence=self._sequence).SerializeToString() + item
        message = embedded(_ITEM, numbered)
        if len(message) > MAX_ITEM_BYTES:
            raise invalid("item", f"{len(message)} bytes", f"an item has at most {MAX_ITEM_BYTES} bytes")
        ticket: Ticket[Reply] = Ticket(None if key is not None else self._control_ended)
        if key is None:
            self._controls += 1
            self._no_controls.clear()
        patience_s = min(patience_s, self._options.give_up_after_s)
        self._ledger.add(Item(self._sequence, message, ticket, key, replay_success, patience_s=patience_s))
        self._refuse_unknown(self._sequence, message)
        self._work.set()
        return ticket

    def check_understood(self, request: Message) -> None:
        """Raises UnimplementedError, by name, for fields of a unary call that the scheduler does not know."""
        refusal = None if self._contract is None else not_understood(self._target, request, self._contract)
        if refusal is not None:
            raise refusal

    def _refuse_unknown(self, sequence: int, message: bytes) -> None:
        """Refuses an item with fields that the scheduler does not know, before it is sent."""
        if self._contract is not None and self._contract < CONTRACT:
            sent = client_service_pb2.ClientSessionRequest.FromString(message)
            refusal = not_understood(self._target, sent, self._contract)
            if refusal is not None:
                self._ledger.result(sequence, refusal)

    def withdraw(self, key: ActionKey) -> bool:
        """Takes back a submit that was never sent; returns whether it could."""
        item = self._ledger.open_submit(key)
        if item is None or item.times_sent or item.accepted:
            return False
        self._ledger.drop(item)
        self._make_room()
        return True

    async def close(self) -> None:
        """Waits shortly for the answers to cancels and closes, then ends the session.

        Open items end with ClientClosedError; accepted actions continue in the scheduler.
        """
        if self._controls and not self._failures:
            with anyio.move_on_after(self._options.close_timeout_s, shield=True):
                await self._no_controls.wait()
        if self._streaming:
            # The last event of a cancelled call comes when it likes, maybe after the loop was closed. So the scheduler
            # is asked to end the stream.
            self._leaving = True
            self._work.set()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._task], timeout=min(_GOODBYE_S, self._options.close_timeout_s))
        self.stop()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._task], timeout=self._options.close_timeout_s)

    def stop(self) -> None:
        """Ends the session without waiting for anything."""
        self._task.cancel()

    async def _run(self) -> None:
        error: CallsheetError = ClientClosedError("the client was closed")
        try:
            await self._keep_connected()
        except Exception as failure:
            logger.exception("session failed target=%s", self._target)
            error = ConnectionLostError(f"the session failed: {failure!r}")
        finally:
            self._fail_all(error)
            await self._channel.close()

    async def _keep_connected(self) -> None:
        while True:
            await self._until_work()
            if self._contract is not None:
                end = await self._run_stream()
                if self._leaving:
                    return
                # The next one may be another scheduler, a newer one or an older one.
                self._contract = None
                self._ledger.resume()
                await self._recover(end)
            elif (end_or_none := await self._greet()) is not None:
                await self._recover(end_or_none)

    async def _greet(self) -> StreamEnd | None:
        """Asks the scheduler to serve this client; returns the failure if another try may succeed."""
        now = anyio.current_time()
        self._down_since = now if self._down_since is None else self._down_since
        left_s = min(self._down_since + self._patience_s - now, self._options.connect_timeout_s)
        try:
            info = await self.stub.GetServerInfo(greeting(), timeout=max(left_s, _SHORTEST_S), metadata=self._present())
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                return StreamEnd(error.code(), error_of_call(error))
            info = client_service_pb2.GetServerInfoResponse()  # older than this rpc
        problem = mismatch(self._target, info)
        if problem is not None:
            self.held.release_all()
            self._fail_all(problem)
            self._down_since = None
            return None
        if not self._greeted:
            self._connected()
        self._greeted, self._contract, self.prices = True, info.contract, dict(info.prices)
        for item in list(self._ledger):
            self._refuse_unknown(item.sequence, item.message)
        for greeted in self._greetings:
            if not greeted.done():
                greeted.set_result(None)
        self._greetings.clear()
        return None

    def _present(self) -> Metadata:
        """The token as it is now."""
        self._presented = self._options.credentials.metadata()
        return self._presented

    def _has_new_token(self, code: grpc.StatusCode) -> bool:
        """Returns True if the token has changed since the last one was refused."""
        return code is grpc.StatusCode.UNAUTHENTICATED and self._options.credentials.metadata() != self._presented

    async def _until_work(self) -> None:
        while not (self._ledger or self._room or self.held or self._greetings):
            self._failures = 0
            self._down_since = None
            self._work.clear()
            await self._work.wait()

    async def _run_stream(self) -> StreamEnd:
        # Requests go out as the bytes that the ledger joined. gRPC calls made without wait_for_ready fail at once while
        # there is no connection, so the waiting stays here.
        open_stream: Any = self._channel.stream_stream(
            _METHOD, response_deserializer=client_service_pb2.ClientSessionResponse.FromString
        )
        call: Any = open_stream(metadata=self._present())
        self._streaming = True
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._write, call, name="callsheet session writer")
                group.start_soon(tell_long_waits, self._ledger, self._explain)
                end = await self._read(call)
                group.cancel_scope.cancel()
        finally:
            self._streaming = False
            call.cancel()
        return end

    async def _explain(self, key: ActionKey) -> admin_service_pb2.ExplainResponse:
        request = admin_service_pb2.ExplainRequest(key=common_pb2.ActionKey(job_id=key[0], action_id=key[1]))
        metadata, timeout_s = self._options.credentials.metadata(), self._options.call_timeout_s
        found: admin_service_pb2.ExplainResponse = await self._admin.Explain(
            request, timeout=timeout_s, metadata=metadata
        )
        return found

    async def _write(self, call: Any) -> None:
        try:
            requests = self.held.requests(self._sequence)
            self._sequence += sum(len(request.items) for request in requests)
            for request in requests:
                await call.write(request.SerializeToString())
            while True:
                batch = self._ledger.next_batch()
                if batch:
                    self._make_room()
                    await call.write(batch)
                elif self._leaving:
                    await call.done_writing()
                    return
                else:
                    self._work.clear()
                    await self._work.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the stream is over; the reader learns why

    async def _read(self, call: Any) -> StreamEnd:
        answered = False
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                if not answered:
                    answered = True
                    self._connected()
                self._take(response)
            code = await call.code()
            return StreamEnd(code, ConnectionLostError(f"{code.name}: {await call.details()}"))
        except grpc.aio.AioRpcError as error:
            return StreamEnd(error.code(), error_of_call(error))

    def _take(self, response: client_service_pb2.ClientSessionResponse) -> None:
        ledger = self._ledger
        for output in response.output:
            self._take_output(output)
        for sequence in response.accepted:
            if not self.held.answer(sequence, None):
                if (job_id := ledger.job_of(sequence)) is not None:
                    self.held.hold(job_id)
                ledger.result(sequence, None)
        for opened in response.opened:
            ledger.result(opened.sequence, None, opened)
        for result in response.results:
            refusal = refusal_of_status(result.status)
            if not self.held.answer(result.sequence, refusal) and not self._postponed(result.sequence, refusal):
                ledger.result(result.sequence, refusal)
        for outcome in response.outcomes:
            ledger.outcome((outcome.key.job_id, outcome.key.action_id), outcome)

    def _postponed(self, sequence: int, refusal: RefusedError | None) -> bool:
        """Sends an item again at the time that its refusal names; returns whether the item waits for that."""
        wait_s = asked_wait_s(refusal)
        item = None
        if refusal is not None and math.isfinite(wait_s):
            # Many that were refused at once do not come again at once.
            wait_s *= 1.0 + self._random.random() / 2.0
            item = self._ledger.postpone(sequence, refusal, anyio.current_time(), wait_s)
        if item is None:
            return False
        now = anyio.current_time()
        if now >= self._tell_full_at:
            logger.warning("scheduler has no room target=%s retry_in_s=%.3f: %s", self._target, wait_s, refusal)
            self._tell_full_at = now + _TELL_FULL_S
        asyncio.get_running_loop().call_later(wait_s, self._send_again, item)
        return True

    def _send_again(self, item: Item[Reply]) -> None:
        self._ledger.send_again(item)
        self._work.set()

    def stop_trying(self, key: ActionKey) -> bool:
        """Ends a submit, which the scheduler's full queue refused, with the refusal; returns whether there was one."""
        return self._ledger.stop_trying(key)

    def _take_output(self, output: client_service_pb2.ActionOutput) -> None:
        item = self._ledger.open_submit((output.key.job_id, output.key.action_id))
        if item is not None and isinstance(item.waiter, Ticket) and item.waiter.output is not None:
            stream = OUTPUT_STREAM.get(output.chunk.stream, OutputStream.UNSPECIFIED)
            item.waiter.output.put(stream, output.chunk.offset, output.chunk.content)

    def _connected(self) -> None:
        if self._failures:
            logger.info("session resumed target=%s open_items=%d", self._target, len(self._ledger))
        self._failures = 0
        self._down_since = None

    @property
    def _patience_s(self) -> float:
        """Seconds for which the session may be without a connection."""
        return self._options.give_up_after_s if self._greeted else self._options.connect_timeout_s

    async def _recover(self, end: StreamEnd) -> None:
        """Waits before the next try, or gives open work up."""
        now = anyio.current_time()
        self._failures += 1
        self._down_since = now if self._down_since is None else self._down_since
        left_s = self._down_since + self._patience_s - now
        if (is_hopeless(end.code) and not self._has_new_token(end.code)) or left_s <= 0:
            self._give_up(end)
            return
        initial_s, longest_s = self._options.backoff_initial_s, self._options.backoff_max_s
        wait_s = backoff_s(self._failures, initial_s, longest_s, random=self._random.random())
        if not self._greeted:
            wait_s = min(wait_s, FIRST_CONNECTION_WAIT_S)
        if isinstance(end.error, RefusedError):
            wait_s = max(wait_s, end.error.retry_after_s or 0.0)
        wait_s = min(wait_s, left_s)
        logger.log(
            logging.WARNING if self._failures == 1 and self._ledger else logging.DEBUG,
            "session lost target=%s code=%s details=%r open_items=%d retry_in_s=%.3f",
            self._target, end.code.name, str(end.error), len(self._ledger), wait_s,
        )  # fmt: skip
        await anyio.sleep(wait_s)

    def _give_up(self, end: StreamEnd) -> None:
        logger.error("session given up target=%s code=%s open_items=%d", self._target, end.code.name, len(self._ledger))
        if is_hopeless(end.code) or not self._greeted:
            self.held.release_all()  # there is nothing to come back to
        what = f"no connection to {self._target}"
        if not self._greeted and not is_hopeless(end.code):
            what = f"no scheduler answers at {self._target}: is `callsheet up` running?"
        self._fail_all(end.error if end.code in NOT_LET_IN else ConnectionLostError(f"{what} ({end.error})"))
        self._failures = 0
        self._down_since = None

    def _fail_all(self, error: CallsheetError) -> None:
        self._ledger.fail_all(error)
        waiters = [*self._room, *self._greetings]
        self._room.clear()
        self._greetings.clear()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def _control_ended(self) -> None:
        self._controls -= 1
        if not self._controls:
            self._no_controls.set()

    async def _wait_for_room(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._make_room()  # it was woken and cancelled at once: the room goes to the next
            raise

    def _make_room(self) -> None:
        free = self._options.outbox_items - self._ledger.waiting
        while self._room and free > 0:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1
