"""One ManagerSession stream, from the dial to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import grpc
import grpc.aio
from callsheet.credentials.channel import explained
from callsheet.managers.cancellation import cancellation_requested
from callsheet.managers.health_file import HealthFile
from callsheet.managers.manager import Manager
from callsheet.managers.reports import Mailbox
from callsheet.managers.settings import ManagerSettings
from callsheet.v1 import manager_service_pb2

if TYPE_CHECKING:
    Call = grpc.aio.StreamStreamCall[bytes, manager_service_pb2.ManagerSessionResponse]


_SERVICE = manager_service_pb2.DESCRIPTOR.services_by_name["ManagerService"]
_METHOD = f"/{_SERVICE.full_name}/{_SERVICE.methods_by_name['ManagerSession'].name}"

# A heartbeat is due "at least" every interval, so it is sent a little sooner.
HEARTBEAT_HASTE = 0.8
SHORTEST_HEARTBEAT_S = 0.01
FAREWELL_S = 1.0


class SessionEndedError(Exception):
    """The stream is over; `code` is the scheduler's status, or None if it is not known."""

    def __init__(self, message: str, code: grpc.StatusCode | None = None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class Session:
    """One stream.

    Attributes:
        channel: To the scheduler.
        manager: Whose session it is.
        settings: Time limits and bounds.
        leave: Once set, what is waiting is sent and the stream is closed.
    """

    channel: grpc.aio.Channel
    manager: Manager
    settings: ManagerSettings
    leave: anyio.Event

    async def run(self) -> None:
        """Serves the stream until `leave` is set.

        Raises:
            SessionEndedError: The stream ended otherwise.
        """
        # Requests go out as the bytes that the mailbox joined.
        open_stream: grpc.aio.StreamStreamMultiCallable[bytes, Any] = self.channel.stream_stream(
            _METHOD, response_deserializer=manager_service_pb2.ManagerSessionResponse.FromString
        )
        call: Call = open_stream(metadata=self.settings.credentials.metadata())
        try:
            registered, *others = await self._register(call)
            mailbox = Mailbox()
            self.manager.connected(registered.registered, mailbox)
            health = HealthFile(self.settings.health_file)
            health.renew()
            try:
                for item in others:
                    self.manager.handle(item)
                await self._serve(call, mailbox, registered.registered, health)
            finally:
                health.remove()
                self.manager.disconnected()
        finally:
            call.cancel()

    async def _register(self, call: Call) -> Sequence[manager_service_pb2.SchedulerItem]:
        """Returns the first batch of the scheduler, which begins with `registered`."""
        item = manager_service_pb2.ManagerItem(registration=self.manager.registration())
        request = manager_service_pb2.ManagerSessionRequest(items=[item])
        writing = asyncio.ensure_future(call.write(request.SerializeToString()))

        def give_up() -> None:
            call.cancel()
            # On a call that is cancelled before it has a connection, grpc.aio would let it wait for ever.
            writing.cancel()

        # Not a cancel scope: see `cancellation_requested`.
        timer = asyncio.get_running_loop().call_later(self.settings.registration_timeout_s, give_up)
        try:
            await _written(writing)
            response = await _read(call)
        finally:
            timer.cancel()
        if response is None or not response.items or not response.items[0].HasField("registered"):
            raise SessionEndedError("the first answer of the scheduler is not `registered`")
        return response.items

    async def _serve(
        self, call: Call, mailbox: Mailbox, registered: manager_service_pb2.Registered, health: HealthFile
    ) -> None:
        interval_s = registered.heartbeat_interval.ToTimedelta().total_seconds()
        errors: list[SessionEndedError] = []
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._receive, call, mailbox)
                tasks.start_soon(_send, call, mailbox)
                tasks.start_soon(self._beat, interval_s, health)
                await self.leave.wait()
                mailbox.finish()
                # Cut short by the error of `_receive` when the scheduler ends the stream in turn.
                await anyio.sleep(FAREWELL_S)
                tasks.cancel_scope.cancel()
        except* SessionEndedError as group:
            errors.extend(error for error in group.exceptions if isinstance(error, SessionEndedError))
        if errors and not self.leave.is_set():
            raise errors[0]

    async def _receive(self, call: Call, mailbox: Mailbox) -> None:
        while True:
            response = await _read(call)
            if response is None:
                raise SessionEndedError("the scheduler closed the stream")
            for item in response.items:
                self.manager.handle(item)
            if len(mailbox) < self.settings.max_outbox_items:
                continue
            try:
                with anyio.fail_after(self.settings.stall_timeout_s):
                    await mailbox.wait_below(self.settings.max_outbox_items)
            except TimeoutError:
                raise SessionEndedError(f"the scheduler read nothing for {self.settings.stall_timeout_s:g} s") from None

    async def _beat(self, interval_s: float, health: HealthFile) -> None:
        while True:
            await anyio.sleep(max(SHORTEST_HEARTBEAT_S, interval_s * HEARTBEAT_HASTE))
            self.manager.heartbeat()
            health.renew()


async def _send(call: Call, mailbox: Mailbox) -> None:
    while (batch := await mailbox.next_batch()) is not None:
        await _written(call.write(batch))
    await call.done_writing()


async def _read(call: Call) -> manager_service_pb2.ManagerSessionResponse | None:
    """Returns the next message, or None at the end of the stream."""
    try:
        response = await call.read()
    except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
        raise _session_error(error) from error
    return response if isinstance(response, manager_service_pb2.ManagerSessionResponse) else None


async def _written(writing: Awaitable[None]) -> None:
    """Waits until a message was written."""
    try:
        await writing
    except asyncio.InvalidStateError as error:
        raise SessionEndedError("the scheduler closed the stream") from error
    except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
        raise _session_error(error) from error


def _session_error(error: grpc.aio.AioRpcError | asyncio.CancelledError) -> SessionEndedError:
    """Returns what an error of a call means. A cancellation that this process asked for is passed on instead."""
    if isinstance(error, grpc.aio.AioRpcError):
        return SessionEndedError(f"{error.code().name}: {explained(error.details() or 'no details')}", error.code())
    if cancellation_requested():
        raise error
    return SessionEndedError("the registration was not answered in time")
