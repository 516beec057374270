"""`callsheet jobs`, `cancel`, `close` and `drain` as a user runs them, against a server that notes what it is asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from callsheet.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    client_service_pb2,
    client_service_pb2_grpc,
    common_pb2,
    job_pb2,
    manager_service_pb2,
)
from google.protobuf import duration_pb2
from typer.testing import Result

from tests.support.command_line import invoke

_TIMEOUT_S = 60
COST = common_pb2.Cost(held={"cpu": 5400.0, "memory": 36000.0}, used={"tokens_out": 8.0, "calls:search": 2.0})


class Clients(client_service_pb2_grpc.ClientServiceServicer):
    def __init__(self, asked: list[Any]) -> None:
        self.asked = asked

    def ListJobs(self, request: Any, context: Any) -> client_service_pb2.ListJobsResponse:  # noqa: N802
        left = duration_pb2.Duration(seconds=95)
        return client_service_pb2.ListJobsResponse(
            jobs=[
                job_pb2.JobStatus(spec=job_pb2.JobSpec(job_id="held"), sessions=2, actions={"running": 3}, cost=COST),
                job_pb2.JobStatus(spec=job_pb2.JobSpec(job_id="left"), expires_in=left, failures={"infra": 1}),
                job_pb2.JobStatus(
                    spec=job_pb2.JobSpec(job_id="gone"), expired=True, closes_in=duration_pb2.Duration(seconds=84600)
                ),
                job_pb2.JobStatus(spec=job_pb2.JobSpec(job_id="old", detached=True)),
            ]
        )

    def GetServerInfo(self, request: Any, context: Any) -> client_service_pb2.GetServerInfoResponse:  # noqa: N802
        return client_service_pb2.GetServerInfoResponse(prices={"cpu": 0.001, "tokens_out": 0.5, "calls": 3.0})

    def CancelWork(self, request: Any, context: Any) -> client_service_pb2.CancelWorkResponse:  # noqa: N802
        self.asked.append(request)
        return client_service_pb2.CancelWorkResponse()

    def CancelAction(self, request: Any, context: Any) -> client_service_pb2.CancelActionResponse:  # noqa: N802
        self.asked.append(request)
        return client_service_pb2.CancelActionResponse()

    def CloseJob(self, request: Any, context: Any) -> client_service_pb2.CloseJobResponse:  # noqa: N802
        if request.job_id != "held":
            context.abort(grpc.StatusCode.NOT_FOUND, "names no open job")
        self.asked.append(request)
        return client_service_pb2.CloseJobResponse()


class Admins(admin_service_pb2_grpc.AdminServiceServicer):
    def __init__(self, asked: list[Any]) -> None:
        self.asked = asked

    def DrainManager(self, request: Any, context: Any) -> admin_service_pb2.DrainManagerResponse:  # noqa: N802
        self.asked.append(request)
        sandbox = manager_service_pb2.SandboxState(job_id="job", trajectory_id="t-1", sandbox_id="s#1")
        return admin_service_pb2.DrainManagerResponse(sandboxes=[sandbox], sandbox_count=1, attempts=2)


class Server:
    """Where it listens, and what it was asked."""

    def __init__(self, address: str, asked: list[Any]) -> None:
        self.address = address
        self.asked = asked

    def run(self, *arguments: str) -> Result:
        return invoke(*arguments, "--scheduler", self.address, COLUMNS="160")


@pytest.fixture
def server() -> Iterator[Server]:
    asked: list[Any] = []
    grpc_server = grpc.server(futures.ThreadPoolExecutor(2))
    client_service_pb2_grpc.add_ClientServiceServicer_to_server(Clients(asked), grpc_server)  # type: ignore[abstract]
    admin_service_pb2_grpc.add_AdminServiceServicer_to_server(Admins(asked), grpc_server)  # type: ignore[abstract]
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    grpc_server.start()
    yield Server(f"127.0.0.1:{port}", asked)
    grpc_server.stop(None).wait(_TIMEOUT_S)


def test_jobs_tells_who_holds_them_and_when_they_expire(server: Server) -> None:
    done = server.run("jobs")
    assert done.exit_code == 0, done.stderr
    lives = {"held": "held", "left": "expires in 95 s", "gone": "expired, closes in 23.5 h", "old": "detached"}
    for job_id, life in lives.items():
        (row,) = [line for line in done.stdout.splitlines() if f" {job_id} " in line and life in line]
        assert row
    listed = {job["job_id"]: job for job in json.loads(server.run("jobs", "--json").stdout)["jobs"]}
    assert (listed["held"]["sessions"], listed["held"]["actions"]) == (2, {"running": 3})
    assert "15.40, 1.50 core h, 10.00 GiB h, 8 tokens" in done.stdout
    assert listed["held"]["cost"]["used"] == {"tokens_out": 8.0, "calls:search": 2.0}
    assert (listed["held"]["money"], listed["old"]["money"]) == (pytest.approx(5.4 + 4.0 + 6.0), 0.0)
    assert (listed["left"]["expires_in_s"], listed["held"]["expires_in_s"]) == (95.0, None)


def test_work_is_cancelled_as_a_whole_or_in_part(server: Server) -> None:
    for part in ((), ("--group", "g"), ("--trajectory", "t"), ("--action", "a")):
        done = server.run("cancel", "job", *part, "--reason", "too old")
        assert done.exit_code == 0, done.stderr
    whole, group, trajectory, action = server.asked
    assert (whole.job_id, whole.group_id, whole.trajectory_id, whole.reason) == ("job", "", "", "too old")
    assert (group.group_id, trajectory.trajectory_id) == ("g", "t")
    assert (action.key.job_id, action.key.action_id, action.reason) == ("job", "a", "too old")
    both = server.run("cancel", "job", "--group", "g", "--action", "a")
    assert (both.exit_code, len(server.asked)) == (2, 4)
    assert "at most one of --group, --trajectory and --action" in both.stderr


def test_jobs_are_closed_and_managers_drained(server: Server) -> None:
    assert server.run("close", "held").stdout == "closed job held\n"
    told = json.loads(server.run("drain", "m-1", "--deadline", "90", "--json").stdout)
    sandbox = {"job_id": "job", "trajectory_id": "t-1", "sandbox_id": "s#1"}
    assert told == {"manager": "m-1", "sandboxes": [sandbox], "sandbox_count": 1, "attempts": 2}
    shown = server.run("drain", "m-1", "--dry-run").stdout
    assert "t-1" in shown
    assert "has 2 running attempts and 1 sandboxes; they would die with it" in shown
    closed, asked, tried = server.asked
    assert (closed.job_id, asked.manager_id, asked.deadline_s, asked.dry_run) == ("held", "m-1", 90.0, False)
    assert (tried.HasField("deadline_s"), tried.dry_run) == (False, True)
    unknown = server.run("close", "other")
    assert unknown.exit_code == 1
    assert unknown.stderr.startswith("callsheet: NOT_FOUND")
