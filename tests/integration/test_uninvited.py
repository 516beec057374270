"""Who is not invited gets nothing: callers of all sorts, each with every rpc, at schedulers of their own processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from callsheet.credentials.channel import Credentials
from callsheet.deploy import tokens
from callsheet.managers.supervision.processes import ProcessSpec, run_process
from callsheet.scheduler.access.methods import OPEN_TO_ALL, SCOPES
from callsheet.v1 import action_pb2, admin_service_pb2, client_service_pb2, common_pb2, job_pb2, payload_service_pb2

from tests.support.certificates import Authority
from tests.support.every_rpc import JOB, MANAGER, code_of, open_rpcs, path_of, requests_of, rpcs
from tests.support.guarded_service import Caller, registration
from tests.support.measurements import Measured

pytestmark = pytest.mark.anyio

_DEADLINE_S = 120.0
_LASTS_S = 3600.0
_CODES = grpc.StatusCode
_DENIED, _UNKNOWN, _GONE = _CODES.PERMISSION_DENIED, _CODES.UNAUTHENTICATED, _CODES.UNAVAILABLE
# What those who are let in may ask, since nothing of another comes back.
_OF_JOBS = {"GetServerInfo": _CODES.OK, "PutPayload": _CODES.OK, "GetPayload": _CODES.NOT_FOUND}
_OF_MANAGERS = {**_OF_JOBS, "GetPayload": _CODES.UNAVAILABLE}  # It has not registered.


@dataclass
class Scheduler:
    """A scheduler's process, with a job and a manager of somebody.

    Attributes:
        credentials: How one connects, without a token.
        payload: One that the job put.
    """

    address: str
    tokens: Path
    credentials: Mapping[str, str]
    payload: common_pb2.PayloadReference

    def token(self, scope: str, subject: str = "", lifetime_s: float | None = None) -> str:
        return tokens.issue(self.tokens, scope, subject, lifetime_s)

    @asynccontextmanager
    async def caller(self, token: str | None, **credentials: Any) -> AsyncIterator[Caller]:
        made = Credentials(token=token, **{**self.credentials, **credentials})
        address = self.address if made.ca_file is None else f"localhost:{self.address.rpartition(':')[2]}"
        async with made.open_channel(address, (("grpc.use_local_subchannel_pool", 1),)) as channel:
            yield Caller(channel, made)

    async def state(self) -> str:
        """What there is, as an administrator sees it."""
        async with self.caller(self.token("admin")) as admin:
            status = await admin(admin.admin.GetStatus, admin_service_pb2.GetStatusRequest())
        return f"{status.jobs}{[(each.manager_id, each.connected, each.draining) for each in status.managers]}"


@asynccontextmanager
async def running_scheduler(directory: Path, authority: Authority | None) -> AsyncIterator[Scheduler]:
    kept = directory / "tokens.json"
    words = ["scheduler", "--data-dir", str(directory / "data"), "--listen", "127.0.0.1:0", "--tokens", str(kept)]
    credentials: dict[str, str] = {}
    if authority is not None:
        cert, key = authority.sign("server")
        words += ["--tls-cert", str(cert), "--tls-key", str(key), "--tls-client-ca", str(authority.ca)]
        mine, my_key = authority.sign("caller", "caller.example")
        credentials = {"ca_file": str(authority.ca), "cert_file": str(mine), "key_file": str(my_key)}
    spec = ProcessSpec("scheduler", "callsheet.cli.main", words, ready_timeout_s=_DEADLINE_S)
    async with run_process(spec) as process:
        scheduler = Scheduler(process.facts["address"], kept, credentials, common_pb2.PayloadReference())
        async with scheduler.caller(scheduler.token("job", JOB)) as job:
            await _begin(scheduler, job)
            async with scheduler.caller(scheduler.token("manager", MANAGER)) as manager:
                call, _ = await manager.first_answer(manager.manager.ManagerSession, registration(MANAGER), _LASTS_S)
                yield scheduler
                call.cancel()


async def _begin(scheduler: Scheduler, job: Caller) -> None:
    put = payload_service_pb2.PutPayloadRequest(chunk=b"hidden tests")
    scheduler.payload = (await job(job.payloads.PutPayload, iter([put]))).reference
    spec = job_pb2.JobSpec(job_id=JOB, detached=True)
    await job(job.client.OpenJob, client_service_pb2.OpenJobRequest(job=spec))
    trajectory = job_pb2.TrajectorySpec(job_id=JOB, trajectory_id="t")
    await job(job.client.OpenTrajectory, client_service_pb2.OpenTrajectoryRequest(trajectory=trajectory))
    action = action_pb2.ActionSpec(job_id=JOB, action_id="a", service="none", unservable=action_pb2.UNSERVABLE_WAIT)
    action.tool_call.method = "m"
    await job(job.client.SubmitAction, client_service_pb2.SubmitActionRequest(action=action))


@pytest.fixture(scope="module")
async def scheduler(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scheduler]:
    """One that asks for tokens."""
    async with running_scheduler(tmp_path_factory.mktemp("tokens"), None) as running:
        yield running


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
async def secured(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> AsyncIterator[Scheduler]:
    """One that asks for tokens and certificates."""
    async with running_scheduler(tmp_path_factory.mktemp("secured"), authority) as running:
        yield running


async def got(scheduler: Scheduler, by: Caller, methods: list[Any]) -> dict[str, set[grpc.StatusCode]]:
    """What each rpc answers, by its name."""
    found: dict[str, set[grpc.StatusCode]] = {}
    for method in methods:
        for request in requests_of(method, scheduler.payload):
            code, answer = await code_of(by.channel, method, request, by.metadata)
            assert "hidden tests" not in answer
            found.setdefault(method.name, set()).add(code)
    return found


def told(found: Mapping[str, set[grpc.StatusCode]]) -> str:
    counts = Counter(code.name for codes in found.values() for code in codes)
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def test_every_rpc_has_a_scope() -> None:
    assert {path_of(method) for method in rpcs()} == SCOPES.keys()
    assert {path_of(method) for method in open_rpcs()} >= OPEN_TO_ALL


def revoked(scheduler: Scheduler) -> str:
    token = scheduler.token("admin")
    tokens.revoke(scheduler.tokens, token.split("_")[1])
    return token


def altered(scheduler: Scheduler) -> str:
    token = scheduler.token("admin")
    return token[:-1] + ("0" if token[-1] != "0" else "1")


_STRANGERS = {
    "no token": lambda _: None,
    "a text that is none": lambda _: "nonsense",
    "an invented one": lambda _: "callsheet_000000000000_" + "0" * 64,
    "one altered at its end": altered,
    "an expired one": lambda scheduler: scheduler.token("admin", lifetime_s=1e-6),
    "a revoked one": revoked,
}


@pytest.mark.parametrize("what", _STRANGERS)
async def test_a_stranger_is_told_nothing_but_health(scheduler: Scheduler, what: str, measured: Measured) -> None:
    before = await scheduler.state()
    async with scheduler.caller(_STRANGERS[what](scheduler)) as stranger:
        found = await got(scheduler, stranger, [*rpcs(), *open_rpcs()])
    health = {name: found.pop(name) for name in tuple(found) if name in {"Check", "Watch", "List"}}
    assert set().union(*health.values()) <= {_CODES.OK, _CODES.NOT_FOUND, _CODES.UNIMPLEMENTED}
    assert set().union(*found.values()) == {_UNKNOWN}, found
    assert await scheduler.state() == before
    measured(f"{what}: {told(found)}; health: {told(health)}")


@pytest.mark.parametrize(
    ("scope", "subject", "allowed"),
    [("job", "another", _OF_JOBS), ("job", "victi", _OF_JOBS), ("manager", "rogue", _OF_MANAGERS)],
)
async def test_who_is_somebody_else_gets_nothing_of_the_victim(
    scheduler: Scheduler, scope: str, subject: str, allowed: Mapping[str, grpc.StatusCode], measured: Measured
) -> None:
    before = await scheduler.state()
    async with scheduler.caller(scheduler.token(scope, subject)) as other:
        found = await got(scheduler, other, rpcs())
    assert found == {name: {allowed.get(name, _DENIED)} for name in found}
    assert len(found) == len(rpcs())
    assert await scheduler.state() == before
    measured(f"token of {scope} {subject!r}: {told(found)}")


async def test_who_may_look_changes_nothing_and_reads_no_payload(scheduler: Scheduler, measured: Measured) -> None:
    looks = {"GetServerInfo", "GetStatus", "Explain", "ListActions", "WhatIf", "GetOutcome",
             "ListJobs", "ListTrajectories", "ListGroups", "ListBuffer",
             "ListTrajectoryHistory", "ListActionHistory", "ListClosedJobs"}  # fmt: skip
    before = await scheduler.state()
    async with scheduler.caller(scheduler.token("read-only")) as reader:
        found = await got(scheduler, reader, rpcs())
    assert {name for name, codes in found.items() if codes != {_DENIED}} == looks
    assert await scheduler.state() == before
    measured(f"token of read-only: {told(found)}")


async def test_a_manager_that_is_there_is_not_replaced_by_the_same_token(scheduler: Scheduler) -> None:
    """Even who stole its token takes nothing over while it answers."""
    async with scheduler.caller(scheduler.token("manager", MANAGER)) as thief:
        message = registration(MANAGER)
        message.items[0].registration.incarnation = "thief"
        call = thief.manager.ManagerSession(iter([message]), metadata=thief.metadata, timeout=20.0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(call))
    assert caught.value.code() is _CODES.ALREADY_EXISTS


def _without_tls(_: Authority) -> dict[str, str | None]:
    return {"ca_file": None, "cert_file": None, "key_file": None}


def _without_certificate(_: Authority) -> dict[str, str | None]:
    return {"cert_file": None, "key_file": None}


def _of_other_authority(authority: Authority) -> dict[str, str | None]:
    place = authority.ca.parent / "other"
    place.mkdir(exist_ok=True)
    cert, key = Authority(place).sign("caller")
    return {"cert_file": str(cert), "key_file": str(key)}


@pytest.mark.parametrize("how", [_without_tls, _without_certificate, _of_other_authority])
async def test_no_connection_without_the_right_certificate(
    secured: Scheduler, authority: Authority, how: Any, measured: Measured
) -> None:
    async with secured.caller(secured.token("admin"), **how(authority)) as stranger:
        found = await got(secured, stranger, [*rpcs(), *open_rpcs()])
    assert set().union(*found.values()) == {_GONE}, found
    measured(f"{how.__name__.strip('_').replace('_', ' ')}: {told(found)}")


async def test_a_certificate_is_no_token(secured: Scheduler, measured: Measured) -> None:
    async with secured.caller(None) as stranger:
        found = await got(secured, stranger, rpcs())
    assert set().union(*found.values()) == {_UNKNOWN}, found
    measured(f"certificate without token: {told(found)}")


@pytest.mark.parametrize("scope", ["job", "manager"])
async def test_a_stream_ends_soon_after_its_token(secured: Scheduler, scope: str, measured: Measured) -> None:
    token = secured.token(scope, "revoked")
    async with secured.caller(token) as peer:
        item = client_service_pb2.ClientItem(sequence=1, open_job=job_pb2.JobSpec(job_id="revoked"))
        first: Any
        stream, first = peer.client.ClientSession, client_service_pb2.ClientSessionRequest(items=[item])
        if scope == "manager":
            message = registration("revoked")
            message.items[0].registration.node.node_id = "another-node"
            stream, first = peer.manager.ManagerSession, message
        call, _ = await peer.first_answer(stream, first)
        tokens.revoke(secured.tokens, token.split("_")[1])
        began = time.monotonic()
        with anyio.fail_after(_DEADLINE_S):
            assert await call.code() is _UNKNOWN
        measured(f"the stream of a {scope} ended {time.monotonic() - began:.2f} s after its token was revoked")
