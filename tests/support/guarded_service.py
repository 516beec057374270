"""A scheduler that asks for tokens, and what callers with one token or none say to it."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from callsheet.credentials.channel import Credentials
from callsheet.scheduler.access.identity import Scope
from callsheet.scheduler.access.settings import AccessSettings
from callsheet.scheduler.access.token_file import TokenFile
from callsheet.scheduler.access.tokens import ID_BYTES, SECRET_BYTES, issue_token, revoked
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.v1 import (
    action_pb2,
    admin_service_pb2_grpc,
    client_service_pb2,
    client_service_pb2_grpc,
    common_pb2,
    job_pb2,
    manager_service_pb2,
    manager_service_pb2_grpc,
    payload_service_pb2_grpc,
)
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from tests.support.raw_service import NODE, read_error, running_service

CALL_S = 20.0


class Guarded:
    """A scheduler that asks for tokens, and calls to it."""

    def __init__(self, address: str, tokens: TokenFile) -> None:
        self.address = address
        self.tokens = tokens

    def issue(self, scope: Scope, subject: str = "", lifetime_s: float | None = None) -> str:
        """Makes a token."""
        chance = secrets.token_bytes(ID_BYTES + SECRET_BYTES)
        token, record = issue_token(scope, subject, random=chance, now=time.time(), lifetime_s=lifetime_s)
        self.tokens.change(lambda records: records.update({record.token_id: record}))
        return token

    def revoke(self, token: str) -> None:
        """Ends a token."""
        token_id = token.split("_")[1]
        self.tokens.change(lambda records: records.update({token_id: revoked(records[token_id], time.time())}))

    def is_over(self, token: str) -> bool:
        """Whether a token has expired."""
        expires_at = self.tokens.records()[token.split("_")[1]].expires_at
        return expires_at is not None and time.time() >= expires_at

    def revoke_all(self) -> None:
        """Ends all tokens."""
        self.tokens.change(lambda records: records.clear())


@asynccontextmanager
async def guarded_scheduler(directory: Path) -> AsyncIterator[Guarded]:
    """Runs a scheduler with a file of tokens, both in a directory."""
    tokens = TokenFile(directory / "tokens.json")
    settings = SchedulerSettings(directory / "data", listen="127.0.0.1:0", access=AccessSettings(tokens=tokens.path))
    async with running_service(settings) as service:
        yield Guarded(service.address, tokens)


class Caller:
    """All stubs on one channel, with one token."""

    def __init__(self, channel: grpc.aio.Channel, credentials: Credentials) -> None:
        self.channel = channel
        self.metadata = credentials.metadata()
        self.client: Any = client_service_pb2_grpc.ClientServiceStub(channel)
        self.admin: Any = admin_service_pb2_grpc.AdminServiceStub(channel)
        self.manager: Any = manager_service_pb2_grpc.ManagerServiceStub(channel)
        self.payloads: Any = payload_service_pb2_grpc.PayloadServiceStub(channel)
        self.reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        self.health: Any = health_pb2_grpc.HealthStub(channel)

    async def __call__(self, rpc: Callable[..., Any], request: Any) -> Any:
        """The answer of a unary rpc."""
        return await rpc(request, metadata=self.metadata, timeout=CALL_S)

    async def refused(self, rpc: Callable[..., Any], request: Any) -> tuple[grpc.StatusCode, str]:
        """Code and field of the refusal of a unary rpc."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self(rpc, request)
        found = read_error(caught.value)
        return found.code, found.field

    async def first_answer(self, rpc: Callable[..., Any], request: Any, lasts_s: float = CALL_S) -> Any:
        """The call of a stream, and what comes back for one message."""
        call = rpc(metadata=self.metadata, timeout=lasts_s)
        await call.write(request)
        return call, await call.read()


@asynccontextmanager
async def caller(address: str, token: str | None = None, **files: Any) -> AsyncIterator[Caller]:
    """Opens a channel."""
    credentials = Credentials(token=token, **files)
    async with credentials.open_channel(address, ()) as channel:
        yield Caller(channel, credentials)


def open_job(job_id: str) -> client_service_pb2.OpenJobRequest:
    """Opens a job."""
    return client_service_pb2.OpenJobRequest(job=job_pb2.JobSpec(job_id=job_id))


def registration(manager_id: str) -> manager_service_pb2.ManagerSessionRequest:
    """Registers a manager of tool calls."""
    service = manager_service_pb2.HostedService(name="n", kinds=[action_pb2.ACTION_KIND_TOOL_CALL])
    message = manager_service_pb2.Registration(manager_id=manager_id, incarnation="i", node=NODE, services=[service])
    return manager_service_pb2.ManagerSessionRequest(items=[manager_service_pb2.ManagerItem(registration=message)])


def key(job_id: str) -> common_pb2.ActionKey:
    """An action "a"."""
    return common_pb2.ActionKey(job_id=job_id, action_id="a")
