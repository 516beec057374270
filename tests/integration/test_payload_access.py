"""A payload is for who put it, for the job that refers to it, and for managers that were given what refers to it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from callsheet.scheduler.access.identity import Scope
from callsheet.v1 import (
    action_pb2,
    client_service_pb2,
    common_pb2,
    manager_service_pb2,
    outcome_pb2,
    payload_service_pb2,
)

from tests.support.guarded_service import (
    CALL_S,
    Caller,
    Guarded,
    caller,
    guarded_scheduler,
    open_job,
    registration,
)
from tests.support.raw_service import read_error
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

_BODY = os.urandom(100_000)


def reference_of(body: bytes) -> common_pb2.PayloadReference:
    return common_pb2.PayloadReference(sha256=hashlib.sha256(body).hexdigest(), size=len(body))


def call_with(reference: common_pb2.PayloadReference, job_id: str) -> action_pb2.ActionSpec:
    """An action that refers to a payload."""
    call = action_pb2.ToolCallInput(method="m", arguments=common_pb2.Blob(reference=reference))
    return action_pb2.ActionSpec(job_id=job_id, action_id="a", service="n", tool_call=call)


async def put(by: Caller, body: bytes = _BODY) -> common_pb2.PayloadReference:
    request = payload_service_pb2.PutPayloadRequest(chunk=body)
    reference: common_pb2.PayloadReference = (await by(by.payloads.PutPayload, iter([request]))).reference
    return reference


async def get(by: Caller, reference: common_pb2.PayloadReference) -> bytes:
    request = payload_service_pb2.GetPayloadRequest(reference=reference)
    answers = by.payloads.GetPayload(request, metadata=by.metadata, timeout=CALL_S)
    return b"".join([answer.chunk async for answer in answers])


async def what_a_get_says(by: Caller, reference: common_pb2.PayloadReference) -> str:
    """The whole refusal, with the digest left out."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await get(by, reference)
    return repr(read_error(caught.value)).replace(reference.sha256, "DIGEST")


async def what_a_submit_says(by: Caller, reference: common_pb2.PayloadReference, job_id: str) -> str:
    request = client_service_pb2.SubmitActionRequest(action=call_with(reference, job_id))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await by(by.client.SubmitAction, request)
    return repr(read_error(caught.value)).replace(reference.sha256, "DIGEST")


@asynccontextmanager
async def caller_of(guarded: Guarded, scope: Scope, subject: str = "") -> AsyncIterator[Caller]:
    async with caller(guarded.address, guarded.issue(scope, subject)) as by:
        if scope is Scope.JOB:
            await by(by.client.OpenJob, open_job(subject))
        yield by


class FakeManager:
    """A manager's stream by hand."""

    def __init__(self, by: Caller, call: Any) -> None:
        self.by = by
        self._call = call
        self._items: list[manager_service_pb2.SchedulerItem] = []

    async def next(self, name: str) -> Any:
        """The next item of a sort; others are dropped."""
        with anyio.fail_after(CALL_S):
            while True:
                while self._items:
                    item = self._items.pop(0)
                    if item.WhichOneof("item") == name:
                        return getattr(item, name)
                self._items += (await self._call.read()).items

    async def say(self, **item: Any) -> None:
        await self._call.write(
            manager_service_pb2.ManagerSessionRequest(items=[manager_service_pb2.ManagerItem(**item)])
        )

    async def end(self, dispatch: manager_service_pb2.Dispatch, body: common_pb2.Blob) -> None:
        """Ends an attempt with a result."""
        succeeded = outcome_pb2.Succeeded(tool_call=outcome_pb2.ToolCallResult(response=body))
        ended = manager_service_pb2.AttemptEnded(
            token=dispatch.grant.token,
            key=dispatch.grant.key,
            attempt=dispatch.grant.attempt,
            started=True,
            succeeded=succeeded,
        )
        await self.say(ended=ended)
        await self.next("ends_acknowledged")


@asynccontextmanager
async def manager_of(guarded: Guarded, manager_id: str) -> AsyncIterator[FakeManager]:
    async with caller_of(guarded, Scope.MANAGER, manager_id) as by:
        message = registration(manager_id)
        message.items[0].registration.node.node_id = manager_id
        call, answer = await by.first_answer(by.manager.ManagerSession, message)
        assert answer.items[0].HasField("registered")
        manager = FakeManager(by, call)
        await manager.say(heartbeat=manager_service_pb2.Heartbeat())
        yield manager
        call.cancel()


async def test_a_digest_alone_opens_nothing_to_another_job(guarded: Guarded) -> None:
    never = reference_of(b"never put")
    never.size = len(_BODY)
    async with caller_of(guarded, Scope.JOB, "mine") as mine, caller_of(guarded, Scope.JOB, "theirs") as theirs:
        reference = await put(mine)
        assert await get(mine, reference) == _BODY
        for _ in range(2):
            # Put, and then used by an action: to others both are as if it were not there.
            assert await what_a_get_says(theirs, reference) == await what_a_get_says(theirs, never)
            said = await what_a_submit_says(theirs, reference, "theirs")
            assert said == await what_a_submit_says(theirs, never, "theirs")
            assert "FAILED_PRECONDITION" in said
            spec = call_with(reference, "mine")
            spec.unservable = action_pb2.UNSERVABLE_WAIT
            await mine(mine.client.SubmitAction, client_service_pb2.SubmitActionRequest(action=spec))
        item = client_service_pb2.ClientItem(sequence=1, submit=call_with(reference, "theirs"))
        call, answer = await theirs.first_answer(
            theirs.client.ClientSession, client_service_pb2.ClientSessionRequest(items=[item])
        )
        assert answer.results[0].status.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
        call.cancel()
        # Refused submits pinned nothing, so that they opened nothing either.
        assert await what_a_get_says(theirs, reference) == await what_a_get_says(theirs, never)
        # Who has the bytes may put them, and names what is there then.
        assert await put(theirs) == reference
        assert await get(theirs, reference) == _BODY


async def test_what_a_job_put_is_its_after_a_restart(tmp_path: Path) -> None:
    async with guarded_scheduler(tmp_path) as guarded, caller_of(guarded, Scope.JOB, "mine") as mine:
        reference = await put(mine)
    async with guarded_scheduler(tmp_path) as guarded, caller_of(guarded, Scope.JOB, "mine") as mine:
        assert await get(mine, reference) == _BODY
        async with caller_of(guarded, Scope.JOB, "theirs") as theirs:
            assert "NOT_FOUND" in await what_a_get_says(theirs, reference)


async def test_a_manager_reads_what_it_was_given(guarded: Guarded) -> None:
    async with (
        caller_of(guarded, Scope.JOB, "mine") as mine,
        manager_of(guarded, "given") as given,
    ):
        unused = await put(mine, b"of no action" * 9000)
        reference = await put(mine)
        assert "NOT_FOUND" in await what_a_get_says(given.by, reference)
        submit = client_service_pb2.SubmitActionRequest(action=call_with(reference, "mine"))
        await mine(mine.client.SubmitAction, submit)
        dispatch = await given.next("dispatch")
        assert await get(given.by, reference) == _BODY
        assert "NOT_FOUND" in await what_a_get_says(given.by, unused)
        async with manager_of(guarded, "another") as another:
            assert await what_a_get_says(another.by, reference) == await what_a_get_says(another.by, unused)
        result = os.urandom(70_000)
        await given.end(dispatch, common_pb2.Blob(reference=await put(given.by, result)))
        assert "NOT_FOUND" in await what_a_get_says(given.by, reference)
        assert await get(mine, reference_of(result)) == result
    async with caller_of(guarded, Scope.MANAGER, "given") as away:
        # Until it has said what it runs, nobody knows what it was given.
        assert "UNAVAILABLE" in await what_a_get_says(away, reference)


@pytest.mark.parametrize("whose", ["another job's", "another manager's"])
async def test_a_result_opens_nothing_that_its_manager_did_not_put(guarded: Guarded, whose: str) -> None:
    async with (
        caller_of(guarded, Scope.JOB, "accomplice") as accomplice,
        caller_of(guarded, *((Scope.JOB, "v") if "job" in whose else (Scope.MANAGER, "v"))) as victim,
        manager_of(guarded, "rogue") as rogue,
    ):
        reference = await put(victim)
        own = await put(accomplice, b"own" * 30_000)
        submit = client_service_pb2.SubmitActionRequest(action=call_with(own, "accomplice"))
        await accomplice(accomplice.client.SubmitAction, submit)
        await rogue.end(await rogue.next("dispatch"), common_pb2.Blob(reference=reference))
        request = client_service_pb2.GetOutcomeRequest(key=common_pb2.ActionKey(job_id="accomplice", action_id="a"))
        request.wait.FromSeconds(10)
        outcome = (await accomplice(accomplice.client.GetOutcome, request)).outcome
        assert outcome.succeeded.tool_call.response.reference == reference
        for reader in (accomplice, rogue.by):
            assert "NOT_FOUND" in await what_a_get_says(reader, reference)


async def test_a_result_for_a_job_that_is_not_open_pins_nothing(guarded: Guarded, tmp_path: Path) -> None:
    async with caller_of(guarded, Scope.JOB, "closed") as closed, manager_of(guarded, "late") as late:
        submit = client_service_pb2.SubmitActionRequest(action=call_with(await put(closed), "closed"))
        await closed(closed.client.SubmitAction, submit)
        dispatch = await late.next("dispatch")
        await closed(closed.client.CloseJob, client_service_pb2.CloseJobRequest(job_id="closed"))
        for job_id in ("closed", "never"):
            dispatch.grant.key.job_id = job_id
            await late.end(dispatch, common_pb2.Blob(reference=await put(late.by, os.urandom(70_000))))
        kept = tmp_path / "data" / "payloads" / "jobs"
        await until(lambda: not any(kept.iterdir()), every_s=0.01)


async def test_an_administrator_reads_all_and_names_all(guarded: Guarded) -> None:
    async with caller_of(guarded, Scope.JOB, "mine") as mine, caller_of(guarded, Scope.ADMIN) as admin:
        reference = await put(mine)
        assert await get(admin, reference) == _BODY
        await admin(admin.client.OpenJob, open_job("other"))
        spec = call_with(reference, "other")
        spec.unservable = action_pb2.UNSERVABLE_WAIT
        await admin(admin.client.SubmitAction, client_service_pb2.SubmitActionRequest(action=spec))
