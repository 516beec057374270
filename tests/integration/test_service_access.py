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
)
from google.protobuf import message_factory
from grpc_reflection.v1alpha import reflection_pb2

from tests.support.certificates import Authority
from tests.support.guarded_service import CALL_S, Guarded, caller, key, open_job
from tests.support.raw_service import read_to_end, running_service

pytestmark = pytest.mark.anyio
_DEADLINE_S = 60.0


# Every rpc by every sort of caller is in test_uninvited.py and test_two_jobs.py; here is what a refusal names.
async def test_a_refusal_names_the_field_that_it_is_about(guarded: Guarded) -> None:
    async with caller(guarded.address) as stranger, caller(guarded.address, guarded.issue(Scope.JOB, "mine")) as me:
        missing = (grpc.StatusCode.UNAUTHENTICATED, "authorization")
        assert await stranger.refused(stranger.client.OpenJob, open_job("mine")) == missing
        for rpc, request, field in (
            (me.client.OpenJob, open_job("theirs"), "job_id"),
            (me.client.CancelAction, client_service_pb2.CancelActionRequest(key=key("theirs")), "job_id"),
            (me.client.GetOutcome, client_service_pb2.GetOutcomeRequest(key=key("theirs")), "key.job_id"),
            (me.admin.Explain, admin_service_pb2.ExplainRequest(key=key("theirs")), "key.job_id"),
            (me.admin.GetStatus, admin_service_pb2.GetStatusRequest(), "method"),
        ):
            assert await me.refused(rpc, request) == (grpc.StatusCode.PERMISSION_DENIED, field)


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


async def test_a_stream_ends_as_its_token_expires(guarded: Guarded) -> None:
    async with caller(guarded.address, guarded.issue(Scope.JOB, "j", 2.0)) as peer:
        item = client_service_pb2.ClientItem(sequence=1, open_job=job_pb2.JobSpec(job_id="j"))
        call, answer = await peer.first_answer(
            peer.client.ClientSession, client_service_pb2.ClientSessionRequest(items=[item])
        )
        assert answer.opened[0].sequence == 1
        with anyio.fail_after(_DEADLINE_S):
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await peer.refused(peer.client.OpenJob, open_job("j")))[0] is grpc.StatusCode.UNAUTHENTICATED


async def _silence() -> AsyncIterator[Any]:
    """Requests of a caller that says nothing: gRPC tells a write to a call that has ended as INTERNAL."""
    await anyio.sleep_forever()
    yield


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
