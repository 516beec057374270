"""Requests of clients that break a rule each, and what their refusals must say."""

from __future__ import annotations

import math

import grpc
from callsheet.v1 import action_pb2, client_service_pb2, common_pb2, job_pb2

from tests.support.bad_request import INVALID, NOT_FOUND, PRECONDITION, Bad
from tests.support.bad_weights import BAD_WEIGHTS
from tests.support.client_items import (
    Item,
    after,
    file,
    in_session,
    job,
    key,
    need,
    reference,
    spec,
    step,
    times,
    trajectory,
)

_END = client_service_pb2.CloseTrajectoryRequest
_CANCEL = client_service_pb2.CancelActionRequest
_WORK = client_service_pb2.CancelWorkRequest
_PUBLISH = client_service_pb2.PublishPolicyVersionRequest
_NESTS = "must nest in"

BAD: dict[str, Bad] = {
    # Jobs and trajectories.
    "job without id": Bad(job(job_id=""), INVALID, "job.job_id", "", "1 to 256"),
    "job id too long": Bad(job(job_id="x" * 257), INVALID, "job.job_id", "xxx", "1 to 256"),
    "job id with a control character": Bad(job(job_id="a\nb"), INVALID, "job.job_id", "a\nb", "printable"),
    "unknown priority class": Bad(job(priority_class=99), INVALID, "job.priority_class", "99", "is not a value"),
    "negative job weight": Bad(job(share=-1.0), INVALID, "job.share", "-1.0", "between 0"),
    "job weight that is no number": Bad(job(share=math.nan), INVALID, "job.share", "nan", "between 0"),
    "negative max_actions": Bad(job(max_actions=-1), INVALID, "job.max_actions", "-1", "at least 0"),
    "negative max_staleness": Bad(
        job(staleness=job_pb2.Staleness(max_versions=-2)), INVALID, "job.staleness.max_versions", "-2", "at least 0"
    ),
    "job with another body": Bad(
        job(job_id="job", share=2.0), grpc.StatusCode.ALREADY_EXISTS, "job.job_id", "job", "another specification"
    ),
    "close of a job without id": Bad(Item(close_job=""), INVALID, "job_id", "", "1 to 256"),
    "close of an unknown job": Bad(Item(close_job="none"), NOT_FOUND, "job_id", "none", "no open job"),
    "trajectory without id": Bad(trajectory(trajectory_id=""), INVALID, "trajectory.trajectory_id", "", "1 to 256"),
    "trajectory of an unknown job": Bad(trajectory(job_id="none"), NOT_FOUND, "job_id", "none", "no open job"),
    "group of nobody": Bad(
        trajectory(group=job_pb2.GroupSpec(group_id="g")), INVALID, "trajectory.group.size", "0", "at least 1"
    ),
    "quorum above size": Bad(
        trajectory(group=job_pb2.GroupSpec(group_id="g", size=2, quorum=3)),
        INVALID,
        "trajectory.group.quorum",
        "3",
        "between 0 and 2",
    ),
    "negative idle timeout": Bad(
        trajectory(idle_timeout=after(-1)), INVALID, "trajectory.idle_timeout", "-0.001 s", "between 0 and 30 days"
    ),
    "no deadline at all": Bad(trajectory(deadline=after(0)), INVALID, "trajectory.deadline", "0 s", "must be above 0"),
    "a negative budget": Bad(
        trajectory(group=job_pb2.GroupSpec(group_id="g", size=2, infra_budget=-1)),
        INVALID,
        "trajectory.group.infra_budget",
        "-1",
        "at least 0",
    ),
    "no grace at all": Bad(job(grace=after(0)), INVALID, "job.grace", "0 s", "must be above 0"),
    "close with another end": Bad(
        Item(close_trajectory=_END(job_id="job", trajectory_id="closed", end=job_pb2.TRAJECTORY_END_LOST)),
        grpc.StatusCode.ALREADY_EXISTS,
        "end",
        "lost",
        "was closed as completed",
    ),
    "trajectory with another body": Bad(
        trajectory(trajectory_id="open", idle_timeout=after(5000)),
        grpc.StatusCode.ALREADY_EXISTS,
        "trajectory.trajectory_id",
        "open",
        "another spec",
    ),
    "unknown end": Bad(
        Item(close_trajectory=_END(job_id="job", trajectory_id="open", end=9)),  # type: ignore[arg-type]
        INVALID,
        "end",
        "9",
        "is not a value",
    ),
    "close of an unknown trajectory": Bad(
        Item(close_trajectory=_END(job_id="job", trajectory_id="none")), NOT_FOUND, "trajectory_id", "none", "names no"
    ),
    # Actions. All rules of their messages are in tests/unit/protos/test_rules_of_actions.py.
    "no payload": Bad(spec(lambda action: action.ClearField("generate")), INVALID, "payload", "", "must be one of"),
    "action without id": Bad(spec(action_id=""), INVALID, "action_id", "", "1 to 256"),
    "action of an unknown job": Bad(spec(job_id="none"), NOT_FOUND, "job_id", "none", "no open job"),
    "action of an unknown trajectory": Bad(spec(trajectory_id="none"), NOT_FOUND, "trajectory_id", "none", "names no"),
    "action of a closed trajectory": Bad(
        spec(trajectory_id="closed"), PRECONDITION, "trajectory_id", "closed", "was closed as completed"
    ),
    "env_step without trajectory": Bad(step(trajectory_id=""), INVALID, "trajectory_id", "", "must be set"),
    "env_step without sandbox": Bad(step(), PRECONDITION, "trajectory_id", "open", "has no sandbox"),
    "span without its trace": Bad(
        spec(traceparent="00-00f067aa0ba902b7-01"), INVALID, "traceparent", "00-00f0", "must be like"
    ),
    "oversized action": Bad(
        spec(lambda action: action.generate.prompt_token_ids.extend([2**30] * 500_000)),
        INVALID,
        "action",
        " bytes",
        "at most 2097152 bytes",
    ),
    "half a gpu": Bad(
        need(resource="gpu", min_milli_units=500),
        INVALID,
        "demand.resources[0].min_milli_units",
        "500",
        "only 'cpu' has fractions",
    ),
    "more than any node has": Bad(
        need(min_milli_units=10_000_000), PRECONDITION, "demand.resources[cpu]", "10000", "more units than any node"
    ),
    "a resource that no node has": Bad(
        need(resource="gpu"), PRECONDITION, "demand.resources[gpu]", "1", "more units than any node"
    ),
    "a service that nobody hosts": Bad(
        spec(service="elsewhere"), PRECONDITION, "service", "elsewhere", "no registered manager serves"
    ),
    "heartbeat longer than all": Bad(
        times(heartbeat=6000, schedule_to_close=5000), INVALID, "timeouts.heartbeat", "6.0 s", _NESTS
    ),
    "negative attempts": Bad(
        spec(retry=action_pb2.RetryPolicy(max_attempts=-1)), INVALID, "retry.max_attempts", "-1", "at least 0"
    ),
    "no tokens": Bad(
        spec(lambda action: action.generate.ClearField("prompt_token_ids")),
        INVALID,
        "generate.prompt_token_ids",
        "[]",
        "at least one token",
    ),
    "stdin in a session": Bad(
        in_session("main", python="1", stdin=common_pb2.Blob(inline=b"x")),
        INVALID,
        "env_step.command.stdin",
        "main",
        "must be unset in a session",
    ),
    "file outside": Bad(file("a/../../b"), INVALID, "env_reset.files[0].path", "a/../../b", "contain '..'"),
    "path too long": Bad(file("d/" * 2049), INVALID, "env_reset.files[0].path", "d/d/", "at most 4096 bytes"),
    "name too long": Bad(file("x" * 256), INVALID, "env_reset.files[0].path", "xxx", "255 between two slashes"),
    "oversized inline file": Bad(
        file(content=common_pb2.Blob(inline=b"x" * 65_537)),
        INVALID,
        "env_reset.files[0].content.inline",
        "65537 bytes",
        "at most 65536 bytes",
    ),
    "no digest": Bad(
        file(content=reference("XYZ")),
        INVALID,
        "env_reset.files[0].content.reference.sha256",
        "XYZ",
        "64 lower-case hexadecimal",
    ),
    "unknown payload": Bad(
        file(content=reference("ab" * 32)), PRECONDITION, "reference.sha256", "ab" * 32, "names no stored payload"
    ),
    "tool_call without service": Bad(
        spec(tool_call=action_pb2.ToolCallInput(method="get")), INVALID, "service", "", "1 to 256"
    ),
    "suite without command": Bad(
        spec(reward=action_pb2.RewardInput(test_suite=action_pb2.TestSuiteInput())),
        INVALID,
        "reward.test_suite.command",
        "",
        "must be set",
    ),
    # Cancels and versions.
    "cancel of nothing": Bad(Item(cancel=_CANCEL()), INVALID, "key.job_id", "", "1 to 256"),
    "cancel of an unknown action": Bad(
        Item(cancel=_CANCEL(key=key("job", "none"))), NOT_FOUND, "key", "job/none", "names no action"
    ),
    "reason too long": Bad(
        Item(cancel=_CANCEL(key=key("job", "none"), reason="r" * 257)), INVALID, "reason", "rrr", "at most 256"
    ),
    "reason with NUL": Bad(
        Item(cancel=_CANCEL(key=key("job", "none"), reason="a\0b")), INVALID, "reason", "a\0b", "none of them NUL"
    ),
    "negative version": Bad(
        Item(publish_policy_version=_PUBLISH(job_id="job", version=-1)), INVALID, "version", "-1", "at least 0"
    ),
    "cancel of a group and a trajectory": Bad(
        Item(cancel_work=_WORK(job_id="job", group_id="g", trajectory_id="open")),
        INVALID,
        "group_id",
        "g",
        "must be empty where trajectory_id is set",
    ),
    "cancel of an unknown group": Bad(
        Item(cancel_work=_WORK(job_id="job", group_id="g")), NOT_FOUND, "group_id", "g", "names no group"
    ),
    "cancel of an unknown job": Bad(Item(cancel_work=_WORK(job_id="none")), NOT_FOUND, "job_id", "none", "no open job"),
    "version of an unknown job": Bad(
        Item(publish_policy_version=_PUBLISH(job_id="none", version=1)), NOT_FOUND, "job_id", "none", "no open job"
    ),
    **BAD_WEIGHTS,
}
