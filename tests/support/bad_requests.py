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
    elastic,
    file,
    in_session,
    job,
    key,
    need,
    reference,
    reset,
    sampling,
    spec,
    step,
    table,
    times,
    trajectory,
    two_entries,
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
    # Actions: who they are.
    "no payload": Bad(spec(lambda action: action.ClearField("generate")), INVALID, "payload", "", "must be one of"),
    "action without job": Bad(spec(job_id=""), INVALID, "job_id", "", "1 to 256"),
    "action without id": Bad(spec(action_id=""), INVALID, "action_id", "", "1 to 256"),
    "action id too long": Bad(spec(action_id="y" * 300), INVALID, "action_id", "yyy", "1 to 256"),
    "action of an unknown job": Bad(spec(job_id="none"), NOT_FOUND, "job_id", "none", "no open job"),
    "action of an unknown trajectory": Bad(spec(trajectory_id="none"), NOT_FOUND, "trajectory_id", "none", "names no"),
    "action of a closed trajectory": Bad(
        spec(trajectory_id="closed"), PRECONDITION, "trajectory_id", "closed", "was closed as completed"
    ),
    "env_step without trajectory": Bad(step(trajectory_id=""), INVALID, "trajectory_id", "", "1 to 256"),
    "env_step without sandbox": Bad(step(), PRECONDITION, "trajectory_id", "open", "has no sandbox"),
    "label too long": Bad(spec(label="l" * 257), INVALID, "label", "lll", "at most 256"),
    "task too long": Bad(spec(task="k" * 257), INVALID, "task", "kkk", "at most 256"),
    "span without its trace": Bad(
        spec(traceparent="00-00f067aa0ba902b7-01"), INVALID, "traceparent", "00-00f0", "must be like"
    ),
    "negative weight": Bad(spec(weight=-0.5), INVALID, "weight", "-0.5", "between 0"),
    "weight that sums to infinity": Bad(spec(weight=1e308), INVALID, "weight", "1e+308", "and 1000000"),
    "unknown unservable": Bad(spec(unservable=7), INVALID, "unservable", "7", "is not a value"),
    "negative expected duration": Bad(
        spec(expected_duration=after(-20)), INVALID, "expected_duration", "-0.02 s", "between 0 and 30 days"
    ),
    "oversized action": Bad(
        spec(lambda action: action.generate.prompt_token_ids.extend([2**30] * 500_000)),
        INVALID,
        "action",
        " bytes",
        "at most 2097152 bytes",
    ),
    # Actions: demand.
    "resource without name": Bad(need(resource=""), INVALID, "demand.resources[0].resource", "", "1 to 256"),
    "resource named twice": Bad(
        spec(demand=two_entries()), INVALID, "demand.resources[1].resource", "cpu", "is named twice"
    ),
    "negative units": Bad(need(min_milli_units=-1), INVALID, "demand.resources[0].min_milli_units", "-1", "at least 0"),
    "range upside down": Bad(
        need(min_milli_units=3000, max_milli_units=2000),
        INVALID,
        "demand.resources[0].max_milli_units",
        "2000",
        "at least min_milli_units (3000)",
    ),
    "half a gpu": Bad(
        need(resource="gpu", min_milli_units=500),
        INVALID,
        "demand.resources[0].min_milli_units",
        "500",
        "only 'cpu' has fractions",
    ),
    "unknown hold": Bad(need(hold=5), INVALID, "demand.resources[0].hold", "5", "is not a value"),
    "generate that holds": Bad(
        need(hold=action_pb2.HOLD_TRAJECTORY),
        INVALID,
        "demand.resources[0].hold",
        "HOLD_TRAJECTORY",
        "only for env_reset",
    ),
    "no speed-up curve": Bad(elastic(), INVALID, "demand.resources[0].speed_up", "", "exactly one of"),
    "parallel fraction above 1": Bad(
        elastic(amdahl_fraction=1.5), INVALID, "demand.resources[0].speed_up.amdahl_fraction", "1.5", "between 0"
    ),
    "speed-up of a fixed entry": Bad(
        need(speed_up=action_pb2.SpeedUp(amdahl_fraction=0.5)),
        INVALID,
        "demand.resources[0].speed_up",
        "amdahl_fraction",
        "only for an elastic entry",
    ),
    "empty table": Bad(table(), INVALID, "demand.resources[0].speed_up.table.points", "0 points", "1 to 256 points"),
    "table that goes back": Bad(
        table((2, 1.5), (2, 1.6)), INVALID, "demand.resources[0].speed_up.table.points[1].units", "2", "at least 3"
    ),
    "speed-up of 0": Bad(
        table((2, 0.0)), INVALID, "demand.resources[0].speed_up.table.points[0].speed_up", "0", "between 0.01"
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
    # Actions: time.
    "negative schedule_to_start": Bad(
        times(schedule_to_start=-1), INVALID, "timeouts.schedule_to_start", "-0.001 s", "between 0 and 30 days"
    ),
    "negative start_to_close": Bad(times(start_to_close=-1), INVALID, "timeouts.start_to_close", "-0.001 s", "between"),
    "negative schedule_to_close": Bad(
        times(schedule_to_close=-1000), INVALID, "timeouts.schedule_to_close", "-1.0 s", "between"
    ),
    "negative heartbeat": Bad(times(heartbeat=-1), INVALID, "timeouts.heartbeat", "-0.001 s", "between"),
    "half a year": Bad(
        times(schedule_to_close=180 * 24 * 3_600_000), INVALID, "timeouts.schedule_to_close", "s", "30 days"
    ),
    "execution longer than all": Bad(
        times(start_to_close=6000, schedule_to_close=5000), INVALID, "timeouts.start_to_close", "6.0 s", _NESTS
    ),
    "wait longer than all": Bad(
        times(schedule_to_start=6000, schedule_to_close=5000), INVALID, "timeouts.schedule_to_start", "6.0 s", _NESTS
    ),
    "heartbeat longer than all": Bad(
        times(heartbeat=6000, schedule_to_close=5000), INVALID, "timeouts.heartbeat", "6.0 s", _NESTS
    ),
    "heartbeat longer than execution": Bad(
        times(heartbeat=3000, start_to_close=2000), INVALID, "timeouts.heartbeat", "3.0 s", _NESTS
    ),
    "negative attempts": Bad(
        spec(retry=action_pb2.RetryPolicy(max_attempts=-1)), INVALID, "retry.max_attempts", "-1", "at least 0"
    ),
    "backoff that shrinks": Bad(
        spec(retry=action_pb2.RetryPolicy(backoff_multiplier=0.5)),
        INVALID,
        "retry.backoff_multiplier",
        "0.5",
        "at least 1",
    ),
    "negative backoff": Bad(
        spec(retry=action_pb2.RetryPolicy(initial_backoff=after(-5))),
        INVALID,
        "retry.initial_backoff",
        "-0.005 s",
        "between",
    ),
    # Actions: what to do.
    "no tokens": Bad(
        spec(lambda action: action.generate.ClearField("prompt_token_ids")),
        INVALID,
        "generate.prompt_token_ids",
        "[]",
        "at least one token",
    ),
    "negative token": Bad(
        spec(lambda action: action.generate.prompt_token_ids.append(-4)),
        INVALID,
        "generate.prompt_token_ids",
        "-4",
        "must not be negative",
    ),
    "no new tokens": Bad(sampling(max_new_tokens=0), INVALID, "generate.sampling.max_new_tokens", "0", "at least 1"),
    "negative temperature": Bad(sampling(temperature=-1), INVALID, "generate.sampling.temperature", "-1.0", "at least"),
    "endless temperature": Bad(
        sampling(temperature=math.inf), INVALID, "generate.sampling.temperature", "inf", "must be a number"
    ),
    "nucleus above 1": Bad(sampling(top_p=1.5), INVALID, "generate.sampling.top_p", "1.5", "between 0"),
    "negative top_k": Bad(sampling(top_k=-1), INVALID, "generate.sampling.top_k", "-1", "at least 0"),
    "negative stop token": Bad(
        sampling(stop_token_ids=[7, -5]), INVALID, "generate.sampling.stop_token_ids", "-5", "must not be negative"
    ),
    "more disk than can be counted": Bad(
        reset(disk_mib=1 << 62), INVALID, "env_reset.disk_mib", str(1 << 62), "between 0 and 1073741824"
    ),
    "more processes than the kernel has": Bad(
        reset(max_processes=1 << 62), INVALID, "env_reset.max_processes", str(1 << 62), "between 0 and 1000000"
    ),
    "env_step without command": Bad(
        step(env_step=action_pb2.EnvStepInput()), INVALID, "env_step.command", "", "must be set"
    ),
    "no program": Bad(step(action_pb2.Command(working_directory="a")), INVALID, "env_step.command", "", "exactly one"),
    "no arguments": Bad(
        step(action_pb2.Command(argv=action_pb2.Argv())), INVALID, "env_step.command.argv", "[]", "name a program"
    ),
    "empty script": Bad(step(action_pb2.Command(shell="")), INVALID, "env_step.command.shell", "", "must not be empty"),
    "bad variable": Bad(
        step(action_pb2.Command(shell="true", environment={"A=B": "c"})),
        INVALID,
        "env_step.command.environment",
        "A=B",
        "must not be empty nor contain",
    ),
    "working directory outside": Bad(
        step(action_pb2.Command(shell="true", working_directory="../up")),
        INVALID,
        "env_step.command.working_directory",
        "../up",
        "must not be empty nor contain '..'",
    ),
    "negative output": Bad(
        step(action_pb2.Command(shell="true", max_output_bytes=-1)),
        INVALID,
        "env_step.command.max_output_bytes",
        "-1",
        "at least 0",
    ),
    "empty Python": Bad(
        step(action_pb2.Command(python="")), INVALID, "env_step.command.python", "", "must not be empty"
    ),
    "bad session name": Bad(
        in_session("a b", shell="ls"), INVALID, "env_step.session", "a b", "1 to 64 letters, digits"
    ),
    "argument vector in a session": Bad(
        in_session("main", argv=action_pb2.Argv(arguments=["ls"])),
        INVALID,
        "env_step.command.argv",
        "main",
        "must be shell or python in a session",
    ),
    "working directory in a session": Bad(
        in_session("main", shell="ls", working_directory="a"),
        INVALID,
        "env_step.command.working_directory",
        "main",
        "must be unset in a session",
    ),
    "stdin in a session": Bad(
        in_session("main", python="1", stdin=common_pb2.Blob(inline=b"x")),
        INVALID,
        "env_step.command.stdin",
        "main",
        "must be unset in a session",
    ),
    "download outside": Bad(
        step(env_step=action_pb2.EnvStepInput(command=action_pb2.Command(shell="ls"), download=["a", "../b"])),
        INVALID,
        "env_step.download[1]",
        "../b",
        "must not be empty nor contain '..'",
    ),
    "too many downloads": Bad(
        step(env_step=action_pb2.EnvStepInput(command=action_pb2.Command(shell="ls"), download=["a"] * 33)),
        INVALID,
        "env_step.download",
        "33 paths",
        "must have at most 32",
    ),
    "absolute file outside": Bad(file("/../etc"), INVALID, "env_reset.files[0].path", "/../etc", "nor contain '..'"),
    "file outside": Bad(file("a/../../b"), INVALID, "env_reset.files[0].path", "a/../../b", "nor contain '..'"),
    "impossible permissions": Bad(file(mode=0o10000), INVALID, "env_reset.files[0].mode", "4096", "and 4095"),
    "file without content": Bad(
        file(content=common_pb2.Blob()), INVALID, "env_reset.files[0].content", "", "exactly one of"
    ),
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
    "negative disk": Bad(reset(disk_mib=-1), INVALID, "env_reset.disk_mib", "-1", "between 0"),
    "tool_call without service": Bad(
        spec(tool_call=action_pb2.ToolCallInput(method="get")), INVALID, "service", "", "1 to 256"
    ),
    "tool_call without method": Bad(
        spec(service="noop", tool_call=action_pb2.ToolCallInput()), INVALID, "tool_call.method", "", "1 to 256"
    ),
    "no scorer": Bad(spec(reward=action_pb2.RewardInput()), INVALID, "reward.scorer", "", "must be one of"),
    "score of nothing": Bad(
        spec(reward=action_pb2.RewardInput(model=action_pb2.ModelScoreInput())),
        INVALID,
        "reward.model.token_ids",
        "[]",
        "at least one token",
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
