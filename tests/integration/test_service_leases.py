"""Jobs and the sessions that hold them, over real gRPC; what opens find, lists, and who this scheduler is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from callsheet.scheduler.service.rpc.client_servicer import scheduler_version
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.v1 import admin_service_pb2, client_service_pb2, job_pb2
from callsheet.v1.contract import CONTRACT, OLDEST_CONTRACT

from tests.support.client_items import Item, after, key, spec, trajectory
from tests.support.cutting_proxy import cutting_proxy
from tests.support.expected import expect, present
from tests.support.raw_service import ANSWER_S, RawService, refusal_of, running_noop, running_service
from tests.support.waiting import until_so

pytestmark = pytest.mark.anyio

POLL_S = 0.02
NAMES = [f"t{number}" for number in range(5)]


def settings(data_dir: Path, keepalive_timeout: float) -> SchedulerSettings:
    """Short graces, and pings as often as they come."""
    return SchedulerSettings(
        data_dir, listen="127.0.0.1:0", job_grace=0.2, keepalive_interval=0.2, keepalive_timeout=keepalive_timeout
    )


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[RawService]:
    async with running_service(settings(tmp_path, keepalive_timeout=ANSWER_S)) as service:
        yield service


async def job_status(service: RawService, job_id: str = "job") -> job_pb2.JobStatus:
    request = client_service_pb2.ListJobsRequest(job_id=job_id)
    (status,) = (await service.client.ListJobs(request, timeout=ANSWER_S)).jobs
    assert isinstance(status, job_pb2.JobStatus)
    return status


async def until_expired(service: RawService, job_id: str = "job") -> job_pb2.JobStatus:
    return await until_so(lambda: job_status(service, job_id), lambda status: status.expired, every_s=POLL_S)


def opened_job(job_id: str = "job", **fields: object) -> Item:
    return Item(open_job=job_pb2.JobSpec(job_id=job_id, **fields))  # type: ignore[arg-type]


async def test_a_job_lives_as_long_as_its_session_and_a_grace(service: RawService) -> None:
    async with service.session() as session:
        assert await session.send(opened_job(), trajectory(trajectory_id="t")) == [None, None]
        status = await job_status(service)
        assert (status.sessions, status.expired, status.HasField("expires_in")) == (1, False, False)
        assert status.spec.grace.ToTimedelta().total_seconds() == pytest.approx(0.2)
        assert (status.spec.share, status.spec.priority_class) == (1.0, job_pb2.PRIORITY_CLASS_TRAIN)
    status = await until_expired(service)
    assert (status.sessions, status.open_trajectories) == (0, 0)
    assert 0 < status.closes_in.seconds <= 24 * 3600
    late = present(await service.ask(spec(trajectory_id="")))
    assert (late.code, late.field) == (grpc.StatusCode.FAILED_PRECONDITION, "job_id")
    response = await service.admin.GetStatus(admin_service_pb2.GetStatusRequest(), timeout=ANSWER_S)
    assert [each.expired for each in response.jobs] == [True]


async def test_a_trainer_that_comes_back_reads_outcomes_and_goes_on(service: RawService) -> None:
    async with running_noop(service.address):
        async with service.session() as session:
            submit = spec(action_id="done", service="noop")
            assert await session.send(opened_job(), trajectory(trajectory_id="t"), submit) == [None] * 3
            assert (await session.next_outcome()).key == key("job", "done")
        await until_expired(service)
        async with service.session() as session:
            hold, again = Item(hold_job="job"), trajectory(trajectory_id="t")
            assert await session.send(hold, again, trajectory(trajectory_id="u")) == [None] * 3
            assert session.opened[2].opening == job_pb2.OPENING_CLOSED
            assert session.opened[2].end == job_pb2.TRAJECTORY_END_ABANDONED
            assert session.opened[3].opening == job_pb2.OPENING_CREATED
            assert (await service.outcome("job", "done")).HasField("succeeded")
            status = await job_status(service)
            assert (status.sessions, status.expired, status.HasField("closes_in")) == (1, False, False)
            listed = await service.client.ListTrajectories(
                client_service_pb2.ListTrajectoriesRequest(job_id="job", trajectory_id="t"), timeout=ANSWER_S
            )
            assert listed.trajectories[0].reason == "its job expired: no client session held it"


async def test_what_nobody_holds_expires_and_what_is_detached_does_not(service: RawService) -> None:
    assert await service.ask(opened_job("unary")) is None
    assert await service.ask(opened_job("detached", detached=True)) is None
    async with service.session() as session:
        released = [opened_job("released"), Item(release_job="released")]
        assert await session.send(opened_job("held"), *released) == [None] * 3
        for job_id in ("unary", "released"):
            await until_expired(service, job_id)
        for job_id, sessions in (("held", 1), ("detached", 0)):
            status = await job_status(service, job_id)
            assert (status.expired, status.sessions, status.HasField("expires_in")) == (False, sessions, False)


async def test_a_session_whose_machine_is_gone_lets_go(tmp_path: Path) -> None:
    """No end of its connection hears of it: only a ping that nobody answers tells."""
    async with (
        running_service(settings(tmp_path, keepalive_timeout=1.0)) as service,
        cutting_proxy(service.address) as proxy,
        grpc.aio.insecure_channel(proxy.address) as channel,
        RawService(proxy.address, channel).session() as session,
    ):
        assert await session.send(opened_job()) == [None]
        assert (await job_status(service)).sessions == 1
        proxy.silent = True
        await until_expired(service)


async def test_pings_of_the_server_end_no_session_that_answers_them(service: RawService) -> None:
    async with service.session() as idle:
        assert await idle.send(opened_job("idle")) == [None]
        # A grace, and so a ping, after which the idle session would have let go.
        assert await service.ask(opened_job("unary")) is None
        await until_expired(service, "unary")
        assert (await job_status(service, "idle")).sessions == 1
        assert await idle.send(Item(hold_job="idle")) == [None]


async def test_trajectories_are_listed_page_by_page(service: RawService) -> None:
    async with service.session() as session:
        group = job_pb2.GroupSpec(group_id="g", size=3, quorum=2)
        members = [trajectory(trajectory_id=name, group=group) for name in NAMES[:3]]
        others = [trajectory(trajectory_id=name, deadline=after(60_000)) for name in NAMES[3:]]
        assert await session.send(opened_job(), *reversed(others), *members) == [None] * 6
        cancel = client_service_pb2.CancelWorkRequest(job_id="job", trajectory_id="t4", reason="not needed")
        assert await session.send(Item(cancel_work=cancel)) == [None]

        async def page(**fields: object) -> client_service_pb2.ListTrajectoriesResponse:
            request = client_service_pb2.ListTrajectoriesRequest(job_id="job", **fields)  # type: ignore[arg-type]
            return expect(
                client_service_pb2.ListTrajectoriesResponse,
                await service.client.ListTrajectories(request, timeout=ANSWER_S),
            )

        names: list[str] = []
        more = True
        while more:
            listed = await page(page_size=2, closed=True, after=names[-1] if names else "")
            names += [each.spec.trajectory_id for each in listed.trajectories]
            more = listed.more
        assert names == NAMES
        assert [each.spec.trajectory_id for each in (await page()).trajectories] == NAMES[:4]
        assert [each.spec.trajectory_id for each in (await page(group_id="g")).trajectories] == NAMES[:3]
        (closed,) = (await page(trajectory_id="t4")).trajectories
        assert (closed.end, closed.reason) == (job_pb2.TRAJECTORY_END_ABANDONED, "not needed")
        (opened,) = (await page(trajectory_id="t0")).trajectories
        assert (opened.spec.group.on_infra, opened.spec.idle_timeout.seconds) == (job_pb2.ON_INFRA_REPLACE, 3600)


async def test_what_is_not_there_cannot_be_listed(service: RawService) -> None:
    assert await service.ask(opened_job(detached=True)) is None
    client = service.client
    for call, field in (
        (client.ListJobs(client_service_pb2.ListJobsRequest(job_id="none"), timeout=ANSWER_S), "job_id"),
        (client.ListTrajectories(client_service_pb2.ListTrajectoriesRequest(), timeout=ANSWER_S), "job_id"),
        (
            client.ListTrajectories(
                client_service_pb2.ListTrajectoriesRequest(job_id="job", trajectory_id="none"), timeout=ANSWER_S
            ),
            "trajectory_id",
        ),
        (
            client.ListGroups(client_service_pb2.ListGroupsRequest(job_id="job", group_id="none"), timeout=ANSWER_S),
            "group_id",
        ),
    ):
        refused = present(await refusal_of(call))
        assert (refused.code, refused.field) == (grpc.StatusCode.NOT_FOUND, field)
    many = client_service_pb2.ListGroupsRequest(job_id="job", page_size=10_001)
    refused = present(await refusal_of(client.ListGroups(many, timeout=ANSWER_S)))
    assert (refused.code, refused.field) == (grpc.StatusCode.INVALID_ARGUMENT, "page_size")


async def test_the_scheduler_says_who_it_is(service: RawService) -> None:
    request = client_service_pb2.GetServerInfoRequest(client_version="9.9")
    info = await service.client.GetServerInfo(request, timeout=ANSWER_S)
    assert (info.version, info.epoch) == (scheduler_version(), 1)
    assert (info.contract, info.oldest_contract) == (CONTRACT, OLDEST_CONTRACT)
