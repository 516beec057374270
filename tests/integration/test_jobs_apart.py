"""What a job's token gets names nothing of another job, whatever it asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import grpc
import grpc.aio
import pytest
from callsheet.credentials.channel import Credentials
from callsheet.managers.noop import NoopExecutor, NoopSettings
from callsheet.managers.runtime import run_manager
from callsheet.managers.settings import ManagerSettings
from callsheet.scheduler.access.identity import Scope
from callsheet.v1 import action_pb2, admin_service_pb2, client_service_pb2, common_pb2, job_pb2

from tests.support.guarded_service import CALL_S, Caller, Guarded, caller, open_job
from tests.support.raw_service import NODE, read_error

pytestmark = pytest.mark.anyio
_SIGN = "zqv"
_CORES = 2


def action(job_id: str, action_id: str, *, cores: int, seconds: int = 300) -> client_service_pb2.SubmitActionRequest:
    spec = action_pb2.ActionSpec(job_id=job_id, action_id=action_id, service="noop", label=f"{action_id}-label")
    spec.tool_call.method = f"{action_id}-method"
    spec.expected_duration.FromSeconds(seconds)
    spec.demand.resources.add(resource="cpu", min_milli_units=cores * 1000, max_milli_units=cores * 1000)
    return client_service_pb2.SubmitActionRequest(action=spec)


@asynccontextmanager
async def noop(guarded: Guarded) -> AsyncIterator[None]:
    token = guarded.issue(Scope.MANAGER, "m")
    settings = ManagerSettings(
        guarded.address, "m", NODE, credentials=Credentials(token=token), handle_signals=False, drain_timeout_s=0.0
    )
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            await run_manager(settings, NoopExecutor(NoopSettings()), stop=stop, task_status=task_status)

        await tasks.start(run)
        try:
            yield
        finally:
            stop.set()


async def victim_works(by: Caller) -> None:
    """A job with a sign in all of its names, that runs, waits, and has ended."""
    job = job_pb2.JobSpec(job_id=f"{_SIGN}-job")
    await by(by.client.OpenJob, client_service_pb2.OpenJobRequest(job=job))
    group = job_pb2.GroupSpec(group_id=f"{_SIGN}-group", size=2)
    trajectory = job_pb2.TrajectorySpec(job_id=job.job_id, trajectory_id=f"{_SIGN}-trajectory", group=group)
    await by(by.client.OpenTrajectory, client_service_pb2.OpenTrajectoryRequest(trajectory=trajectory))
    await by(by.client.SubmitAction, action(job.job_id, f"{_SIGN}-done", cores=1, seconds=0))
    done = client_service_pb2.GetOutcomeRequest(key=common_pb2.ActionKey(job_id=job.job_id, action_id=f"{_SIGN}-done"))
    done.wait.FromSeconds(10)
    assert (await by(by.client.GetOutcome, done)).outcome.HasField("succeeded")
    await by(by.client.SubmitAction, action(job.job_id, f"{_SIGN}-runs", cores=_CORES))
    key = common_pb2.ActionKey(job_id=job.job_id, action_id=f"{_SIGN}-runs")
    with anyio.fail_after(CALL_S):
        while True:
            told = await by(by.admin.Explain, admin_service_pb2.ExplainRequest(key=key))
            if told.state == admin_service_pb2.ACTION_STATE_RUNNING:
                break
            await anyio.sleep(0.01)
    await by(by.client.SubmitAction, action(job.job_id, f"{_SIGN}-waits", cores=_CORES))


async def answers(me: Caller) -> AsyncIterator[tuple[str, Any]]:
    """What a job is told by each rpc that it may call, and by those that it may not."""
    mine = common_pb2.ActionKey(job_id="mine", action_id="a")
    for rpc, request in (
        (me.client.ListJobs, client_service_pb2.ListJobsRequest()),
        (me.client.ListTrajectories, client_service_pb2.ListTrajectoriesRequest(job_id="mine", closed=True)),
        (me.client.ListGroups, client_service_pb2.ListGroupsRequest(job_id="mine")),
        (me.client.GetServerInfo, client_service_pb2.GetServerInfoRequest()),
        (me.client.GetOutcome, client_service_pb2.GetOutcomeRequest(key=mine)),
        (me.client.SubmitAction, action("mine", "too-wide", cores=99)),
        (me.client.SubmitAction, client_service_pb2.SubmitActionRequest(
            action=action_pb2.ActionSpec(
                job_id="mine", action_id="b", service="nop", tool_call=action_pb2.ToolCallInput(method="m")))),
        (me.admin.Explain, admin_service_pb2.ExplainRequest(key=mine)),
        (me.admin.Explain, admin_service_pb2.ExplainRequest(key=common_pb2.ActionKey(action_id="a"))),
        (me.admin.GetStatus, admin_service_pb2.GetStatusRequest()),
        (me.admin.WhatIf, admin_service_pb2.WhatIfRequest(pool="node", nodes=1)),
        (me.client.CancelAction, client_service_pb2.CancelActionRequest(key=mine)),
        (me.client.CancelWork, client_service_pb2.CancelWorkRequest(job_id="mine")),
        (me.client.CloseJob, client_service_pb2.CloseJobRequest(job_id="mine")),
    ):  # fmt: skip
        name = type(request).__name__
        try:
            yield name, await me(rpc, request)
        except grpc.aio.AioRpcError as error:
            yield name, read_error(error)


async def test_no_answer_to_a_job_names_anything_of_another(guarded: Guarded) -> None:
    async with (
        noop(guarded),
        caller(guarded.address, guarded.issue(Scope.JOB, f"{_SIGN}-job")) as victim,
        caller(guarded.address, guarded.issue(Scope.JOB, "mine")) as me,
        caller(guarded.address, guarded.issue(Scope.READ_ONLY)) as reader,
    ):
        await victim_works(victim)
        await me(me.client.OpenJob, open_job("mine"))
        await me(me.client.SubmitAction, action("mine", "a", cores=_CORES))
        asked = admin_service_pb2.ExplainRequest(key=common_pb2.ActionKey(job_id="mine", action_id="a"))
        told = await me(me.admin.Explain, asked)
        assert [(each.job_id, each.node_id, each.units["cpu"]) for each in told.holders] == [("", "node", _CORES)]
        # Who sees all is told what the job is not: the answers below have something to hide.
        assert _SIGN in str(await reader(reader.admin.Explain, asked))
        async for name, answer in answers(me):
            assert _SIGN not in str(answer), name
        items = [
            client_service_pb2.ClientItem(sequence=1, open_job=job_pb2.JobSpec(job_id="mine")),
            client_service_pb2.ClientItem(sequence=2, submit=action("mine", "c", cores=1).action),
        ]
        call, answer = await me.first_answer(
            me.client.ClientSession, client_service_pb2.ClientSessionRequest(items=items)
        )
        assert _SIGN not in str(answer)
        call.cancel()


async def test_a_job_need_not_name_itself_to_explain_its_own(guarded: Guarded) -> None:
    async with noop(guarded), caller(guarded.address, guarded.issue(Scope.JOB, "mine")) as me:
        await me(me.client.OpenJob, open_job("mine"))
        await me(me.client.SubmitAction, action("mine", "a", cores=1))
        asked = admin_service_pb2.ExplainRequest(key=common_pb2.ActionKey(action_id="a"))
        assert (await me(me.admin.Explain, asked)).key.job_id == "mine"
