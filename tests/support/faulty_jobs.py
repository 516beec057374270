"""Jobs, trajectories and groups of the faulty service: what the contract says of their opening, closing and status."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import grpc
from callsheet.v1 import client_service_pb2, common_pb2, job_pb2
from callsheet.v1.google_rpc import status_pb2

Key = tuple[str, str]
Status = Any  # google.rpc.Status, whichever module declares it
_OPEN = job_pb2.TRAJECTORY_END_UNSPECIFIED


def refusal(code: grpc.StatusCode, *, field: str, value: str, rule: str, retry_delay_s: float | None = None) -> Status:
    """Returns a google.rpc.Status with one ErrorDetail."""
    detail = common_pb2.ErrorDetail(field=field, value=value, rule=rule)
    if retry_delay_s is not None:
        detail.retry_delay.FromNanoseconds(round(retry_delay_s * 1e9))
    status: Status = status_pb2.Status(code=code.value[0], message=f"{field}: {rule}")
    status.details.add().Pack(detail)
    return status


def not_found(field: str, value: str) -> Status:
    """The refusal of what is not there."""
    return refusal(grpc.StatusCode.NOT_FOUND, field=field, value=value, rule="there is none")


def put_once(known: dict[Any, Any], key: Any, body: Any) -> Status | None:
    """Keeps one body for a key."""
    if known.setdefault(key, body) == body:
        return None
    return refusal(grpc.StatusCode.ALREADY_EXISTS, field="id", value=str(key), rule="the id has another body")


class Jobs:
    """The jobs of a service.

    Attributes:
        jobs: Open jobs.
        trajectories: Trajectories of open jobs, those that were closed included.
        closed: How trajectories ended.
    """

    def __init__(self, cancel_actions: Callable[[str, str, str], None]) -> None:
        """Args:
        cancel_actions: Cancels the open actions of a job, or of one of its trajectories, with a reason.
        """
        self.jobs: dict[str, job_pb2.JobSpec] = {}
        self.trajectories: dict[Key, job_pb2.TrajectorySpec] = {}
        self.closed: dict[Key, job_pb2.TrajectoryEnd.ValueType] = {}
        self._reasons: dict[Key, str] = {}
        self._cancelled_groups: set[Key] = set()
        self._cancel_actions = cancel_actions

    def open_job(self, spec: job_pb2.JobSpec) -> client_service_pb2.ItemOpened | Status:
        known = spec.job_id in self.jobs
        return put_once(self.jobs, spec.job_id, spec) or _opened(known)

    def close_job(self, job_id: str) -> Status | None:
        if job_id not in self.jobs:
            return not_found("job_id", job_id)
        self._cancel_actions(job_id, "", "the job was closed")
        for key in [key for key in self.trajectories if key[0] == job_id]:
            self._end(key, job_pb2.TRAJECTORY_END_ABANDONED, "the job was closed")
            del self.trajectories[key]
        del self.jobs[job_id]
        return None

    def hold(self, job_id: str) -> Status | None:
        return None if job_id in self.jobs else not_found("job_id", job_id)

    def open_trajectory(self, spec: job_pb2.TrajectorySpec) -> client_service_pb2.ItemOpened | Status:
        key = (spec.job_id, spec.trajectory_id)
        if spec.job_id not in self.jobs:
            return not_found("job_id", spec.job_id)
        known = key in self.trajectories
        if not known and spec.HasField("group") and (refused := self._no_seat(spec)):
            return refused
        if refused := put_once(self.trajectories, key, spec):
            return refused
        return _opened(known, self.closed.get(key, _OPEN) if known else _OPEN)

    def close_trajectory(self, job_id: str, trajectory_id: str, end: job_pb2.TrajectoryEnd.ValueType) -> Status | None:
        key = (job_id, trajectory_id)
        if key not in self.trajectories:
            return not_found("trajectory_id", trajectory_id)
        if self.closed.get(key, end) != end:
            rule = f"it has ended before: {self._reasons[key]}"
            return refusal(grpc.StatusCode.ALREADY_EXISTS, field="end", value=str(end), rule=rule)
        self._end(key, end, "closed by its client")
        return None

    def cancel_work(self, request: client_service_pb2.CancelWorkRequest) -> Status | None:
        if request.job_id not in self.jobs:
            return not_found("job_id", request.job_id)
        keys: Iterable[Key] = [key for key in self.trajectories if key[0] == request.job_id]
        if request.trajectory_id:
            keys = [key for key in keys if key[1] == request.trajectory_id]
        elif request.group_id:
            keys = self._members(request.job_id, request.group_id)
            self._cancelled_groups.add((request.job_id, request.group_id))
        if not keys and (request.trajectory_id or request.group_id):
            return not_found("trajectory_id", request.trajectory_id)
        for key in keys:
            self._end(key, job_pb2.TRAJECTORY_END_ABANDONED, request.reason)
        if not (request.trajectory_id or request.group_id):
            self._cancel_actions(request.job_id, "", request.reason)
        return None

    def job_statuses(self, request: client_service_pb2.ListJobsRequest) -> list[job_pb2.JobStatus]:
        return [
            job_pb2.JobStatus(spec=spec, sessions=1, open_trajectories=len(self._open(job_id)))
            for job_id, spec in self.jobs.items()
            if request.job_id in {"", job_id}
        ]

    def trajectory_statuses(
        self, request: client_service_pb2.ListTrajectoriesRequest
    ) -> list[job_pb2.TrajectoryStatus]:
        found = []
        for key in sorted(self.trajectories):
            spec, end = self.trajectories[key], self.closed.get(key, _OPEN)
            asked = request.trajectory_id in {"", key[1]} and request.group_id in {"", spec.group.group_id}
            if key[0] == request.job_id and key[1] > request.after and asked and (request.closed or end == _OPEN):
                found.append(job_pb2.TrajectoryStatus(spec=spec, end=end, reason=self._reasons.get(key, "")))
        return found

    def group_statuses(self, request: client_service_pb2.ListGroupsRequest) -> list[job_pb2.GroupStatus]:
        specs = {spec.group.group_id: spec.group for key, spec in self.trajectories.items() if key[0] == request.job_id}
        names = sorted(name for name in specs if name and request.group_id in {"", name} and name > request.after)
        return [self._group(request.job_id, specs[name]) for name in names]

    def _group(self, job_id: str, spec: job_pb2.GroupSpec) -> job_pb2.GroupStatus:
        ends = {key[1]: self.closed.get(key, _OPEN) for key in self._members(job_id, spec.group_id)}

        def of(end: job_pb2.TrajectoryEnd.ValueType) -> list[str]:
            return sorted(name for name, ended in ends.items() if ended == end)

        completed = of(job_pb2.TRAJECTORY_END_COMPLETED)
        return job_pb2.GroupStatus(
            spec=spec,
            open=of(_OPEN),
            completed=completed,
            abandoned=of(job_pb2.TRAJECTORY_END_ABANDONED),
            lost=of(job_pb2.TRAJECTORY_END_LOST),
            has_quorum=len(completed) >= (spec.quorum or spec.size),
        )

    def _no_seat(self, spec: job_pb2.TrajectorySpec) -> Status | None:
        members = self._members(spec.job_id, spec.group.group_id)
        if any(self.trajectories[key].group != spec.group for key in members):
            return refusal(
                grpc.StatusCode.ALREADY_EXISTS, field="group", value=spec.group.group_id, rule="it has another body"
            )
        group = self._group(spec.job_id, spec.group)
        taken = len(members) - len(group.lost)
        cancelled = (spec.job_id, spec.group.group_id) in self._cancelled_groups
        if not (cancelled or taken >= spec.group.size):
            return None
        return refusal(
            grpc.StatusCode.FAILED_PRECONDITION, field="group", value=spec.group.group_id, rule="it takes no more"
        )

    def _end(self, key: Key, end: job_pb2.TrajectoryEnd.ValueType, reason: str) -> None:
        if key in self.closed:
            return
        self.closed[key] = end
        self._reasons[key] = reason
        self._cancel_actions(*key, reason)
        spec = self.trajectories[key]
        if spec.HasField("group") and self._group(key[0], spec.group).has_quorum:
            for member in self._members(key[0], spec.group.group_id):
                self._end(member, job_pb2.TRAJECTORY_END_ABANDONED, "redundant: its group has its quorum")

    def _members(self, job_id: str, group_id: str) -> list[Key]:
        members = self.trajectories.items()
        return [key for key, spec in members if key[0] == job_id and spec.group.group_id == group_id]

    def _open(self, job_id: str) -> list[Key]:
        return [key for key in self.trajectories if key[0] == job_id and key not in self.closed]


def _opened(
    known: bool, end: job_pb2.TrajectoryEnd.ValueType = job_pb2.TRAJECTORY_END_UNSPECIFIED
) -> client_service_pb2.ItemOpened:
    if end != _OPEN:
        return client_service_pb2.ItemOpened(opening=job_pb2.OPENING_CLOSED, end=end)
    return client_service_pb2.ItemOpened(opening=job_pb2.OPENING_ATTACHED if known else job_pb2.OPENING_CREATED)
