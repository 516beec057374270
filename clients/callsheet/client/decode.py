"""From the messages of the contract to the client's outcomes. Pure: fetches are collected, not made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from callsheet.client.errors import RefusalCode, RefusedError, refused
from callsheet.client.outcomes import (
    Cancelled,
    Expired,
    Failed,
    FailureKind,
    Outcome,
    Succeeded,
    Timeline,
    TimeoutKind,
    Usage,
)
from callsheet.client.reasons import Reason
from callsheet.client.results import (
    CommandResult,
    DownloadedFile,
    EnvResetResult,
    FinishReason,
    GenerateResult,
    OutputStream,
    PolicyVersionSpan,
    Result,
    RewardResult,
    SessionReport,
    ToolCallResult,
)
from callsheet.client.sampling import LogProbsMode
from callsheet.v1 import action_pb2, common_pb2, outcome_pb2
from google.protobuf import timestamp_pb2

EnumT = TypeVar("EnumT", bound=Enum)


def by_number(members: type[EnumT], prefix: str, contract: Any) -> dict[int, EnumT]:
    """Returns a table from a contract enum's numbers to the members of the same name.

    Args:
        members: The client's enum.
        prefix: What the contract puts before each name, for instance "FAILURE_KIND_".
        contract: The contract's enum.
    """
    return {contract.Value(prefix + member.name): member for member in members}


# The canonical codes, from 1.
_BY_NUMBER = (
    RefusalCode.CANCELLED,
    RefusalCode.UNKNOWN,
    RefusalCode.INVALID_ARGUMENT,
    RefusalCode.DEADLINE_EXCEEDED,
    RefusalCode.NOT_FOUND,
    RefusalCode.ALREADY_EXISTS,
    RefusalCode.PERMISSION_DENIED,
    RefusalCode.RESOURCE_EXHAUSTED,
    RefusalCode.FAILED_PRECONDITION,
    RefusalCode.ABORTED,
    RefusalCode.OUT_OF_RANGE,
    RefusalCode.UNIMPLEMENTED,
    RefusalCode.INTERNAL,
    RefusalCode.UNAVAILABLE,
    RefusalCode.DATA_LOSS,
    RefusalCode.UNAUTHENTICATED,
)
_FAILURE_KIND = by_number(FailureKind, "FAILURE_KIND_", outcome_pb2.FailureKind)
_TIMEOUT_KIND = by_number(TimeoutKind, "TIMEOUT_KIND_", outcome_pb2.TimeoutKind)
_OUTPUT_STREAM = by_number(OutputStream, "OUTPUT_STREAM_", common_pb2.OutputStream)
_FINISH_REASON = by_number(FinishReason, "FINISH_REASON_", outcome_pb2.FinishReason)
_LOG_PROBS_MODE = by_number(LogProbsMode, "LOG_PROBS_MODE_", action_pb2.LogProbsMode)
_CODES = dict(enumerate(_BY_NUMBER, start=1))


class BlobReader:
    """Reads blobs and collects the references whose bytes have to be fetched first.

    Attributes:
        missing: References that were met and are not in `fetched`, by SHA-256.
    """

    __slots__ = ("_fetched", "missing")

    def __init__(self, fetched: Mapping[str, bytes]) -> None:
        self._fetched = fetched
        self.missing: dict[str, common_pb2.PayloadReference] = {}

    def read(self, blob: common_pb2.Blob) -> bytes:
        """Returns the bytes; none for a reference that is missing."""
        if not blob.HasField("reference"):
            return blob.inline
        content = self._fetched.get(blob.reference.sha256)
        if content is None:
            self.missing[blob.reference.sha256] = blob.reference
            return b""
        return content


def decode_outcome(message: outcome_pb2.Outcome, blobs: BlobReader) -> Outcome[Any]:
    """Returns an outcome. If `blobs.missing` is not empty afterwards, fetch those and decode again."""
    ended: dict[str, Any] = {
        "job_id": message.key.job_id,
        "action_id": message.key.action_id,
        "timeline": _timeline(message.timeline),
        "usage": _usage(message.usage),
        "attempts": message.attempts,
        "manager_id": message.manager_id,
    }
    which = message.WhichOneof("result")
    if which == "succeeded":
        value = _result(message.succeeded, blobs)
        if value is not None:
            return Succeeded(value, **ended)
    elif which == "failed":
        return _failed(message.failed, blobs, ended)
    elif which == "cancelled":
        return Cancelled(message.cancelled.reason, _result(message.cancelled.partial, blobs), **ended)
    elif which == "expired":
        return Expired(_TIMEOUT_KIND.get(message.expired.timeout, TimeoutKind.UNSPECIFIED), **ended)
    newer = "the scheduler is newer than this client: upgrade it"
    return Failed(FailureKind.UNSPECIFIED, Reason.OTHER, newer, **ended)


def output_stream(number: int) -> OutputStream:
    """Returns the output that a number of the contract names."""
    return _OUTPUT_STREAM.get(number, OutputStream.UNSPECIFIED)


def refusal(code: int, message: str, detail: common_pb2.ErrorDetail | None) -> RefusedError:
    """Returns the exception for a refusal.

    Args:
        code: The canonical code's number.
        message: The status's message, for a refusal without a detail.
        detail: The contract's detail, if the refusal carries one.
    """
    known = _CODES.get(code, RefusalCode.UNKNOWN)
    if detail is None:
        return refused(known, rule=message)
    retry_after_s: float | None = None
    if detail.HasField("retry_delay"):
        retry_after_s = detail.retry_delay.seconds + detail.retry_delay.nanos / 1e9
    return refused(
        known, field=detail.field, value=detail.value, rule=detail.rule or message, retry_after_s=retry_after_s
    )


def refusal_of_status(status: Any) -> RefusedError | None:
    """Returns the exception for a google.rpc.Status; None if it is OK."""
    if status.code == 0:
        return None
    detail = common_pb2.ErrorDetail()
    unpacked = any(packed.Unpack(detail) for packed in status.details)
    return refusal(status.code, status.message, detail if unpacked else None)


def unix_seconds(timestamp: timestamp_pb2.Timestamp) -> float:
    """Returns seconds since 1970."""
    return timestamp.seconds + timestamp.nanos / 1e9


def _timeline(message: outcome_pb2.Timeline) -> Timeline:
    has = message.HasField
    return Timeline(
        submitted_at=unix_seconds(message.submitted) if has("submitted") else None,
        first_dispatched_at=unix_seconds(message.first_dispatched) if has("first_dispatched") else None,
        dispatched_at=unix_seconds(message.dispatched) if has("dispatched") else None,
        started_at=unix_seconds(message.started) if has("started") else None,
        ended_at=unix_seconds(message.ended) if has("ended") else None,
        queue_s=message.queue_s,
        execution_s=message.execution_s,
        overhead_s=message.overhead_s,
        paused_s=message.paused_s,
        start_wait_s=message.start_wait_s,
    )


def _usage(message: outcome_pb2.Usage) -> Usage:
    granted = message.granted_unit_s
    # To walk over an empty map costs more than all else here.
    granted_unit_s = dict(granted) if granted else {}
    return Usage(
        cpu_s=message.cpu_s, peak_memory_bytes=message.peak_memory_bytes or None, granted_unit_s=granted_unit_s
    )


def _failed(message: outcome_pb2.Failed, blobs: BlobReader, ended: dict[str, Any]) -> Failed[Any]:
    reason, text = _reason(message.reason, message.message)
    return Failed(
        _FAILURE_KIND.get(message.kind, FailureKind.UNSPECIFIED),
        reason,
        text,
        _result(message.partial, blobs),
        _TIMEOUT_KIND.get(message.timeout, TimeoutKind.UNSPECIFIED),
        message.retry_after_s or None,
        **ended,
    )


def _reason(word: str, message: str) -> tuple[Reason, str]:
    """A known word as such; any other one as OTHER, kept at the beginning of the message."""
    try:
        return Reason(word), message
    except ValueError:
        return Reason.OTHER, ": ".join(filter(None, (word, message)))


def _result(message: outcome_pb2.Succeeded, blobs: BlobReader) -> Result | None:
    decode = _RESULTS.get(message.WhichOneof("result") or "")
    return None if decode is None else decode(message, blobs)


def _env_reset(message: outcome_pb2.EnvResetResult, blobs: BlobReader) -> EnvResetResult:
    set_up = _command(message.set_up, blobs) if message.HasField("set_up") else None
    return EnvResetResult(message.sandbox_id, set_up, message.set_up_reused)


def _generate(message: outcome_pb2.GenerateResult) -> GenerateResult:
    return GenerateResult(
        tuple(message.token_ids),
        tuple(message.log_probs),
        _FINISH_REASON.get(message.finish_reason, FinishReason.UNSPECIFIED),
        tuple(PolicyVersionSpan(span.version, span.begin, span.end) for span in message.policy_versions),
        message.cached_tokens,
        _LOG_PROBS_MODE.get(message.log_probs_mode, LogProbsMode.SAMPLED),
        message.seed if message.HasField("seed") else None,
    )


def _command(message: outcome_pb2.CommandResult, blobs: BlobReader) -> CommandResult:
    return CommandResult(
        message.exit_code,
        blobs.read(message.stdout),
        blobs.read(message.stderr),
        message.signal or None,
        message.stdout_dropped_bytes,
        message.stderr_dropped_bytes,
        message.wall_s,
        SessionReport(message.session.started, message.session.ended) if message.HasField("session") else None,
        tuple(_download(file, blobs) for file in message.downloads),
    )


def _download(message: outcome_pb2.DownloadedFile, blobs: BlobReader) -> DownloadedFile:
    if message.WhichOneof("result") == "content":
        return DownloadedFile(message.path, blobs.read(message.content))
    return DownloadedFile(message.path, None, message.refusal)


def _reward(message: outcome_pb2.RewardResult, blobs: BlobReader) -> RewardResult:
    command = _command(message.command, blobs) if message.HasField("command") else None
    return RewardResult(message.score, message.passed, message.total, command, dict(message.components))


_RESULTS: dict[str, Callable[[outcome_pb2.Succeeded, BlobReader], Result]] = {
    "generate": lambda message, _: _generate(message.generate),
    "env_reset": lambda message, blobs: _env_reset(message.env_reset, blobs),
    "env_step": lambda message, blobs: _command(message.env_step, blobs),
    "tool_call": lambda message, blobs: ToolCallResult(blobs.read(message.tool_call.response)),
    "reward": lambda message, blobs: _reward(message.reward, blobs),
}
