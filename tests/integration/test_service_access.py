"""Who reaches the port without the right token gets nothing; over TLS nobody else listens."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from callsheet.scheduler.access.identity import Scope
from callsheet.scheduler.access.settings import AccessSettings
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.v1 import (
    action_pb2,
    admin_service_pb2,
    client_service_pb2,
    job_pb2,
    payload_service_pb2,
)
from google.protobuf import message_factory
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tests.support.certificates import Authority
from tests.support.guarded_service import CALL_S, Guarded, caller, guarded_scheduler, key, open_job, registration
from tests.support.raw_service import read_to_end, running_service

pytestmark = pytest.mark.anyio
_DEADLINE_S = 60.0


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    async with guarded_scheduler(tmp_path) as guarded:
        yield guarded


async def test_a_peer_without_a_token_gets_nothing_but_health(guarded: Guarded) -> None:
    for token in (None, "callsheet_000000000000_00", "nonsense"):
        async with caller(guarded.address, token) as peer:
            for rpc, request in (
                (peer.client.OpenJob, open_job("j")),
                (peer.client.GetOutcome, client_service_pb2.GetOutcomeRequest(key=key("j"))),
                (peer.client.GetServerInfo, client_service_pb2.GetServerInfoRequest()),
                (peer.admin.GetStatus, admin_service_pb2.GetStatusRequest()),
                (peer.admin.DrainManager, admin_service_pb2.DrainManagerRequest(manager_id="m")),
            ):
                assert await peer.refused(rpc, request) == (grpc.StatusCode.UNAUTHENTICATED, "authorization")
            for stream in (peer.client.ClientSession, peer.manager.ManagerSession):
                # Nothing is written, which fails as INTERNAL where the refusal is there before it.
                call = stream(metadata=peer.metadata, timeout=CALL_S)
                assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
            healthy = await peer.health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_S)
            assert healthy.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_job_touches_and_sees_only_its_own(guarded: Guarded) -> None:
    mine, theirs = guarded.issue(Scope.JOB, "mine"), guarded.issue(Scope.JOB, "theirs")
    async with caller(guarded.address, theirs) as other:
        await other(other.client.OpenJob, open_job("theirs"))
    async with caller(guarded.address, mine) as me:
        await me(me.client.OpenJob, open_job("mine"))
        listed = await me(me.client.ListJobs, client_service_pb2.ListJobsRequest())
        assert [job.spec.job_id for job in listed.jobs] == ["mine"]
        denied = grpc.StatusCode.PERMISSION_DENIED
        for rpc, request, field in (
            (me.client.OpenJob, open_job("theirs"), "job_id"),
            (me.client.CloseJob, client_service_pb2.CloseJobRequest(job_id="theirs"), "job_id"),
            (me.client.ListJobs, client_service_pb2.ListJobsRequest(job_id="theirs"), "job_id"),
            (me.client.ListTrajectories, client_service_pb2.ListTrajectoriesRequest(job_id="theirs"), "job_id"),
            (me.client.ListGroups, client_service_pb2.ListGroupsRequest(job_id="theirs"), "job_id"),
            (me.client.CancelWork, client_service_pb2.CancelWorkRequest(job_id="theirs"), "job_id"),
            (me.client.CancelAction, client_service_pb2.CancelActionRequest(key=key("theirs")), "job_id"),
            (me.client.SubmitAction, client_service_pb2.SubmitActionRequest(
                action=action_pb2.ActionSpec(job_id="theirs", action_id="a")), "job_id"),
            (me.client.GetOutcome, client_service_pb2.GetOutcomeRequest(key=key("theirs")), "key.job_id"),
            (me.admin.Explain, admin_service_pb2.ExplainRequest(key=key("theirs")), "key.job_id"),
            (me.admin.GetStatus, admin_service_pb2.GetStatusRequest(), "method"),
            (me.admin.DrainManager, admin_service_pb2.DrainManagerRequest(manager_id="m"), "method"),
        ):  # fmt: skip
            assert await me.refused(rpc, request) == (denied, field)
        items = [
            client_service_pb2.ClientItem(sequence=1, hold_job="theirs"),
            client_service_pb2.ClientItem(sequence=2, close_job="theirs"),
            client_service_pb2.ClientItem(sequence=3, open_job=job_pb2.JobSpec(job_id="theirs")),
        ]
        call, answer = await me.first_answer(
            me.client.ClientSession, client_service_pb2.ClientSessionRequest(items=items)
        )
        assert [(result.sequence, result.status.code) for result in answer.results] == [
            (number, denied.value[0]) for number in (1, 2, 3)
        ]
        call.cancel()
    async with caller(guarded.address, guarded.issue(Scope.READ_ONLY)) as reader:
        status = await reader(reader.admin.GetStatus, admin_service_pb2.GetStatusRequest())
        assert sorted(job.spec.job_id for job in status.jobs) == ["mine", "theirs"]
        refused = await reader.refused(reader.client.CloseJob, client_service_pb2.CloseJobRequest(job_id="mine"))
        assert refused == (denied, "method")


async def test_a_manager_is_itself_and_nobody_else(guarded: Guarded) -> None:
    async with caller(guarded.address, guarded.issue(Scope.MANAGER, "m")) as manager:
        call, answer = await manager.first_answer(manager.manager.ManagerSession, registration("m"))
        assert answer.items[0].HasField("registered")
        posing = manager.manager.ManagerSession(metadata=manager.metadata, timeout=CALL_S)
        await posing.write(registration("other"))
        assert await posing.code() is grpc.StatusCode.PERMISSION_DENIED
        denied = (grpc.StatusCode.PERMISSION_DENIED, "method")
        assert await manager.refused(manager.client.OpenJob, open_job("j")) == denied
        assert await manager.refused(manager.admin.GetStatus, admin_service_pb2.GetStatusRequest()) == denied
        call.cancel()
    async with caller(guarded.address, guarded.issue(Scope.JOB, "j")) as job:
        stream = job.manager.ManagerSession(metadata=job.metadata, timeout=CALL_S)
        assert await stream.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_gateway_generates_and_does_nothing_else(guarded: Guarded) -> None:
    denied = grpc.StatusCode.PERMISSION_DENIED
    async with caller(guarded.address, guarded.issue(Scope.JOB, "j")) as job:
        await job(job.client.OpenJob, open_job("j"))
        who = await job(job.client.GetServerInfo, client_service_pb2.GetServerInfoRequest())
        assert (who.caller_scope, who.caller_subject) == ("job", "j")
    async with caller(guarded.address, guarded.issue(Scope.GATEWAY, "")) as gateway:
        for name in ("OpenJob", "CloseJob", "CloseTrajectory", "CancelWork", "SubmitAction", "PublishPolicyVersion"):
            method = client_service_pb2.DESCRIPTOR.services_by_name["ClientService"].methods_by_name[name]
            request = message_factory.GetMessageClass(method.input_type)()
            assert await gateway.refused(getattr(gateway.client, name), request) == (denied, "method")
        opened = job_pb2.TrajectorySpec(job_id="j", trajectory_id="t")
        step = action_pb2.ActionSpec(job_id="j", trajectory_id="t", action_id="s", env_step=action_pb2.EnvStepInput())
        generate = action_pb2.ActionSpec(job_id="j", trajectory_id="t", action_id="g")
        generate.generate.prompt_token_ids.extend([1, 2])
        generate.generate.sampling.max_new_tokens = 1
        generate.unservable = action_pb2.UNSERVABLE_WAIT
        items = [
            client_service_pb2.ClientItem(sequence=1, hold_job="j"),
            client_service_pb2.ClientItem(sequence=2, close_job="j"),
            client_service_pb2.ClientItem(sequence=3, submit=step),
        ]
        session = gateway.client.ClientSession
        call, answer = await gateway.first_answer(session, client_service_pb2.ClientSessionRequest(items=items))
        assert [result.status.code for result in answer.results] == [denied.value[0]] * 3
        call.cancel()
        items = [
            client_service_pb2.ClientItem(sequence=1, open_trajectory=opened),
            client_service_pb2.ClientItem(sequence=2, submit=generate),
        ]
        call, answer = await gateway.first_answer(session, client_service_pb2.ClientSessionRequest(items=items))
        assert answer.opened[0].sequence == 1
        call.cancel()
        jobs = await gateway(gateway.client.ListJobs, client_service_pb2.ListJobsRequest())
        assert [job.spec.job_id for job in jobs.jobs] == ["j"]


@pytest.mark.parametrize("ends", ["revoked", "expired"])
async def test_a_stream_ends_with_its_token(guarded: Guarded, ends: str) -> None:
    token = guarded.issue(Scope.JOB, "j", None if ends == "revoked" else 2.0)
    async with caller(guarded.address, token) as peer:
        item = client_service_pb2.ClientItem(sequence=1, open_job=job_pb2.JobSpec(job_id="j"))
        call, answer = await peer.first_answer(
            peer.client.ClientSession, client_service_pb2.ClientSessionRequest(items=[item])
        )
        assert answer.opened[0].sequence == 1
        if ends == "revoked":
            guarded.revoke_all()
        with anyio.fail_after(_DEADLINE_S):
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await peer.refused(peer.client.OpenJob, open_job("j")))[0] is grpc.StatusCode.UNAUTHENTICATED


async def _silence() -> AsyncIterator[Any]:
    """Requests of a caller that says nothing: gRPC tells a write to a call that has ended as INTERNAL."""
    await anyio.sleep_forever()
    yield


async def test_payloads_take_a_token(guarded: Guarded) -> None:
    put = [payload_service_pb2.PutPayloadRequest(chunk=b"x")]
    async with caller(guarded.address) as peer:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await peer.payloads.PutPayload(_silence(), timeout=CALL_S)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    async with caller(guarded.address, guarded.issue(Scope.JOB, "j")) as job:
        stored = await job(job.payloads.PutPayload, iter(put))
    request = payload_service_pb2.GetPayloadRequest(reference=stored.reference)
    async with caller(guarded.address) as peer:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(peer.payloads.GetPayload(request, timeout=CALL_S)))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_tokens_that_cannot_be_read_let_nobody_in(guarded: Guarded) -> None:
    token = guarded.issue(Scope.ADMIN)
    guarded.tokens.path.write_text("damaged")
    async with caller(guarded.address, token) as peer:
        refused = await peer.refused(peer.client.OpenJob, open_job("j"))
        assert refused == (grpc.StatusCode.UNAVAILABLE, "authorization")


async def test_reflection_is_for_administrators(guarded: Guarded) -> None:
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    cases = (
        (guarded.issue(Scope.ADMIN), iter([question]), grpc.StatusCode.OK),
        (guarded.issue(Scope.JOB, "j"), _silence(), grpc.StatusCode.PERMISSION_DENIED),
    )
    for token, asked, code in cases:
        async with caller(guarded.address, token) as peer:
            call = peer.reflection.ServerReflectionInfo(asked, metadata=peer.metadata, timeout=CALL_S)
            with suppress(grpc.aio.AioRpcError):
                await read_to_end(call)
            assert await call.code() is code


async def test_tls_lets_in_who_trusts_the_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, tls_key = authority.sign("server")
    settings = SchedulerSettings(tmp_path / "data", listen="127.0.0.1:0", access=AccessSettings(cert, tls_key))
    async with running_service(settings) as service:
        async with caller(service.address, ca_file=str(authority.ca)) as peer:
            await peer(peer.client.OpenJob, open_job("j"))
        async with caller(service.address) as plain:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await plain(plain.client.OpenJob, open_job("j"))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_mutual_tls_takes_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, tls_key = authority.sign("server")
    mine, my_key = authority.sign("client", "client.example")
    settings = SchedulerSettings(
        tmp_path / "data", listen="127.0.0.1:0", access=AccessSettings(cert, tls_key, authority.ca)
    )
    async with running_service(settings) as service:
        async with caller(
            service.address, ca_file=str(authority.ca), cert_file=str(mine), key_file=str(my_key)
        ) as peer:
            await peer(peer.client.OpenJob, open_job("j"))
        async with caller(service.address, ca_file=str(authority.ca)) as without:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await without(without.client.OpenJob, open_job("j"))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_certificates_rotate_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, tls_key = authority.sign("server")
    settings = SchedulerSettings(tmp_path / "data", listen="127.0.0.1:0", access=AccessSettings(cert, tls_key))
    async with running_service(settings) as service:
        host, _, port = service.address.rpartition(":")

        def shown() -> str:
            return ssl.get_server_certificate((host, int(port)), timeout=CALL_S)

        before = await anyio.to_thread.run_sync(shown)
        async with caller(service.address, ca_file=str(authority.ca)) as old:
            await old(old.client.OpenJob, open_job("j"))
            authority.sign("server")
            after = await anyio.to_thread.run_sync(shown)
            assert before != after
            assert after.strip() in cert.read_text()
            # A connection that is there lives on, and a new one sees the new certificate.
            await old(old.client.OpenJob, open_job("j"))
        async with caller(service.address, ca_file=str(authority.ca)) as new:
            await new(new.client.OpenJob, open_job("j"))
