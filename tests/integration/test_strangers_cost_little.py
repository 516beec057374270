"""What peers that are refused, or that hold on to what they are given, take from a scheduler, and write in its log."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from callsheet.credentials.channel import Credentials
from callsheet.deploy import tokens
from callsheet.managers.supervision.processes import ProcessSpec, run_process
from callsheet.scheduler.access.identity import Scope
from callsheet.scheduler.service.limits import guard
from callsheet.scheduler.service.limits.peer_limits import MAX_TRANSFERS
from callsheet.scheduler.service.limits.settings import LimitSettings
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.v1 import action_pb2, client_service_pb2, payload_service_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from tests.support.certificates import Authority
from tests.support.guarded_service import CALL_S, Caller, caller, guarded_scheduler, key, open_job
from tests.support.raw_service import read_error, read_to_end, running_service
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
_ORDER = "\x1b]0;owned\x07"


async def test_strangers_give_no_orders_to_who_watches_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    authority, kept, log = Authority(tmp_path), tmp_path / "tokens.json", tmp_path / "log"
    cert, key = authority.sign("server")
    words = ["scheduler", "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--tokens", str(kept)]
    words += ["--tls-cert", str(cert), "--tls-key", str(key), "--log-format", "console"]
    async with run_process(ProcessSpec("scheduler", "callsheet.cli.main", words, log_path=log)) as process:
        host, _, port = process.facts["address"].rpartition(":")

        def shake_hands() -> None:
            context = ssl.create_default_context(cafile=str(authority.ca))
            context.check_hostname = False
            # The certificate is of no such name, which gRPC tells with the name as it came.
            with socket.create_connection((host, int(port)), CALL_S) as plain:
                context.wrap_socket(plain, server_hostname=f"x{_ORDER}\nforged line").close()

        await anyio.to_thread.run_sync(shake_hands)
        credentials = Credentials(ca_file=str(authority.ca), token=tokens.issue(kept, "read-only", ""))
        async with credentials.open_channel(f"localhost:{port}", ()) as channel:
            reader = Caller(channel, credentials)
            # What is logged now is behind what the handshake left there.
            hello = client_service_pb2.GetServerInfoRequest(client_version=f"hello{_ORDER}\nforged line")
            await reader(reader.client.GetServerInfo, hello)
    written = log.read_text()
    assert "u001b]0;owned" in written
    assert "\x1b" not in written
    assert "\nforged" not in written


async def _never(*first: Any) -> AsyncIterator[Any]:
    """Requests that do not end."""
    for request in first:
        yield request
    await anyio.sleep_forever()


async def test_who_is_refused_is_not_listened_to(tmp_path: Path) -> None:
    async with guarded_scheduler(tmp_path) as guarded, caller(guarded.address) as stranger:
        with capture_logs() as lines:
            for _ in range(20):
                # A unary rpc whose request never comes: to wait for it would keep what has come of it.
                call: Any = stranger.channel.stream_unary("/callsheet.v1.ClientService/OpenJob")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(_never(), timeout=CALL_S)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        refused = [line for line in lines if line["event"] == "call_refused"]
        assert len(refused) == 1
        assert str(refused[0]["peer"]).startswith("ipv4:127.0.0.1:")


async def test_payloads_that_never_end_take_few_files(tmp_path: Path) -> None:
    incoming = tmp_path / "data" / "payloads" / "incoming"
    chunk = payload_service_pb2.PutPayloadRequest(chunk=b"x" * 1000)
    async with guarded_scheduler(tmp_path) as guarded:
        greedy, other = (guarded.issue(Scope.JOB, job_id) for job_id in ("greedy", "other"))
        async with caller(guarded.address, greedy) as holder, caller(guarded.address, other) as job:
            puts = [
                holder.payloads.PutPayload(_never(chunk), metadata=holder.metadata, timeout=CALL_S)
                for _ in range(MAX_TRANSFERS + 20)
            ]
            await until(lambda: len(list(incoming.iterdir())) >= MAX_TRANSFERS, every_s=0.01)
            await holder(holder.client.OpenJob, open_job("greedy"))
            assert len(list(incoming.iterdir())) == MAX_TRANSFERS
            await job(job.payloads.PutPayload, iter([chunk]))
            for put in puts:
                put.cancel()
            await holder(holder.payloads.PutPayload, iter([chunk]))


async def test_who_watches_health_holds_a_call(tmp_path: Path) -> None:
    limits = LimitSettings(max_peer_calls=3)
    async with running_service(SchedulerSettings(tmp_path, listen="127.0.0.1:0", limits=limits)) as service:
        health: Any = health_pb2_grpc.HealthStub(service.channel)
        request = health_pb2.HealthCheckRequest()
        watching = [health.Watch(request, timeout=CALL_S) for _ in range(3)]
        for watch in watching:
            await watch.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Watch(request, timeout=CALL_S).read()
        assert read_error(caught.value).field == "calls"
        assert (await health.Check(request, timeout=CALL_S)).status == health_pb2.HealthCheckResponse.SERVING
        for watch in watching:
            watch.cancel()


@pytest.mark.parametrize("what", ["put", "get", "wait"])
async def test_whatever_lasts_ends_with_its_token(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "RECHECK_S", 0.05)
    with capture_logs() as lines:
        async with (
            guarded_scheduler(tmp_path) as guarded,
            caller(guarded.address, guarded.issue(Scope.JOB, "j")) as job,
        ):
            call = await _lasting_call(job, what)
            # What was sent before it on this connection has passed the guard.
            await job(job.client.ListJobs, client_service_pb2.ListJobsRequest())
            guarded.revoke_all()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await (read_to_end(call) if what == "get" else call)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert [line["event"] for line in lines if line["event"] in {"stream_ended", "call_refused"}] == ["stream_ended"]


async def _lasting_call(job: Caller, what: str) -> Any:
    await job(job.client.OpenJob, open_job("j"))
    how: dict[str, Any] = {"metadata": job.metadata, "timeout": CALL_S}
    chunk = payload_service_pb2.PutPayloadRequest(chunk=bytes(1024 * 1024))
    if what == "put":
        return job.payloads.PutPayload(_never(chunk), **how)
    if what == "wait":
        action = action_pb2.ActionSpec(job_id="j", action_id="a", service="none", unservable=action_pb2.UNSERVABLE_WAIT)
        action.tool_call.method = "m"
        await job(job.client.SubmitAction, client_service_pb2.SubmitActionRequest(action=action))
        request = client_service_pb2.GetOutcomeRequest(key=key("j"))
        request.wait.FromSeconds(int(CALL_S))
        return job.client.GetOutcome(request, **how)
    # More than is on its way to who does not read.
    stored = await job(job.payloads.PutPayload, iter([chunk] * 40))
    call = job.payloads.GetPayload(payload_service_pb2.GetPayloadRequest(reference=stored.reference), **how)
    await call.read()
    return call
