"""The real service in this process, and what a tool without our client library says to it."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import grpc
import grpc.aio
from callsheet.credentials.channel import Credentials
from callsheet.managers.noop import NoopExecutor, NoopSettings
from callsheet.managers.runtime import run_manager
from callsheet.managers.settings import ManagerSettings
from callsheet.scheduler.service.server import serve
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.v1 import (
    admin_service_pb2_grpc,
    client_service_pb2,
    client_service_pb2_grpc,
    common_pb2,
    manager_service_pb2,
    manager_service_pb2_grpc,
    outcome_pb2,
    payload_service_pb2_grpc,
)
from callsheet.v1.google_rpc import status_pb2

from tests.support.expected import present

ANSWER_S = 60.0
NODE = manager_service_pb2.NodeSpec(
    node_id="node", capacity={"memory": 1024}, numa_nodes=[manager_service_pb2.NumaNode(cores=[0, 1])]
)
# Which unary rpc does the same as an item of the stream, and with which request.
_UNARY: dict[str, tuple[str, Any]] = {
    "open_job": ("OpenJob", lambda job: client_service_pb2.OpenJobRequest(job=job)),
    "close_job": ("CloseJob", lambda job_id: client_service_pb2.CloseJobRequest(job_id=job_id)),
    "open_trajectory": (
        "OpenTrajectory",
        lambda trajectory: client_service_pb2.OpenTrajectoryRequest(trajectory=trajectory),
    ),
    "close_trajectory": ("CloseTrajectory", lambda request: request),
    "submit": ("SubmitAction", lambda action: client_service_pb2.SubmitActionRequest(action=action)),
    "cancel": ("CancelAction", lambda request: request),
    "publish_policy_version": ("PublishPolicyVersion", lambda request: request),
    "cancel_work": ("CancelWork", lambda request: request),
}


@dataclass(frozen=True)
class Refusal:
    """A refusal with its one typed detail; `retry_after_s` is 0 if trying again cannot help."""

    code: grpc.StatusCode
    field: str
    value: str
    rule: str
    retry_after_s: float


def read_status(status: status_pb2.Status) -> Refusal:
    """Reads a google.rpc.Status, which must carry one ErrorDetail."""
    detail = common_pb2.ErrorDetail()
    (packed,) = status.details
    assert packed.Unpack(detail), packed.type_url
    code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
    for word in (detail.field, detail.rule):
        assert word in status.message
    return Refusal(code, detail.field, detail.value, detail.rule, detail.retry_delay.ToTimedelta().total_seconds())


def read_error(error: grpc.aio.AioRpcError) -> Refusal:
    """Reads the status details in the trailer of a failed call; they must agree with its code and message."""
    trailer: Any = error.trailing_metadata()
    (serialized,) = [value for key, value in trailer if key == "grpc-status-details-bin"]
    status = status_pb2.Status.FromString(serialized)
    refusal = read_status(status)
    assert error.code() is refusal.code
    assert error.details() == status.message
    return refusal


class RawService:
    """A scheduler's address with stubs of all its services."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self.channel = channel
        self.client: Any = client_service_pb2_grpc.ClientServiceStub(channel)
        self.admin: Any = admin_service_pb2_grpc.AdminServiceStub(channel)
        self.payloads: Any = payload_service_pb2_grpc.PayloadServiceStub(channel)
        self.managers: Any = manager_service_pb2_grpc.ManagerServiceStub(channel)

    async def ask(self, item: client_service_pb2.ClientItem) -> Refusal | None:
        """Sends an item by its unary rpc; returns the refusal if it is refused."""
        name = present(item.WhichOneof("item"))
        rpc, request = _UNARY[name]
        return await refusal_of(getattr(self.client, rpc)(request(getattr(item, name)), timeout=ANSWER_S))

    async def stream(self, *items: client_service_pb2.ClientItem) -> list[Refusal | None]:
        """Sends items on a stream in one batch; returns what became of each."""
        async with self.session() as session:
            return await session.send(*items)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[RawSession]:
        """Opens a client session."""
        call = self.client.ClientSession(timeout=ANSWER_S)
        try:
            yield RawSession(call)
        finally:
            call.cancel()

    async def outcome(self, job_id: str, action_id: str, wait_s: float = ANSWER_S) -> outcome_pb2.Outcome:
        """Waits for an outcome."""
        request = client_service_pb2.GetOutcomeRequest(key=common_pb2.ActionKey(job_id=job_id, action_id=action_id))
        request.wait.FromMilliseconds(int(wait_s * 1000))
        response = await self.client.GetOutcome(request, timeout=ANSWER_S + wait_s)
        assert response.HasField("outcome"), f"{action_id} has no outcome after {wait_s:g} s"
        outcome: outcome_pb2.Outcome = response.outcome
        return outcome


class RawSession:
    """One client stream."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._sequence = 0
        self._results: dict[int, Refusal | None] = {}
        self.outcomes: list[outcome_pb2.Outcome] = []
        self.opened: dict[int, client_service_pb2.ItemOpened] = {}

    async def send(self, *items: client_service_pb2.ClientItem) -> list[Refusal | None]:
        """Sends items in one batch and returns what became of each."""
        first = self._sequence + 1
        for item in items:
            self._sequence += 1
            item.sequence = self._sequence
        await self._call.write(client_service_pb2.ClientSessionRequest(items=items))
        wanted = range(first, self._sequence + 1)
        while not self._results.keys() >= set(wanted):
            await self._read()
        return [self._results[sequence] for sequence in wanted]

    def cancel(self) -> None:
        """Ends the stream."""
        self._call.cancel()

    async def next_outcome(self) -> outcome_pb2.Outcome:
        """Returns the next outcome that arrives."""
        while not self.outcomes:
            await self._read()
        return self.outcomes.pop(0)

    async def _read(self) -> None:
        response = await self._call.read()
        assert response is not grpc.aio.EOF, f"the stream ended: {await self._call.details()}"
        self._results.update(dict.fromkeys(response.accepted))
        self._results.update(dict.fromkeys(found.sequence for found in response.opened))
        self.opened.update({found.sequence: found for found in response.opened})
        self._results.update({result.sequence: read_status(result.status) for result in response.results})
        self.outcomes.extend(response.outcomes)


async def read_to_end(call: Any) -> None:
    """Reads a stream to its end, and drops what comes."""
    while await call.read() is not grpc.aio.EOF:
        pass


async def refusal_of(call: Any) -> Refusal | None:
    """Awaits a unary call; returns its refusal, or None if it succeeds."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return read_error(error)
    return None


@asynccontextmanager
async def running_service(settings: SchedulerSettings) -> AsyncIterator[RawService]:
    """Runs a scheduler for the length of the block."""
    async with anyio.create_task_group() as tasks:
        address = await tasks.start(functools.partial(serve, settings))
        async with grpc.aio.insecure_channel(str(address)) as channel:
            yield RawService(str(address), channel)
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def running_noop(
    address: str,
    noop: NoopSettings | None = None,
    manager_id: str = "m",
    node: manager_service_pb2.NodeSpec = NODE,
    *,
    credentials: Credentials | None = None,
) -> AsyncIterator[None]:
    """Runs a registered no-op manager in this process for the length of the block; it drains at the end."""
    settings = ManagerSettings(
        address,
        manager_id,
        node,
        handle_signals=False,
        reconnect_initial_s=0.02,
        reconnect_max_s=0.1,
        credentials=credentials or Credentials(),
    )
    stop = anyio.Event()
    run = functools.partial(run_manager, settings, NoopExecutor(noop or NoopSettings()), stop=stop)
    async with anyio.create_task_group() as tasks:
        await tasks.start(run)
        try:
            yield
        finally:
            stop.set()
