"""Rows of the journal as messages, and what other answers have in common with them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from callsheet.scheduler.core.words.costs import Cost
from callsheet.scheduler.core.words.records import ActionSummary
from callsheet.scheduler.store.summaries import decode_summary
from callsheet.v1 import action_pb2, admin_service_pb2, common_pb2, job_pb2, outcome_pb2
from google.protobuf import timestamp_pb2

JOB_CLOSED = "its job was closed"


def trajectory_message(row: Any, *, job_closed: bool) -> admin_service_pb2.TrajectoryHistory:
    """A trajectory; `row` has the columns of its table."""
    message = admin_service_pb2.TrajectoryHistory(
        trajectory_id=row.trajectory_id,
        group_id=row.group_id,
        policy_version=row.policy_version,
        reason=row.reason,
        reward=row.reward,
        # What else tells of it is in the core.
        admitted=not row.end and (row.began or row.had_sandbox),
        sandbox_id=row.sandbox_id,
        manager_id=row.manager_id,
        cost=cost_message(row.cost.spent) if row.cost is not None else None,
    )
    fill_time(message.opened, row.opened_at)
    if row.end:
        message.end = job_pb2.TrajectoryEnd.Value(f"TRAJECTORY_END_{row.end.upper()}")
        fill_time(message.closed, row.closed_at)
    elif job_closed:
        # It went with its job.
        message.end, message.reason, message.admitted = job_pb2.TRAJECTORY_END_ABANDONED, JOB_CLOSED, False
    return message


def action_message(job_id: str, row: Any, spec: bytes, outcome: bytes | None) -> admin_service_pb2.ActionHistory:
    """An action, without contents; `row` has the short columns of its table."""
    message = admin_service_pb2.ActionHistory(
        trajectory_id=row.trajectory_id,
        kind=action_pb2.ActionKind.ValueType(row.kind),
        state=state_named(row.state),
        attempts=row.attempt,
        manager_id=row.manager_id,
        outcome_bytes=row.outcome_bytes,
    )
    message.key.job_id, message.key.action_id = job_id, row.action_id
    if row.summary is not None:
        fill_ended(message, decode_summary(job_id, row.action_id, row.summary))
    elif spec:
        given = action_pb2.ActionSpec.FromString(spec)
        message.label, message.task, message.service = given.label, given.task, given.service
    fill_time(message.timeline.submitted, row.submitted_at)
    if outcome is not None:
        _fill_outcome(message, outcome_pb2.Outcome.FromString(outcome))
    return message


def closed_job_message(row: Any) -> admin_service_pb2.ClosedJob:
    """A closed job; `row` has the columns of its table, and `reopened`."""
    message = admin_service_pb2.ClosedJob(
        job_id=row.job_id, reason=row.reason, cost=cost_message(Cost(*row.cost)), reopened=row.reopened
    )
    fill_time(message.opened, row.opened_at)
    fill_time(message.closed, row.closed_at)
    return message


def story_in(outcome: outcome_pb2.Outcome) -> Iterator[admin_service_pb2.StoryEvent]:
    """Yields the events of an action's story that its outcome shows."""
    timeline = outcome.timeline
    steps = (
        (timeline.submitted, "submitted"),
        (timeline.dispatched, f"attempt {outcome.attempts} dispatched to {outcome.manager_id}"),
        (timeline.started, f"attempt {outcome.attempts} started"),
        (timeline.ended, f"outcome: {outcome.WhichOneof('result')}"),
    )
    return (admin_service_pb2.StoryEvent(time=at, event=event) for at, event in steps if at.seconds)


def fill_ended(message: admin_service_pb2.ActionHistory, summary: ActionSummary) -> None:
    """Adds what is told of an action that has its outcome."""
    message.reason, message.attempts = summary.reason, summary.attempts
    message.manager_id, message.node_id = summary.manager_id, summary.node_id
    message.label, message.task, message.service = summary.label, summary.task, summary.service
    if summary.failure:
        message.failure = outcome_pb2.FailureKind.Value(f"FAILURE_KIND_{summary.failure}")
    message.timeline.queue_s, message.timeline.execution_s = summary.queue_s, summary.execution_s
    fill_time(message.timeline.ended, summary.ended_at)


def task_of(row: Any) -> str:
    """The task of an action; `row` has its summary, or its spec if it is open."""
    if row.summary is not None:
        return decode_summary("", "", row.summary).task
    return action_pb2.ActionSpec.FromString(row.spec).task


def score_in(outcome: bytes) -> float:
    """The score in the outcome of a reward that succeeded."""
    return outcome_pb2.Outcome.FromString(outcome).succeeded.reward.score


def state_named(name: str) -> admin_service_pb2.ActionState.ValueType:
    """The state of this name in the core."""
    return admin_service_pb2.ActionState.Value(f"ACTION_STATE_{name.upper()}")


def fill_time(message: timestamp_pb2.Timestamp, time: float) -> None:
    """Sets a Timestamp from seconds since the epoch."""
    message.seconds = seconds = int(time)
    message.nanos = int((time - seconds) * 1e9)


def cost_message(cost: Cost) -> common_pb2.Cost:
    """A cost as it is told."""
    return common_pb2.Cost(held=cost.held, used=cost.used)


def _fill_outcome(message: admin_service_pb2.ActionHistory, outcome: outcome_pb2.Outcome) -> None:
    message.timeline.MergeFrom(outcome.timeline)
    if outcome.HasField("usage"):
        message.usage.CopyFrom(outcome.usage)
    partly = {"failed": outcome.failed.partial, "cancelled": outcome.cancelled.partial}
    succeeded = partly.get(outcome.WhichOneof("result") or "", outcome.succeeded)
    if succeeded.HasField("generate"):
        generated = succeeded.generate
        message.policy_versions.extend(generated.policy_versions)
        message.output_tokens, message.cached_tokens = len(generated.token_ids), generated.cached_tokens
    if outcome.succeeded.HasField("reward"):
        message.score = outcome.succeeded.reward.score
