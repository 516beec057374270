"""A scheduler that does what a test says, over a real socket, and a payload store beside it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio
import grpc
import grpc.aio
from callsheet.v1 import (
    common_pb2,
    manager_service_pb2,
    manager_service_pb2_grpc,
    payload_service_pb2,
    payload_service_pb2_grpc,
)

WAIT_S = 60.0


class ScriptedSession:
    """One stream of one manager: what it has said, and the means to answer."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._changed = anyio.Event()
        self._writing = anyio.Lock()
        self.items: list[manager_service_pb2.ManagerItem] = []
        self.batches: list[int] = []
        self.over = anyio.Event()
        self.end_with: grpc.StatusCode | None = None

    @property
    def registration(self) -> manager_service_pb2.Registration:
        """How the manager introduced itself."""
        return self.items[0].registration

    def record(self, items: Sequence[manager_service_pb2.ManagerItem]) -> None:
        """Notes a batch from the manager."""
        self.items.extend(items)
        self.batches.append(len(items))
        self._changed.set()
        self._changed = anyio.Event()

    async def send(self, *items: manager_service_pb2.SchedulerItem) -> None:
        """Sends items as one batch."""
        async with self._writing:
            await self._context.write(manager_service_pb2.ManagerSessionResponse(items=items))

    async def register(
        self, epoch: int = 1, heartbeat_s: float = 5.0, shared_cores: Sequence[int] = (), lease_s: float = 60.0
    ) -> None:
        """Accepts the registration."""
        registered = manager_service_pb2.Registered(epoch=epoch, shared_cores=shared_cores)
        registered.heartbeat_interval.FromMilliseconds(round(heartbeat_s * 1000))
        registered.lease.FromMilliseconds(round(lease_s * 1000))
        await self.send(manager_service_pb2.SchedulerItem(registered=registered))

    async def dispatch(self, *dispatches: manager_service_pb2.Dispatch) -> None:
        """Sends dispatches as one batch."""
        await self.send(*(manager_service_pb2.SchedulerItem(dispatch=dispatch) for dispatch in dispatches))

    async def acknowledge(self, *ends: manager_service_pb2.AttemptEnded) -> None:
        """Acknowledges ends."""
        acknowledged = [
            manager_service_pb2.EndsAcknowledged(epoch=end.token.epoch, sequences=[end.token.sequence]) for end in ends
        ]
        await self.send(*(manager_service_pb2.SchedulerItem(ends_acknowledged=item) for item in acknowledged))

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until something that the manager says makes a condition true."""
        with anyio.fail_after(WAIT_S):
            while not condition():
                await self._changed.wait()

    async def wait_count(self, name: str, count: int) -> list[manager_service_pb2.ManagerItem]:
        """Waits until there are `count` items of a sort, and returns all there are."""
        await self.wait_until(lambda: len(self.of(name)) >= count)
        return self.of(name)

    async def wait_ends(self, count: int = 1) -> list[manager_service_pb2.AttemptEnded]:
        """Waits until `count` ends have come, and returns all that have."""
        return [item.ended for item in await self.wait_count("ended", count)]

    def of(self, name: str) -> list[manager_service_pb2.ManagerItem]:
        """Returns the items of a sort so far."""
        return [item for item in self.items if item.WhichOneof("item") == name]

    def end(self, code: grpc.StatusCode | None = None) -> None:
        """Ends the stream, with a status or well."""
        self.end_with = code
        self.over.set()


class ScriptedScheduler(
    manager_service_pb2_grpc.ManagerServiceServicer, payload_service_pb2_grpc.PayloadServiceServicer
):
    """Listens on a loopback port. `payloads` is its store; `put_failures` that many puts fail as UNAVAILABLE."""

    def __init__(self) -> None:
        self._server: grpc.aio.Server | None = None
        self._sessions, self._arrivals = anyio.create_memory_object_stream[ScriptedSession](64)
        self.port = 0
        self.payloads: dict[str, bytes] = {}
        self.put_failures = 0
        self.max_payload_bytes = 1 << 30

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listens; on the same port as before if it was stopped."""
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 << 20)]
        self._server = grpc.aio.server(options=options)
        manager_service_pb2_grpc.add_ManagerServiceServicer_to_server(self, self._server)
        payload_service_pb2_grpc.add_PayloadServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        """Breaks all streams and stops listening."""
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    async def close(self) -> None:
        """Stops for good."""
        await self.stop()
        self._sessions.close()
        self._arrivals.close()

    async def next_session(self, *, register: bool = True, epoch: int = 1, heartbeat_s: float = 5.0) -> ScriptedSession:
        """Waits for the next manager to introduce itself, and accepts it unless told otherwise."""
        with anyio.fail_after(WAIT_S):
            session = await self._arrivals.receive()
        if register:
            await session.register(epoch, heartbeat_s)
        return session

    async def ManagerSession(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override] # noqa: N802
        """Records what comes until the test or the manager ends the stream."""
        session = ScriptedSession(context)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._record, request_iterator, session)
            await session.over.wait()
            tasks.cancel_scope.cancel()
        if session.end_with is not None:
            await context.abort(session.end_with, "as the test says")

    async def _record(self, request_iterator: Any, session: ScriptedSession) -> None:
        """Notes what a manager says. A stream that is given up before it says anything is nobody's session."""
        async for request in request_iterator:
            session.record(request.items)
            if len(session.batches) == 1:
                self._sessions.send_nowait(session)
        session.over.set()

    async def PutPayload(  # noqa: N802
        self, request_iterator: Any, context: Any
    ) -> payload_service_pb2.PutPayloadResponse:
        """Stores bytes."""
        content = bytearray()
        async for request in request_iterator:
            content += request.chunk
        if self.put_failures > 0:
            self.put_failures -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "as the test says")
        if len(content) > self.max_payload_bytes:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too large")
        return payload_service_pb2.PutPayloadResponse(reference=self.store(bytes(content)))

    async def GetPayload(  # noqa: N802
        self, request: payload_service_pb2.GetPayloadRequest, context: Any
    ) -> AsyncIterator[payload_service_pb2.GetPayloadResponse]:
        """Reads bytes."""
        content = self.payloads.get(request.reference.sha256)
        if content is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "not stored")
        for begin in range(0, len(content or b""), 1 << 20):
            yield payload_service_pb2.GetPayloadResponse(chunk=(content or b"")[begin : begin + (1 << 20)])

    def store(self, content: bytes) -> common_pb2.PayloadReference:
        """Puts bytes into the store."""
        digest = hashlib.sha256(content).hexdigest()
        self.payloads[digest] = content
        return common_pb2.PayloadReference(sha256=digest, size=len(content))
