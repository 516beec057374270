"""Messages of a made-up run, as a source of the dashboard answers them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from callsheet.client.errors import RefusalCode, refused
from callsheet.v1 import (
    action_pb2,
    admin_service_pb2,
    client_service_pb2,
    common_pb2,
    job_pb2,
    outcome_pb2,
    payload_service_pb2,
)
from google.protobuf.timestamp_pb2 import Timestamp

NOW = 1_000_000.0
KIND = action_pb2.ActionKind
STATE = admin_service_pb2.ActionState


def at(seconds: float) -> Timestamp:
    """So long before or after the made-up now."""
    stamp = Timestamp()
    stamp.FromNanoseconds(int((NOW + seconds) * 1e9))
    return stamp


def past(action_id: str, kind: int, start: float, wait_s: float, run_s: float, **more: Any) -> Any:
    """An action that has ended, submitted at `start`."""
    line = outcome_pb2.Timeline(submitted=at(start), started=at(start + wait_s), ended=at(start + wait_s + run_s))
    told = {"state": STATE.ACTION_STATE_SUCCEEDED, "manager_id": "m", "node_id": "n", "trajectory_id": "t", **more}
    key = common_pb2.ActionKey(job_id="j", action_id=action_id)
    return admin_service_pb2.ActionHistory(key=key, kind=KIND.ValueType(kind), timeline=line, **told)


def trajectory(
    name: str, opened: float, closed: float | None = None, **more: Any
) -> admin_service_pb2.TrajectoryHistory:
    """A trajectory that is open where it has no end."""
    told: dict[str, Any] = {"policy_version": 3, "admitted": True, "opened": at(opened), **more}
    if closed is not None:
        told |= {"closed": at(closed), "end": told.get("end", job_pb2.TRAJECTORY_END_COMPLETED)}
    return admin_service_pb2.TrajectoryHistory(trajectory_id=name, **told)


class MadeUpRun:
    """A `Source` of messages that a test sets."""

    def __init__(self, scope: str = "", last_alive: float | None = None) -> None:
        self.scope, self.last_alive = scope, last_alive
        self.status = admin_service_pb2.GetStatusResponse()
        self.trajectories: list[admin_service_pb2.TrajectoryHistory] = []
        self.summary = admin_service_pb2.TrajectorySummary()
        self.actions: list[admin_service_pb2.ActionHistory] = []
        self.groups: list[job_pb2.GroupStatus] = []
        self.explained: dict[str, admin_service_pb2.ExplainResponse] = {}
        self.prices: dict[str, float] = {}
        self.payloads: dict[str, bytes] = {}
        self.asked: list[Any] = []
        self.next_actions = self.next_jobs = ""
        self.closed_jobs: list[admin_service_pb2.ClosedJob] = []

    async def get_server_info(self) -> client_service_pb2.GetServerInfoResponse:
        return client_service_pb2.GetServerInfoResponse(
            caller_scope=self.scope, caller_subject="j" if self.scope == "job" else "", prices=self.prices
        )

    async def get_status(self, request: Any) -> admin_service_pb2.GetStatusResponse:
        return self.status

    async def list_jobs(self, request: Any) -> client_service_pb2.ListJobsResponse:
        found = [each for each in self.status.jobs if request.job_id in {"", each.spec.job_id}]
        if not found:
            raise refused(RefusalCode.NOT_FOUND, field="job_id", rule="is not open")
        return client_service_pb2.ListJobsResponse(jobs=found)

    async def list_groups(self, request: Any) -> client_service_pb2.ListGroupsResponse:
        if not self.groups:
            raise refused(RefusalCode.NOT_FOUND, field="job_id", rule="is not open")
        return client_service_pb2.ListGroupsResponse(groups=self.groups)

    async def list_actions(self, request: Any) -> admin_service_pb2.ListActionsResponse:
        found = [each for each in self.explained.values() if each.key.job_id == request.job_id]
        return admin_service_pb2.ListActionsResponse(actions=found, open=len(found))

    async def explain(self, request: Any) -> admin_service_pb2.ExplainResponse:
        return self.explained[request.key.action_id]

    async def what_if(self, request: Any) -> admin_service_pb2.WhatIfResponse:
        self.asked.append(request)
        return admin_service_pb2.WhatIfResponse(pool="n", nodes=1, summary="It helps.")

    async def list_closed_jobs(self, request: Any) -> admin_service_pb2.ListClosedJobsResponse:
        self.asked.append(request)
        found = [each for each in self.closed_jobs if request.job_id in {"", each.job_id}]
        return admin_service_pb2.ListClosedJobsResponse(jobs=found[: request.page_size], next_page_token=self.next_jobs)

    async def list_trajectory_history(self, request: Any) -> admin_service_pb2.ListTrajectoryHistoryResponse:
        self.asked.append(request)
        return admin_service_pb2.ListTrajectoryHistoryResponse(
            trajectories=self._chosen(request), summary=self.summary if request.longest else None
        )

    def _chosen(self, request: Any) -> Iterable[admin_service_pb2.TrajectoryHistory]:
        names = set(request.trajectory_ids)
        return [each for each in self.trajectories if not names or each.trajectory_id in names]

    async def list_action_history(self, request: Any) -> admin_service_pb2.ListActionHistoryResponse:
        self.asked.append(request)
        return admin_service_pb2.ListActionHistoryResponse(actions=self.actions, next_page_token=self.next_actions)

    async def get_payload(self, request: Any) -> payload_service_pb2.GetPayloadResponse:
        if request.reference.sha256 not in self.payloads:
            raise refused(RefusalCode.NOT_FOUND, field="reference", rule="is not stored")
        return payload_service_pb2.GetPayloadResponse(chunk=self.payloads[request.reference.sha256])

    async def cancel_action(self, request: Any) -> client_service_pb2.CancelActionResponse:
        self.asked.append(request)
        return client_service_pb2.CancelActionResponse()

    async def close_job(self, request: Any) -> client_service_pb2.CloseJobResponse:
        self.asked.append(request)
        return client_service_pb2.CloseJobResponse()

    async def drain_manager(self, request: Any) -> admin_service_pb2.DrainManagerResponse:
        self.asked.append(request)
        return admin_service_pb2.DrainManagerResponse()
