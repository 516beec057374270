"""From the client's values to the messages of the contract. Pure: uploads are collected, not made."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any

from callsheet.client.actions import (
    Action,
    Command,
    EnvReset,
    EnvStep,
    Generate,
    Language,
    Options,
    Retry,
    RewardModel,
    RewardTests,
    SandboxFile,
    Submission,
    Timeouts,
    ToolCall,
    Unservable,
)
from callsheet.client.demand import Demand, Hold, Resource
from callsheet.client.errors import RefusedError, invalid
from callsheet.client.fields import put, put_list, put_map
from callsheet.client.jobs import JobDescription, PriorityClass, TrajectoryDescription, TrajectoryEnd
from callsheet.v1 import action_pb2, common_pb2, job_pb2
from google.protobuf import duration_pb2

MAX_INLINE_BYTES = 64 * 1024
"""The contract's limit for one inline blob."""
MAX_INLINE_TOTAL_BYTES = 512 * 1024
"""Inline bytes of one action after which its further blobs go by reference too, to keep the streams thin."""

# A Duration's most: ten thousand years.
_MAX_SECONDS = 315_576_000_000

_HOLD: dict[Hold, action_pb2.Hold.ValueType] = {
    Hold.ACTION: action_pb2.HOLD_ACTION,
    Hold.TRAJECTORY: action_pb2.HOLD_TRAJECTORY,
}
_UNSERVABLE: dict[Unservable, action_pb2.Unservable.ValueType] = {
    Unservable.REFUSE: action_pb2.UNSERVABLE_REFUSE,
    Unservable.WAIT: action_pb2.UNSERVABLE_WAIT,
}
_PRIORITY_CLASS: dict[PriorityClass, job_pb2.PriorityClass.ValueType] = {
    PriorityClass.EVAL: job_pb2.PRIORITY_CLASS_EVAL,
    PriorityClass.TRAIN: job_pb2.PRIORITY_CLASS_TRAIN,
    PriorityClass.BATCH: job_pb2.PRIORITY_CLASS_BATCH,
}
_TRAJECTORY_END: dict[TrajectoryEnd, job_pb2.TrajectoryEnd.ValueType] = {
    TrajectoryEnd.COMPLETED: job_pb2.TRAJECTORY_END_COMPLETED,
    TrajectoryEnd.ABANDONED: job_pb2.TRAJECTORY_END_ABANDONED,
}


class BlobWriter:
    """Makes blobs and collects the contents that have to be stored before they can be referred to.

    Attributes:
        uploads: Contents by their SHA-256.
    """

    __slots__ = ("_inline_bytes", "uploads")

    def __init__(self) -> None:
        self.uploads: dict[str, bytes] = {}
        self._inline_bytes = 0

    def blob(self, field: str, content: bytes) -> common_pb2.Blob:
        """Returns a blob: inline while small, otherwise by reference."""
        if not isinstance(content, bytes):
            raise invalid(field, type(content).__name__, "content is bytes")
        size = len(content)
        if size <= MAX_INLINE_BYTES and self._inline_bytes + size <= MAX_INLINE_TOTAL_BYTES:
            self._inline_bytes += size
            return common_pb2.Blob(inline=content)
        sha256 = hashlib.sha256(content).hexdigest()
        self.uploads[sha256] = content
        return common_pb2.Blob(reference=common_pb2.PayloadReference(sha256=sha256, size=size))


def encode_submission(submission: Submission[Any]) -> tuple[action_pb2.ActionSpec, dict[str, bytes]]:
    """Returns the message of a submission, and the contents it refers to by their SHA-256.

    Raises:
        InvalidArgumentError: A value that the contract cannot carry or that breaks one of its static rules.
    """
    blobs = BlobWriter()
    try:
        spec = action_pb2.ActionSpec()
        put(
            spec,
            "",
            job_id=submission.job_id,
            action_id=submission.action_id,
            trajectory_id=submission.trajectory_id,
        )
        _put_options(spec, submission.options)
        _ENCODERS[type(submission.action)](spec, submission.action, blobs)
    except RefusedError:
        raise
    except (AttributeError, TypeError, ValueError) as error:
        # Something of a wrong type where a value with parts belongs.
        raise invalid(type(submission.action).__name__, submission.action_id, str(error)) from error
    return spec, blobs.uploads


def content_bytes(action: Action[Any]) -> int:
    """Returns the bytes of file contents and arguments that an action carries."""
    if isinstance(action, ToolCall):
        return len(action.arguments)
    if isinstance(action, EnvReset | EnvStep | RewardTests):
        return sum(len(file.content) for file in action.files)
    return 0


def encode_job(job: JobDescription) -> job_pb2.JobSpec:
    """Returns the message of a job."""
    spec = job_pb2.JobSpec(priority_class=_PRIORITY_CLASS[job.priority_class])
    put(
        spec,
        "",
        job_id=job.job_id,
        share=_positive("weight", job.weight),
        max_actions=_at_least_one("max_actions", job.max_actions),
    )
    max_versions = _at_least_one("max_staleness", job.max_staleness)
    if max_versions:
        put(spec.staleness, "staleness", max_versions=max_versions)
    return spec


def encode_trajectory(trajectory: TrajectoryDescription) -> job_pb2.TrajectorySpec:
    """Returns the message of a trajectory."""
    spec = job_pb2.TrajectorySpec()
    put(spec, "", job_id=trajectory.job_id, trajectory_id=trajectory.trajectory_id)
    group = trajectory.group
    if group is not None:
        quorum = _at_least_one("group.quorum", group.quorum)
        put(spec.group, "group", group_id=group.group_id, size=group.size, quorum=quorum)
    if trajectory.idle_timeout_s is not None:
        spec.idle_timeout.CopyFrom(duration("idle_timeout", trajectory.idle_timeout_s))
    return spec


def encode_trajectory_end(end: TrajectoryEnd) -> job_pb2.TrajectoryEnd.ValueType:
    """Returns the contract's value."""
    return _TRAJECTORY_END[end]


def duration(field: str, seconds: float) -> duration_pb2.Duration:
    """Returns a duration.

    Raises:
        InvalidArgumentError: `seconds` is negative, or more than a duration can be.
    """
    if not (_is_number(seconds) and 0 <= seconds <= _MAX_SECONDS):
        raise invalid(field, seconds, f"seconds are from 0 to {_MAX_SECONDS}")
    whole = int(seconds)
    return duration_pb2.Duration(seconds=whole, nanos=min(round((seconds - whole) * 1e9), 999_999_999))


def _is_number(value: object) -> bool:
    return isinstance(value, Real)


def _positive(field: str, value: float) -> float:
    if not (_is_number(value) and 0 < value < math.inf):
        raise invalid(field, value, "above 0 and finite")
    return value


def _at_least_one(field: str, value: int | None) -> int:
    if value is None:
        return 0
    if not (_is_number(value) and value >= 1):
        raise invalid(field, value, "at least 1, or None for the default")
    return value


def _put_options(spec: action_pb2.ActionSpec, options: Options) -> None:
    if options.label:
        put(spec, "", label=options.label)
    if options.task:
        put(spec, "", task=options.task)
    if options.demand is not None:
        _put_demand(spec.demand, options.demand)
    if options.timeouts is not None:
        _put_timeouts(spec.timeouts, options.timeouts)
    if options.retry is not None:
        _put_retry(spec.retry, options.retry)
    if options.weight != 1.0:
        spec.weight = _positive("weight", options.weight)
    if options.unservable is not Unservable.REFUSE:
        spec.unservable = _UNSERVABLE[options.unservable]
    if options.expected_duration_s is not None:
        spec.expected_duration.CopyFrom(duration("expected_duration", options.expected_duration_s))


def _put_demand(message: action_pb2.Demand, demand: Demand) -> None:
    message.SetInParent()  # an empty demand differs from none
    for resource in demand.resources:
        entry = message.resources.add(hold=_HOLD[resource.hold])
        where = f"demand.{resource.name}"
        put(entry, where, resource=resource.name)
        entry.min_milli_units, entry.max_milli_units = resource.min_milli_units, resource.max_milli_units
        _put_speed_up(entry, where, resource)


def _put_speed_up(entry: action_pb2.ResourceDemand, where: str, resource: Resource) -> None:
    if resource.amdahl_fraction is not None:
        put(entry.speed_up, where, amdahl_fraction=resource.amdahl_fraction)
    for index, (units, gain) in enumerate(resource.speed_up):
        put(entry.speed_up.table.points.add(), f"{where}.speed_up[{index}]", units=units, speed_up=gain)


def _put_timeouts(message: action_pb2.Timeouts, timeouts: Timeouts) -> None:
    if timeouts.schedule_to_start_s is not None:
        message.schedule_to_start.CopyFrom(duration("timeouts.schedule_to_start", timeouts.schedule_to_start_s))
    if timeouts.start_to_close_s is not None:
        message.start_to_close.CopyFrom(duration("timeouts.start_to_close", timeouts.start_to_close_s))
    if timeouts.schedule_to_close_s is not None:
        message.schedule_to_close.CopyFrom(duration("timeouts.schedule_to_close", timeouts.schedule_to_close_s))
    if timeouts.heartbeat_s is not None:
        message.heartbeat.CopyFrom(duration("timeouts.heartbeat", timeouts.heartbeat_s))


def _put_retry(message: action_pb2.RetryPolicy, retry: Retry) -> None:
    put(message, "retry", max_attempts=_at_least_one("retry.max_attempts", retry.max_attempts))
    if retry.initial_backoff_s is not None:
        message.initial_backoff.CopyFrom(duration("retry.initial_backoff", retry.initial_backoff_s))
    if retry.backoff_multiplier is not None:
        if not (_is_number(retry.backoff_multiplier) and retry.backoff_multiplier >= 1):
            raise invalid("retry.backoff_multiplier", retry.backoff_multiplier, "at least 1, or None for the default")
        message.backoff_multiplier = retry.backoff_multiplier
    if retry.max_backoff_s is not None:
        message.max_backoff.CopyFrom(duration("retry.max_backoff", retry.max_backoff_s))


def _generate(spec: action_pb2.ActionSpec, action: Generate, blobs: BlobWriter) -> None:
    if not (_is_number(action.top_p) and 0 < action.top_p <= 1):
        raise invalid("generate.sampling.top_p", action.top_p, "above 0 and at most 1")
    put(spec, "", service=action.model)
    put_list(spec.generate, "generate", "prompt_token_ids", action.prompt_token_ids)
    put(
        spec.generate.sampling,
        "generate.sampling",
        max_new_tokens=action.max_new_tokens,
        temperature=action.temperature,
        top_p=action.top_p,
        top_k=action.top_k,
        seed=action.seed,
    )
    put_list(spec.generate.sampling, "generate.sampling", "stop_token_ids", action.stop_token_ids)


def _env_reset(spec: action_pb2.ActionSpec, action: EnvReset, blobs: BlobWriter) -> None:
    message = spec.env_reset
    message.SetInParent()
    put(spec, "", service=action.service)
    _put_files(message.files, "env_reset", action.files, blobs)
    if action.set_up is not None:
        _put_command(message.set_up, "env_reset.set_up", action.set_up, blobs)
    put(
        message,
        "env_reset",
        disk_mib=_at_least_one("env_reset.disk_mib", action.disk_mib),
        max_processes=_at_least_one("env_reset.max_processes", action.max_processes),
        image=action.image,
        repeat_set_up=action.repeat_set_up,
    )
    put_list(message, "env_reset", "network", action.network)


def _env_step(spec: action_pb2.ActionSpec, action: EnvStep, blobs: BlobWriter) -> None:
    _put_files(spec.env_step.files, "env_step", action.files, blobs)
    _put_command(spec.env_step.command, "env_step.command", action.command, blobs)
    put(spec.env_step, "env_step", session=action.session, stream_output=action.stream_output)
    put_list(spec.env_step, "env_step", "download", action.download)


def _tool_call(spec: action_pb2.ActionSpec, action: ToolCall, blobs: BlobWriter) -> None:
    put(spec, "", service=action.service)
    put(spec.tool_call, "tool_call", method=action.method)
    spec.tool_call.arguments.CopyFrom(blobs.blob("tool_call.arguments", action.arguments))


def _reward_tests(spec: action_pb2.ActionSpec, action: RewardTests, blobs: BlobWriter) -> None:
    message = spec.reward.test_suite
    put(spec, "", service=action.service)
    put(message, "reward.test_suite", in_sandbox=action.in_sandbox)
    _put_files(message.files, "reward.test_suite", action.files, blobs)
    _put_command(message.command, "reward.test_suite.command", action.command, blobs)


def _reward_model(spec: action_pb2.ActionSpec, action: RewardModel, blobs: BlobWriter) -> None:
    put(spec, "", service=action.model)
    put_list(spec.reward.model, "reward.model", "token_ids", action.token_ids)
    spec.reward.model.SetInParent()


def _put_files(files: Any, where: str, given: Iterable[SandboxFile], blobs: BlobWriter) -> None:
    for index, file in enumerate(given):
        at = f"{where}.files[{index}]"
        message = files.add(content=blobs.blob(f"{at}.content", file.content))
        put(message, at, path=file.path, unpack=file.unpack, mode=file.mode or 0)


def _put_command(message: action_pb2.Command, where: str, command: Command, blobs: BlobWriter) -> None:
    if isinstance(command.program, str):
        if command.language is Language.PYTHON:
            put(message, where, python=command.program)
        else:
            put(message, where, shell=command.program)
    else:
        message.argv.SetInParent()
        put_list(message.argv, f"{where}.argv", "arguments", command.program)
    if command.environment:
        put_map(message, where, "environment", command.environment)
    put(
        message,
        where,
        working_directory=command.working_directory,
        max_output_bytes=_at_least_one(f"{where}.max_output_bytes", command.max_output_bytes),
    )
    if command.stdin:
        message.stdin.CopyFrom(blobs.blob(f"{where}.stdin", command.stdin))


_ENCODERS: dict[type[Action[Any]], Callable[[action_pb2.ActionSpec, Any, BlobWriter], None]] = {
    Generate: _generate,
    EnvReset: _env_reset,
    EnvStep: _env_step,
    ToolCall: _tool_call,
    RewardTests: _reward_tests,
    RewardModel: _reward_model,
}
