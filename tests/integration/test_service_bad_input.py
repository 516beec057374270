"""Bad input over real gRPC: refusals have their canonical codes and name the field, the value and the rule."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from callsheet.managers.noop import NoopService, NoopSettings
from callsheet.scheduler.service.rpc import client_servicer
from callsheet.scheduler.service.server import serve
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.scheduler.store.journal_errors import DataDirectoryLockedError
from callsheet.v1 import (
    action_pb2,
    admin_service_pb2,
    client_service_pb2,
    common_pb2,
    job_pb2,
    manager_service_pb2,
    outcome_pb2,
    payload_service_pb2,
)
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tests.support.bad_request import INVALID, NOT_FOUND, PRECONDITION, Bad
from tests.support.bad_requests import BAD
from tests.support.client_items import Item, after, key, spec, trajectory
from tests.support.raw_service import (
    ANSWER_S,
    NODE,
    RawService,
    Refusal,
    read_to_end,
    refusal_of,
    running_noop,
    running_service,
)

pytestmark = pytest.mark.anyio

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture(scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RawService]:
    """A scheduler with one manager, and a job "job" with the trajectories "open" (without a sandbox) and "closed"."""
    settings = SchedulerSettings(tmp_path_factory.mktemp("data"), listen="127.0.0.1:0")
    async with running_service(settings) as service, running_noop(service.address):
        trajectories = [
            Item(open_trajectory=job_pb2.TrajectorySpec(job_id="job", trajectory_id=name))
            for name in ("open", "closed")
        ]
        closed = client_service_pb2.CloseTrajectoryRequest(job_id="job", trajectory_id="closed")
        job = Item(open_job=job_pb2.JobSpec(job_id="job", detached=True))
        prepared = [job, *trajectories, Item(close_trajectory=closed)]
        assert await service.stream(*prepared) == [None] * len(prepared)
        yield service


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
async def test_a_bad_request_is_refused_alike_on_both_ways(service: RawService, bad: Bad) -> None:
    asked = await service.ask(bad.item)
    (streamed,) = await service.stream(bad.item)
    assert asked is not None
    assert asked == streamed
    assert (asked.code, asked.field) == (bad.code, bad.field)
    assert bad.value in asked.value
    assert len(asked.value) <= 200
    assert bad.rule in asked.rule
    assert asked.retry_after_s == 0


async def test_an_empty_item_is_refused(service: RawService) -> None:
    (refusal,) = await service.stream(Item())
    assert refusal is not None
    assert (refusal.code, refusal.field) == (INVALID, "item")


async def test_bad_items_of_a_batch_leave_the_others_alone(service: RawService) -> None:
    good = [spec(service="noop") for _ in range(3)]
    results = await service.stream(
        good[0], BAD["no tokens"].item, good[1], BAD["env_step without sandbox"].item, good[2]
    )
    assert [result is None for result in results] == [True, False, True, False, True]
    for item in good:
        assert (await service.outcome("job", item.submit.action_id)).HasField("succeeded")


async def test_an_action_resubmitted_with_another_body_is_refused(service: RawService) -> None:
    first = spec(service="noop")
    other = Item()
    other.CopyFrom(first)
    other.submit.label = "another"
    # While it is open, and once it has its outcome.
    assert (await service.stream(first, other))[0] is None
    outcome = await service.outcome("job", first.submit.action_id)
    for refusal in (await service.ask(other), *await service.stream(other)):
        assert refusal is not None
        assert (refusal.code, refusal.field) == (grpc.StatusCode.ALREADY_EXISTS, "action_id")
        assert refusal.value == first.submit.action_id
        assert "another body" in refusal.rule
    assert await service.ask(first) is None
    async with service.session() as session:
        assert await session.send(first) == [None]
        assert await session.next_outcome() == outcome


async def test_siblings_must_agree_about_their_group(service: RawService) -> None:
    def member(name: str, size: int) -> Item:
        return trajectory(trajectory_id=name, group=job_pb2.GroupSpec(group_id="siblings", size=size))

    results = await service.stream(member("s-1", 2), member("s-2", 3), member("s-3", 2), member("s-4", 2))
    assert [result and (result.code, result.field) for result in results] == [
        None,
        (PRECONDITION, "trajectory.group"),
        None,
        (PRECONDITION, "trajectory.group.size"),
    ]


async def test_an_older_policy_version_is_refused(service: RawService) -> None:
    def publish(version: int) -> Item:
        request = client_service_pb2.PublishPolicyVersionRequest(job_id="job", version=version)
        return Item(publish_policy_version=request)

    assert await service.ask(publish(3)) is None
    assert await service.ask(publish(3)) is None
    refusal = await service.ask(publish(2))
    assert refusal is not None
    assert (refusal.code, refusal.field, refusal.value) == (PRECONDITION, "version", "2")
    assert "must not be below 3" in refusal.rule


async def test_other_rpcs_name_what_is_wrong(service: RawService) -> None:
    client, admin = service.client, service.admin
    unknown = key("job", "none")
    cases = [
        (client.GetOutcome, client_service_pb2.GetOutcomeRequest(), INVALID, "key.job_id"),
        (client.GetOutcome, client_service_pb2.GetOutcomeRequest(key=key("job", "")), INVALID, "key.action_id"),
        (client.GetOutcome, client_service_pb2.GetOutcomeRequest(key=unknown, wait=after(-1)), INVALID, "wait"),
        (client.GetOutcome, client_service_pb2.GetOutcomeRequest(key=unknown), NOT_FOUND, "key"),
        (admin.Explain, admin_service_pb2.ExplainRequest(), INVALID, "key.action_id"),
        (admin.Explain, admin_service_pb2.ExplainRequest(key=unknown), NOT_FOUND, "key"),
        (admin.Explain, admin_service_pb2.ExplainRequest(key=key("", "none")), NOT_FOUND, "key"),
        (admin.DrainManager, admin_service_pb2.DrainManagerRequest(manager_id="none"), NOT_FOUND, "manager_id"),
    ]
    for rpc, request, code, field in cases:
        refusal = await refusal_of(rpc(request, timeout=ANSWER_S))
        assert refusal is not None, request
        assert (refusal.code, refusal.field) == (code, field), request
    without_job = await refusal_of(
        admin.Explain(admin_service_pb2.ExplainRequest(key=key("", "none")), timeout=ANSWER_S)
    )
    assert without_job is not None
    assert without_job.value == "none"


CONTRACTS = (client_service_pb2, manager_service_pb2, admin_service_pb2, payload_service_pb2)
METHODS = [
    method
    for each in (*CONTRACTS, health_pb2, reflection_pb2)
    for service in each.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


@pytest.mark.parametrize("data", [b"\x0b\x0a\x02\xff\xfe", b"\xff\xff\xff"], ids=["an open group", "no message"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
async def test_bytes_that_are_no_message_are_refused(service: RawService, method: Any, data: bytes) -> None:
    sides = ["stream" if is_stream else "unary" for is_stream in (method.client_streaming, method.server_streaming)]
    path = f"/{method.containing_service.full_name}/{method.name}"
    call_of: Any = getattr(service.channel, "_".join(sides))(
        path, request_serializer=bytes, response_deserializer=bytes
    )
    call = call_of(iter([data]) if method.client_streaming else data, timeout=ANSWER_S)
    refusal = await refusal_of(read_to_end(call) if method.server_streaming else call)
    assert refusal is not None
    assert (refusal.code, refusal.field) == (INVALID, "request")
    assert path in refusal.rule


async def test_text_that_is_not_utf_8_is_refused(service: RawService) -> None:
    path = "/callsheet.v1.ClientService/OpenJob"
    open_job: Any = service.channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
    refusal = await refusal_of(open_job(b"\x0a\x04\x0a\x02\xff\xfe", timeout=ANSWER_S))
    assert refusal is not None
    assert (refusal.code, refusal.field) == (INVALID, "request")


async def test_a_handler_that_breaks_has_a_code_and_one_line_in_the_log(
    service: RawService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise ValueError("of ours")

    def broken_list(*_: object) -> None:
        raise ValueError("of ours")

    monkeypatch.setattr(client_servicer, "list_jobs", broken_list)
    monkeypatch.setattr(client_servicer.ClientServicer, "_read", broken)
    stream: Any = service.client.ClientSession(iter([client_service_pb2.ClientSessionRequest()]), timeout=ANSWER_S)
    with structlog.testing.capture_logs() as logs:
        for call in (
            service.client.ListJobs(client_service_pb2.ListJobsRequest(), timeout=ANSWER_S),
            read_to_end(stream),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert "ValueError" not in str(caught.value.details())
    told = [each for each in logs if each["event"] == "rpc_broke"]
    assert [each["reason"] for each in told] == ["ValueError('of ours')"] * 2


async def test_an_action_id_of_two_jobs_must_be_told_apart(service: RawService) -> None:
    items = [Item(open_job=job_pb2.JobSpec(job_id="twin"))]
    items += [spec(job_id=name, action_id="same", service="noop") for name in ("job", "twin")]
    assert await service.stream(*items) == [None] * 3
    explain = service.admin.Explain
    refusal = await refusal_of(explain(admin_service_pb2.ExplainRequest(key=key("", "same")), timeout=ANSWER_S))
    assert refusal is not None
    assert (refusal.code, refusal.field) == (PRECONDITION, "key.job_id")
    assert "job, twin" in refusal.rule


async def test_payloads_are_checked(tmp_path: Path) -> None:
    settings = SchedulerSettings(tmp_path, listen="127.0.0.1:0", max_payload_bytes=100_000)
    put, content = payload_service_pb2.PutPayloadRequest, b"x" * 70_000
    sha256 = hashlib.sha256(content).hexdigest()
    wrong = common_pb2.PayloadReference(sha256="0" * 64, size=len(content))
    short = common_pb2.PayloadReference(sha256=sha256, size=5)
    async with running_service(settings) as service:
        for requests, code in (
            ([put(chunk=content, expected=wrong)], INVALID),
            ([put(chunk=content, expected=short)], INVALID),
            ([put(chunk=content, expected=common_pb2.PayloadReference(sha256="G", size=1))], INVALID),
            ([put(chunk=content), put(chunk=content)], EXHAUSTED),
        ):
            refusal = await refusal_of(service.payloads.PutPayload(iter(requests), timeout=ANSWER_S))
            assert refusal is not None
            assert refusal.code is code
        stored = await service.payloads.PutPayload(iter([put(chunk=content)]), timeout=ANSWER_S)
        assert stored.reference == common_pb2.PayloadReference(sha256=sha256, size=len(content))
        unknown = payload_service_pb2.GetPayloadRequest(reference=wrong)
        refusal = await refusal_of(read_to_end(service.payloads.GetPayload(unknown, timeout=ANSWER_S)))
        assert refusal is not None
        assert refusal.code is NOT_FOUND


async def test_a_full_queue_says_when_to_come_back(tmp_path: Path) -> None:
    settings = SchedulerSettings(tmp_path, listen="127.0.0.1:0", max_open_actions=2)
    async with running_service(settings) as service:
        waiting = [spec(unservable=action_pb2.UNSERVABLE_WAIT) for _ in range(3)]
        results = await service.stream(Item(open_job=job_pb2.JobSpec(job_id="job")), *waiting)
        assert results[:3] == [None] * 3
        for refusal in (results[3], await service.ask(waiting[2])):
            assert refusal is not None
            assert (refusal.code, refusal.field) == (EXHAUSTED, "action_id")
            assert refusal.retry_after_s > 0
        # Attaching takes no room, and an outcome makes some.
        assert await service.ask(waiting[0]) is None
        cancel = client_service_pb2.CancelActionRequest(key=key("job", waiting[0].submit.action_id))
        assert await service.ask(Item(cancel=cancel)) is None
        assert await service.ask(waiting[2]) is None


async def test_a_job_has_at_most_its_max_actions(service: RawService) -> None:
    narrow = Item(open_job=job_pb2.JobSpec(job_id="narrow", max_actions=1))
    waiting = [spec(job_id="narrow", unservable=action_pb2.UNSERVABLE_WAIT, service="later") for _ in range(2)]
    accepted, first, refusal = await service.stream(narrow, *waiting)
    assert (accepted, first) == (None, None)
    assert refusal is not None
    assert (refusal.code, refusal.field) == (EXHAUSTED, "job_id")
    assert "max_actions of 1" in refusal.rule
    assert refusal.retry_after_s > 0
    assert await service.ask(Item(close_job="narrow")) is None


async def test_what_nobody_serves_waits_if_the_client_wants_it(service: RawService) -> None:
    refused, waits = spec(service="soon"), spec(service="soon", unservable=action_pb2.UNSERVABLE_WAIT)
    expires = spec(
        service="never",
        unservable=action_pb2.UNSERVABLE_WAIT,
        timeouts=action_pb2.Timeouts(schedule_to_start=after(50)),
    )
    results = await service.stream(refused, waits, expires)
    assert results[0] is not None
    assert (results[0].code, results[0].field, results[0].value) == (PRECONDITION, "service", "soon")
    assert results[1:] == [None, None]
    expired = await service.outcome("job", expires.submit.action_id)
    assert expired.expired.timeout == outcome_pb2.TIMEOUT_KIND_SCHEDULE_TO_START
    assert expired.attempts == 0
    noop = NoopSettings(services=(NoopService("soon", (action_pb2.ACTION_KIND_GENERATE,)),))
    async with running_noop(service.address, noop, "late"):
        outcome = await service.outcome("job", waits.submit.action_id)
    assert outcome.HasField("succeeded")
    assert outcome.manager_id == "late"


def good_registration() -> manager_service_pb2.Registration:
    service = manager_service_pb2.HostedService(name="s", kinds=[action_pb2.ACTION_KIND_GENERATE])
    node = manager_service_pb2.NodeSpec(node_id="own", capacity={"memory": 1})
    return manager_service_pb2.Registration(manager_id="bad", incarnation="1", node=node, services=[service])


Change = Callable[[manager_service_pb2.Registration], object]
BAD_REGISTRATIONS: dict[str, tuple[Change, grpc.StatusCode, str]] = {
    "no id": (lambda it: it.ClearField("manager_id"), INVALID, "registration.manager_id"),
    "no incarnation": (lambda it: it.ClearField("incarnation"), INVALID, "registration.incarnation"),
    "no services": (lambda it: it.ClearField("services"), INVALID, "registration.services"),
    "two of a name": (lambda it: it.services.append(it.services[0]), INVALID, "registration.services"),
    "no kinds": (lambda it: it.services[0].ClearField("kinds"), INVALID, "registration.services[0].kinds"),
    "unknown kind": (lambda it: it.services[0].kinds.append(77), INVALID, "registration.services[0].kinds"),  # type: ignore[arg-type]
    "unspecified kind": (lambda it: it.services[0].kinds.append(0), INVALID, "registration.services[0].kinds"),  # type: ignore[arg-type]
    "no service name": (lambda it: it.services[0].ClearField("name"), INVALID, "registration.services[0].name"),
    "negative slots": (lambda it: setattr(it.services[0], "slots", -1), INVALID, "registration.services[0].slots"),
    "negative reserve": (
        lambda it: it.services[0].reserved.update(cpu=-1),
        INVALID,
        "registration.services[0].reserved[cpu]",
    ),
    "no node": (lambda it: it.ClearField("node"), INVALID, "registration.node.node_id"),
    "negative capacity": (lambda it: it.node.capacity.update(gpu=-2), INVALID, "registration.node.capacity[gpu]"),
    "cpu as capacity": (lambda it: it.node.capacity.update(cpu=4), INVALID, "registration.node.capacity[cpu]"),
    "a core twice": (lambda it: it.node.numa_nodes.add(cores=[1, 1]), INVALID, "registration.node.numa_nodes"),
    "another node of the name": (
        lambda it: setattr(it.node, "node_id", NODE.node_id),
        PRECONDITION,
        "registration.node",
    ),
}


async def refused_session(service: RawService, *items: manager_service_pb2.ManagerItem) -> Refusal:
    """Sends items on a manager session that must end with a refusal."""
    call = service.managers.ManagerSession(timeout=ANSWER_S)
    await call.write(manager_service_pb2.ManagerSessionRequest(items=items))
    refusal = await refusal_of(read_to_end(call))
    assert refusal is not None
    return refusal


@pytest.mark.parametrize(("change", "code", "field"), BAD_REGISTRATIONS.values(), ids=BAD_REGISTRATIONS.keys())
async def test_a_bad_registration_is_refused(
    service: RawService, change: Change, code: grpc.StatusCode, field: str
) -> None:
    registration = good_registration()
    change(registration)
    refusal = await refused_session(service, manager_service_pb2.ManagerItem(registration=registration))
    assert (refusal.code, refusal.field) == (code, field)
    status = await service.admin.GetStatus(admin_service_pb2.GetStatusRequest(), timeout=ANSWER_S)
    assert [manager.manager_id for manager in status.managers] == ["m"]


async def test_a_manager_introduces_itself_once_and_first(service: RawService) -> None:
    item = manager_service_pb2.ManagerItem
    registration = item(registration=good_registration())
    for items in ([item(heartbeat=manager_service_pb2.Heartbeat())], [registration, registration], [item()], []):
        refusal = await refused_session(service, *items)
        assert refusal.code is INVALID
        assert refusal.field in {"items", "items[0]"}


async def test_a_data_directory_has_one_scheduler(tmp_path: Path) -> None:
    settings = SchedulerSettings(tmp_path, listen="127.0.0.1:0")
    async with running_service(settings) as service:
        with pytest.raises(DataDirectoryLockedError, match=str(tmp_path)):
            await serve(settings)
        assert await service.ask(Item(open_job=job_pb2.JobSpec(job_id="job"))) is None
    # The next one takes over what the first one kept.
    async with running_service(settings) as service:
        status = await service.admin.GetStatus(admin_service_pb2.GetStatusRequest(), timeout=ANSWER_S)
    assert status.epoch == 2
    assert [job.spec.job_id for job in status.jobs] == ["job"]
