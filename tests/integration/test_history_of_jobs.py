"""History over the service: journal and core together, who may read it, and what stays of a job that is closed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest
from callsheet.credentials.channel import Credentials
from callsheet.managers.noop import NoopSettings
from callsheet.scheduler.access.identity import Scope
from callsheet.v1 import action_pb2, admin_service_pb2, client_service_pb2, common_pb2, job_pb2

from tests.support.guarded_service import Caller, caller, guarded_scheduler, open_job
from tests.support.raw_service import running_noop

pytestmark = pytest.mark.anyio
_DEADLINE_S = 120.0
STATE = admin_service_pb2.ActionState
ListActions = admin_service_pb2.ListActionHistoryRequest
ListClosedJobs = admin_service_pb2.ListClosedJobsRequest
ListTrajectories = admin_service_pb2.ListTrajectoryHistoryRequest


@dataclass
class Asking:
    """Callers of a scheduler whose job "j" has a finished action "done" and one that waits for a service, "waits"."""

    job: Caller
    other: Caller
    reader: Caller
    admin: Caller


@asynccontextmanager
async def asking(directory: Path) -> AsyncIterator[Asking]:
    with anyio.fail_after(_DEADLINE_S):
        async with AsyncExitStack() as stack:
            guarded = await stack.enter_async_context(guarded_scheduler(directory))
            credentials = Credentials(token=guarded.issue(Scope.MANAGER, "m"))
            await stack.enter_async_context(running_noop(guarded.address, NoopSettings(), credentials=credentials))
            tokens = (
                guarded.issue(Scope.JOB, "j"),
                guarded.issue(Scope.JOB, "other"),
                guarded.issue(Scope.READ_ONLY),
                guarded.issue(Scope.ADMIN),
            )
            found = Asking(*[await stack.enter_async_context(caller(guarded.address, token)) for token in tokens])
            await _work(found.job)
            yield found


async def _work(job: Caller) -> None:
    await job(job.client.OpenJob, open_job("j"))
    group = job_pb2.GroupSpec(group_id="g", size=2)
    trajectory = job_pb2.TrajectorySpec(job_id="j", trajectory_id="t", group=group)
    await job(job.client.OpenTrajectory, client_service_pb2.OpenTrajectoryRequest(trajectory=trajectory))
    about: Any = {"job_id": "j", "trajectory_id": "t", "task": "sum"}
    done = action_pb2.ActionSpec(action_id="done", label="first", service="noop", **about)
    waits = action_pb2.ActionSpec(action_id="waits", unservable=action_pb2.UNSERVABLE_WAIT, service="nobody", **about)
    for spec in (done, waits):
        spec.tool_call.method, spec.tool_call.arguments.inline = "ask", b"secret"
        await job(job.client.SubmitAction, client_service_pb2.SubmitActionRequest(action=spec))
    request = client_service_pb2.GetOutcomeRequest(key=common_pb2.ActionKey(job_id="j", action_id="done"))
    request.wait.FromSeconds(20)
    assert (await job(job.client.GetOutcome, request)).HasField("outcome")


async def actions_of(who: Caller, **about: Any) -> Any:
    return await who(who.admin.ListActionHistory, ListActions(job_id="j", **about))


async def test_finished_and_waiting_actions_are_told_with_their_stories(tmp_path: Path) -> None:
    async with asking(tmp_path) as found:
        page = await actions_of(found.job, trajectory_ids=["t"])
        brief = (await actions_of(found.job, brief=True)).actions
        (trajectory,) = (
            await found.job(found.job.admin.ListTrajectoryHistory, ListTrajectories(job_id="j"))
        ).trajectories
    done, waits = page.actions
    assert (done.key.action_id, done.state, done.node_id) == ("done", STATE.ACTION_STATE_SUCCEEDED, "node")
    assert (done.label, done.task, done.service, done.manager_id) == ("first", "sum", "noop", "m")
    assert done.timeline.HasField("ended")
    assert [each.event for each in done.story][-1] == "outcome: succeeded"
    assert (waits.key.action_id, waits.state) == ("waits", STATE.ACTION_STATE_QUEUED)
    assert (waits.task, waits.service) == ("sum", "nobody")
    assert [(each.state, each.task, each.service) for each in brief] == [
        (each.state, each.task, each.service) for each in page.actions
    ]
    assert not any(each.story for each in brief)
    assert waits.timeline.queue_s > 0.0
    assert waits.story
    assert (trajectory.group_id, trajectory.task, trajectory.admitted) == ("g", "sum", True)


async def test_an_action_that_has_ended_tells_its_trajectory_also_once_its_job_is_closed(tmp_path: Path) -> None:
    request = admin_service_pb2.ExplainRequest(key=common_pb2.ActionKey(job_id="j", action_id="done"))
    async with asking(tmp_path) as found:
        told = [await found.job(found.job.admin.Explain, request)]
        await found.job(found.job.client.CloseJob, client_service_pb2.CloseJobRequest(job_id="j"))
        told.append(await found.job(found.job.admin.Explain, request))
    assert [(each.trajectory_id, each.job_closed) for each in told] == [("t", False), ("t", True)]


async def test_contents_are_for_the_jobs_token_and_administrators(tmp_path: Path) -> None:
    async with asking(tmp_path) as found:
        for who in (found.job, found.admin):
            page = await actions_of(who, contents=True)
            assert [each.spec.tool_call.arguments.inline for each in page.actions] == [b"secret"] * 2
            assert page.actions[0].outcome.WhichOneof("result") == "succeeded"
        assert "secret" not in str(await actions_of(found.reader))
        refused = await found.reader.refused(
            found.reader.admin.ListActionHistory, ListActions(job_id="j", contents=True)
        )
        assert refused == (grpc.StatusCode.PERMISSION_DENIED, "contents")
        for rpc, request in (
            (found.other.admin.ListActionHistory, ListActions(job_id="j")),
            (found.other.admin.ListTrajectoryHistory, ListTrajectories(job_id="j")),
        ):
            assert await found.other.refused(rpc, request) == (grpc.StatusCode.PERMISSION_DENIED, "job_id")
            # Nor may it leave out whose history it asks for.
            request.job_id = ""
            assert await found.other.refused(rpc, request) == (grpc.StatusCode.PERMISSION_DENIED, "job_id")


async def test_closed_jobs_are_told_and_a_jobs_token_sees_its_own_alone(tmp_path: Path) -> None:
    async with asking(tmp_path) as found:
        await found.other(found.other.client.OpenJob, open_job("other"))
        for who, name in ((found.job, "j"), (found.other, "other")):
            await who(who.client.CloseJob, client_service_pb2.CloseJobRequest(job_id=name))
        for who, names in ((found.job, ["j"]), (found.reader, ["other", "j"]), (found.admin, ["other", "j"])):
            told = (await who(who.admin.ListClosedJobs, ListClosedJobs())).jobs
            assert [each.job_id for each in told] == names
        refused = await found.other.refused(found.other.admin.ListClosedJobs, ListClosedJobs(job_id="j"))
        assert refused == (grpc.StatusCode.PERMISSION_DENIED, "job_id")
        (closed,) = (await found.reader(found.reader.admin.ListClosedJobs, ListClosedJobs(job_id="j"))).jobs
        assert (closed.reason, closed.reopened) == ("on request", False)
        assert 0 < closed.opened.ToNanoseconds() <= closed.closed.ToNanoseconds()
        await found.job(found.job.client.OpenJob, open_job("j"))
        (closed,) = (await found.job(found.job.admin.ListClosedJobs, ListClosedJobs(job_id="j"))).jobs
        assert closed.reopened
