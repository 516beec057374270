"""Payloads of a client over real gRPC."""

from __future__ import annotations

import hashlib

import anyio
import pytest
from callsheet.client import (
    Client,
    ClientOptions,
    ConnectionLostError,
    FailedPreconditionError,
    Job,
    PayloadError,
    SandboxFile,
)
from callsheet.v1 import action_pb2, outcome_pb2

from tests.support.faulty_client_service import FAST, FaultyClientService, succeed
from tests.support.faulty_servicers import serving

_LARGE = bytes(range(256)) * 12_000  # 3 MB: several chunks, encoded in a thread


async def test_large_files_are_put_once(job: Job, client: Client, service: FaultyClientService) -> None:
    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(_reset, client, str(number))
    async with job.trajectory("last") as trajectory:
        await trajectory.env_reset(files=[SandboxFile("a", _LARGE)])
    sha256 = hashlib.sha256(_LARGE).hexdigest()
    assert service.puts == [sha256]
    assert service.payloads == {sha256: _LARGE}
    assert next(iter(service.actions.values())).env_reset.files[0].content.reference.size == len(_LARGE)


async def _reset(client: Client, trajectory_id: str) -> None:
    async with client.job("j").trajectory(trajectory_id) as trajectory:
        (await trajectory.env_reset(files=[SandboxFile("a", _LARGE)])).unwrap()


async def test_a_payload_that_the_scheduler_dropped_is_put_again(
    job: Job, client: Client, service: FaultyClientService
) -> None:
    await _reset(client, "t")
    service.payloads.clear()
    await _reset(client, "u")
    assert len(service.puts) == 2


async def test_closing_a_job_forgets_what_was_put(job: Job, client: Client, service: FaultyClientService) -> None:
    await _reset(client, "t")
    await job.close()
    await client.open_job("j")
    await _reset(client, "u")
    assert len(service.puts) == 2


async def test_a_payload_thatnever_arrives_is_refused_in_the_end(client: Client, service: FaultyClientService) -> None:
    class Forgetful(dict[str, bytes]):
        def __setitem__(self, key: str, value: bytes) -> None:
            """Keeps nothing."""

    service.payloads = Forgetful()
    await client.open_job("j")
    with pytest.raises(FailedPreconditionError, match="put before it is used"):
        await _reset(client, "t")
    assert len(service.puts) == 2


async def test_results_by_reference_are_fetched(job: Job, service: FaultyClientService) -> None:
    # The service echoes the arguments, which went by reference.
    assert (await job.tool_call("api", "echo", _LARGE)).unwrap().response == _LARGE


async def test_a_result_that_is_gone_or_wrong_can_be_awaited_again(
    client: Client, service: FaultyClientService
) -> None:
    sha256 = hashlib.sha256(_LARGE).hexdigest()

    def by_reference(spec: action_pb2.ActionSpec) -> outcome_pb2.Outcome:
        outcome = succeed(spec)
        outcome.succeeded.tool_call.response.reference.sha256 = sha256
        outcome.succeeded.tool_call.response.reference.size = len(_LARGE)
        return outcome

    service.decide = by_reference
    job = await client.open_job("j")
    with pytest.raises(PayloadError, match="no longer stored"):
        await job.tool_call("api", "m", b"", action_id="a")
    service.payloads[sha256] = b"something else"
    with pytest.raises(PayloadError, match="are not payload"):
        await job.tool_call("api", "m", b"", action_id="a")
    service.payloads[sha256] = _LARGE
    assert (await job.tool_call("api", "m", b"", action_id="a")).unwrap().response == _LARGE
    assert service.started == {("j", "a"): 1}


async def test_a_put_waits_for_a_server(service: FaultyClientService) -> None:
    async with serving(service) as target:
        pass
    ended = anyio.Event()
    async with Client(target, FAST) as client, anyio.create_task_group() as group:
        group.start_soon(_open_and_reset, client, ended)
        # The server stays until the client has read its last reply.
        async with serving(service, port=int(target.rpartition(":")[2])):
            await ended.wait()
    assert ("j", "t") in service.state.closed


async def _open_and_reset(client: Client, ended: anyio.Event) -> None:
    await client.open_job("j")
    await _reset(client, "t")
    ended.set()


async def test_a_put_gives_up_after_its_time() -> None:
    async with serving(FaultyClientService()) as target:
        pass
    options = ClientOptions(connect_timeout_s=0.1, give_up_after_s=0.1, backoff_initial_s=0.01, backoff_max_s=0.05)
    async with Client(target, options) as client:
        with pytest.raises(ConnectionLostError):
            await client.job("j").tool_call("api", "m", _LARGE)


async def test_a_put_can_be_cancelled_by_a_scope(service: FaultyClientService) -> None:
    async with serving(service) as target, Client(target, FAST) as client:
        await client.open_job("j")
        service.storing.clear()
        with anyio.move_on_after(0.05) as scope:
            await client.job("j").tool_call("api", "m", _LARGE)
        assert scope.cancelled_caught
        service.storing.set()
        assert (await client.job("j").tool_call("api", "m", _LARGE)).unwrap().response == _LARGE
