"""From the client's values to the messages of the contract. Pure: uploads are collected, not made."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from callsheet.client.actions import (
    Action,
    EnvReset,
    EnvStep,
    Generate,
    RewardModel,
    RewardScript,
    RewardTests,
    Submission,
    ToolCall,
    Where,
)
from callsheet.client.arguments import identifier, instance, items, optional
from callsheet.client.commands import Command, CommandDefaults, Language, SandboxFile
from callsheet.client.demand import Demand, Hold, Resource
from callsheet.client.errors import invalid
from callsheet.client.fields import at_least_one, duration, is_number, positive, put, put_list, put_map
from callsheet.client.options import ActionOptions, Retry, Timeouts, Unservable, check_options
from callsheet.client.sampling import LogProbsMode, Sampling
from callsheet.v1 import action_pb2, common_pb2

MAX_INLINE_BYTES = 64 * 1024
"""The contract's limit for one inline blob."""
MAX_INLINE_TOTAL_BYTES = 512 * 1024
"""Inline bytes of one action after which its further blobs go by reference too, to keep the streams thin."""

_SCORE_PLACEHOLDER = "{score}"


def _numbers(members: type[Enum], prefix: str, contract: Any) -> dict[Enum, Any]:
    """Returns the contract enum's number of each member of the same name."""
    return {member: contract.Value(prefix + member.name) for member in members}


_HOLD = _numbers(Hold, "HOLD_", action_pb2.Hold)
_UNSERVABLE = _numbers(Unservable, "UNSERVABLE_", action_pb2.Unservable)
_PLACE = _numbers(Where, "REWARD_PLACE_", action_pb2.RewardPlace)
_LOG_PROBS_MODE = _numbers(LogProbsMode, "LOG_PROBS_MODE_", action_pb2.LogProbsMode)


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
    check_options(submission.options, tuple(getattr(submission.action, "__dataclass_fields__", ())))
    spec = action_pb2.ActionSpec()
    action_id = identifier("action_id", submission.action_id)
    put(spec, "", job_id=submission.job_id, action_id=action_id, trajectory_id=submission.trajectory_id)
    encoder = _ENCODERS.get(type(submission.action))
    if encoder is None:
        raise invalid("action", f"{submission.action!r}", f"one of {', '.join(each.__name__ for each in _ENCODERS)}")
    _put_options(spec, submission.options)
    encoder(spec, submission.action, blobs)
    return spec, blobs.uploads


def content_bytes(action: Action[Any]) -> int:
    """Returns the bytes of file contents and arguments that an action carries."""
    files = getattr(action, "files", ())
    contents = (
        [file.content for file in files if isinstance(file, SandboxFile)] if isinstance(files, list | tuple) else []
    )
    return sum(map(_size, (*contents, getattr(action, "arguments", b""))))


def _size(content: object) -> int:
    return len(content) if isinstance(content, bytes) else 0


def _put_options(spec: action_pb2.ActionSpec, options: ActionOptions) -> None:
    put(spec, "", label=options.get("label", ""), task=options.get("task", ""))
    demand = optional("demand", options.get("demand"), Demand, "a Demand, for instance Demand(cpu=2)")
    if demand is not None:
        _put_demand(spec.demand, demand)
    timeouts = optional("timeouts", options.get("timeouts"), Timeouts, "a Timeouts, for instance Timeouts(...)")
    if timeouts is not None:
        _put_timeouts(spec.timeouts, timeouts)
    retry = optional("retry", options.get("retry"), Retry, "a Retry, for instance Retry(max_attempts=1)")
    if retry is not None:
        _put_retry(spec.retry, retry)
    weight = positive("weight", options.get("weight", 1.0))
    if weight != 1.0:
        spec.weight = weight
    unservable = instance("unservable", options.get("unservable", Unservable.REFUSE), Unservable, "an Unservable")
    if unservable is not Unservable.REFUSE:
        spec.unservable = _UNSERVABLE[unservable]
    expected_s = options.get("expected_duration_s")
    if expected_s is not None:
        spec.expected_duration.CopyFrom(duration("expected_duration", expected_s))


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
    for name in ("schedule_to_start", "start_to_close", "schedule_to_close", "heartbeat"):
        given_s = getattr(timeouts, f"{name}_s")
        if given_s is not None:
            getattr(message, name).CopyFrom(duration(f"timeouts.{name}", given_s))


def _put_retry(message: action_pb2.RetryPolicy, retry: Retry) -> None:
    put(message, "retry", max_attempts=at_least_one("retry.max_attempts", retry.max_attempts))
    if retry.initial_backoff_s is not None:
        message.initial_backoff.CopyFrom(duration("retry.initial_backoff", retry.initial_backoff_s))
    if retry.backoff_multiplier is not None:
        if not (is_number(retry.backoff_multiplier) and retry.backoff_multiplier >= 1):
            raise invalid("retry.backoff_multiplier", retry.backoff_multiplier, "at least 1, or None for the default")
        message.backoff_multiplier = retry.backoff_multiplier
    if retry.max_backoff_s is not None:
        message.max_backoff.CopyFrom(duration("retry.max_backoff", retry.max_backoff_s))


def _generate(spec: action_pb2.ActionSpec, action: Generate, blobs: BlobWriter) -> None:
    given = instance("sampling", action.sampling, Sampling, "a Sampling, for instance Sampling(temperature=0.7)")
    where = "generate.sampling"
    if not (is_number(given.top_p) and 0 < given.top_p <= 1):
        raise invalid(f"{where}.top_p", given.top_p, "above 0 and at most 1")
    if not is_number(given.max_new_tokens) or given.max_new_tokens < 1:
        raise invalid(f"{where}.max_new_tokens", given.max_new_tokens, "at least 1")
    mode = instance(f"{where}.log_probs_mode", given.log_probs_mode, LogProbsMode, "a LogProbsMode")
    put(spec, "", service=action.model)
    put_list(spec.generate, "generate", "prompt_token_ids", action.prompt_token_ids)
    sampling = spec.generate.sampling
    put(sampling, where, max_new_tokens=given.max_new_tokens, temperature=given.temperature, top_p=given.top_p)
    put(sampling, where, top_k=given.top_k)
    if given.seed is not None:
        put(sampling, where, seed=given.seed)
    put_list(sampling, where, "stop", items(f"{where}.stop", given.stop, str, "text"))
    put_list(sampling, where, "stop_token_ids", given.stop_token_ids)
    if mode is not LogProbsMode.SAMPLED:
        sampling.log_probs_mode = _LOG_PROBS_MODE[mode]


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
        disk_mib=at_least_one("env_reset.disk_mib", action.disk_mib),
        max_processes=at_least_one("env_reset.max_processes", action.max_processes),
        image=action.image,
        repeat_set_up=action.repeat_set_up,
    )
    put_list(message, "env_reset", "network", items("env_reset.network", action.network, str, "text"))
    defaults = optional("env_reset.defaults", action.defaults, CommandDefaults, "a CommandDefaults")
    if defaults is not None:
        _put_defaults(message.defaults, defaults)


def _put_defaults(message: action_pb2.CommandDefaults, defaults: CommandDefaults) -> None:
    where = "env_reset.defaults"
    put_map(message, where, "environment", defaults.environment)
    put(
        message,
        where,
        working_directory=defaults.working_directory,
        user=defaults.user,
        max_output_bytes=at_least_one(f"{where}.max_output_bytes", defaults.max_output_bytes),
    )
    if defaults.start_to_close_s is not None:
        message.start_to_close.CopyFrom(duration(f"{where}.start_to_close", defaults.start_to_close_s))


def _env_step(spec: action_pb2.ActionSpec, action: EnvStep, blobs: BlobWriter) -> None:
    _put_files(spec.env_step.files, "env_step", action.files, blobs)
    _put_command(spec.env_step.command, "env_step.command", action.command, blobs)
    put(spec.env_step, "env_step", session=action.session, stream_output=action.stream_output)
    put_list(spec.env_step, "env_step", "download", items("env_step.download", action.download, str, "text"))


def _tool_call(spec: action_pb2.ActionSpec, action: ToolCall, blobs: BlobWriter) -> None:
    put(spec, "", service=action.service)
    put(spec.tool_call, "tool_call", method=action.method, idempotent=action.idempotent)
    spec.tool_call.arguments.CopyFrom(blobs.blob("tool_call.arguments", action.arguments))


def _reward_tests(spec: action_pb2.ActionSpec, action: RewardTests, blobs: BlobWriter) -> None:
    message = spec.reward.test_suite
    where = "reward.test_suite"
    put(spec, "", service=action.service)
    _put_files(message.files, where, action.files, blobs)
    put(message, where, image=action.image)
    message.where = _place(spec, action)
    _put_command(message.command, f"{where}.command", action.command, blobs)


def _reward_script(spec: action_pb2.ActionSpec, action: RewardScript, blobs: BlobWriter) -> None:
    message = spec.reward.script
    where = "reward.script"
    put(spec, "", service=action.service)
    _put_files(message.files, where, action.files, blobs)
    put(message, where, image=action.image, score_file=action.score_file)
    message.where = _place(spec, action)
    _put_command(message.command, f"{where}.command", action.command, blobs)
    texts = [*message.command.argv.arguments, message.command.shell, message.command.python]
    if bool(action.score_file) == any(_SCORE_PLACEHOLDER in text for text in texts):
        rule = f"the script's score file, or else the command has {_SCORE_PLACEHOLDER!r}: one of the two"
        raise invalid(f"{where}.score_file", action.score_file, rule)


def _place(spec: action_pb2.ActionSpec, action: RewardTests | RewardScript) -> action_pb2.RewardPlace.ValueType:
    where = instance("where", action.where, Where, "a Where: Where.FRESH or Where.IN_SANDBOX")
    if where is Where.IN_SANDBOX and not spec.trajectory_id:
        raise invalid("where", where.name, "a job has no sandbox: ask the trajectory for this reward")
    if where is Where.FRESH and not action.files and not action.image:
        raise invalid("where", where.name, "a fresh sandbox is empty: give files= or image=, or where=Where.IN_SANDBOX")
    place: action_pb2.RewardPlace.ValueType = _PLACE[where]
    return place


def _reward_model(spec: action_pb2.ActionSpec, action: RewardModel, blobs: BlobWriter) -> None:
    put(spec, "", service=action.model)
    put_list(spec.reward.model, "reward.model", "token_ids", action.token_ids)
    spec.reward.model.SetInParent()


def _put_files(files: Any, where: str, given: Iterable[SandboxFile], blobs: BlobWriter) -> None:
    for index, file in enumerate(items(f"{where}.files", given, SandboxFile, "a SandboxFile")):
        at = f"{where}.files[{index}]"
        message = files.add(content=blobs.blob(f"{at}.content", file.content))
        put(message, at, path=file.path, unpack=file.unpack, mode=file.mode or 0)


def _put_command(message: action_pb2.Command, where: str, command: Command, blobs: BlobWriter) -> None:
    instance(f"{where}.language", command.language, Language, "a Language")
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
        max_output_bytes=at_least_one(f"{where}.max_output_bytes", command.max_output_bytes),
    )
    if command.stdin:
        message.stdin.CopyFrom(blobs.blob(f"{where}.stdin", command.stdin))


_ENCODERS: dict[type[Action[Any]], Callable[[action_pb2.ActionSpec, Any, BlobWriter], None]] = {
    Generate: _generate,
    EnvReset: _env_reset,
    EnvStep: _env_step,
    ToolCall: _tool_call,
    RewardTests: _reward_tests,
    RewardScript: _reward_script,
    RewardModel: _reward_model,
}
