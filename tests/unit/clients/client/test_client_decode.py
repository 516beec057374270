"""From messages to values."""

from __future__ import annotations

import grpc
import pytest
from callsheet.client import (
    Cancelled,
    CommandResult,
    EnvResetResult,
    Expired,
    Failed,
    FailureKind,
    FinishReason,
    GenerateResult,
    QueueFullError,
    Reason,
    RewardResult,
    Succeeded,
    Timeline,
    TimeoutKind,
    ToolCallResult,
    Usage,
)
from callsheet.client.codec.decode import decode_outcome, refusal_of_status
from callsheet.client.codec.fields import BlobReader
from callsheet.v1 import common_pb2, outcome_pb2

from tests.support.faulty_jobs import refusal

_NEWER_THAN_THIS_CLIENT = 99


def _blob(content: bytes) -> common_pb2.Blob:
    return common_pb2.Blob(inline=content)


def _command(exit_code: int = 3, **fields: object) -> outcome_pb2.CommandResult:
    return outcome_pb2.CommandResult(exit_code=exit_code, stdout=_blob(b"o"), stderr=_blob(b"e"), wall_s=0.5, **fields)  # type: ignore[arg-type]


def _succeeded(**result: object) -> object:
    message = outcome_pb2.Outcome(succeeded=outcome_pb2.Succeeded(**result))  # type: ignore[arg-type]
    outcome = decode_outcome(message, BlobReader({}))
    assert isinstance(outcome, Succeeded)
    return outcome.value


@pytest.mark.parametrize(
    ("result", "value"),
    [
        ({"env_step": _command()}, CommandResult(3, b"o", b"e", wall_s=0.5)),
        ({"env_reset": outcome_pb2.EnvResetResult(sandbox_id="s")}, EnvResetResult("s")),
        ({"tool_call": outcome_pb2.ToolCallResult(response=_blob(b"r"))}, ToolCallResult(b"r")),
        ({"reward": outcome_pb2.RewardResult(score=0.5, passed=1, total=2)}, RewardResult(0.5, 1, 2)),
        ({"generate": outcome_pb2.GenerateResult(token_ids=[1])}, GenerateResult((1,), (), FinishReason.UNSPECIFIED)),
    ],
)
def test_a_result_of_each_kind(result: dict[str, object], value: object) -> None:
    assert _succeeded(**result) == value


@pytest.mark.parametrize("told", [0, -9])
def test_a_signal_is_the_exit_code_whatever_an_older_scheduler_tells(told: int) -> None:
    assert _succeeded(env_step=_command(told, signal=9)) == CommandResult(-9, b"o", b"e", 9, wall_s=0.5)


def test_a_failure_with_what_came_before() -> None:
    message = outcome_pb2.Outcome(
        failed=outcome_pb2.Failed(
            kind=outcome_pb2.FAILURE_KIND_QUOTA,
            reason="rate_limited",
            message="too many requests",
            partial=outcome_pb2.Succeeded(env_step=_command()),
            timeout=outcome_pb2.TIMEOUT_KIND_HEARTBEAT,
            retry_after_s=1.5,
        )
    )
    assert decode_outcome(message, BlobReader({})) == Failed(
        FailureKind.QUOTA,
        Reason.OTHER,  # newer than this client
        "rate_limited: too many requests",
        CommandResult(3, b"o", b"e", wall_s=0.5),
        TimeoutKind.HEARTBEAT,
        1.5,
    )


def test_cancelled_and_expired() -> None:
    cancelled = outcome_pb2.Outcome(cancelled=outcome_pb2.Cancelled(reason="stale"))
    expired = outcome_pb2.Outcome(expired=outcome_pb2.Expired(timeout=outcome_pb2.TIMEOUT_KIND_SCHEDULE_TO_CLOSE))
    assert decode_outcome(cancelled, BlobReader({})) == Cancelled("stale")
    assert decode_outcome(expired, BlobReader({})) == Expired(TimeoutKind.SCHEDULE_TO_CLOSE)


def test_what_every_outcome_tells() -> None:
    message = outcome_pb2.Outcome(expired=outcome_pb2.Expired(), attempts=2, manager_id="m")
    message.key.job_id, message.key.action_id = "j", "a"
    message.timeline.queue_s = 1.25
    message.usage.cpu_s = 2.0
    outcome = decode_outcome(message, BlobReader({}))
    assert (outcome.job_id, outcome.action_id, outcome.attempts, outcome.manager_id) == ("j", "a", 2, "m")
    assert (outcome.timeline, outcome.usage) == (Timeline(queue_s=1.25), Usage(cpu_s=2.0))


def test_values_newer_than_the_client_do_not_break_it() -> None:
    failed = outcome_pb2.Outcome()
    failed.failed.kind = _NEWER_THAN_THIS_CLIENT  # type: ignore[assignment]
    for message in (outcome_pb2.Outcome(), failed, outcome_pb2.Outcome(succeeded=outcome_pb2.Succeeded())):
        outcome = decode_outcome(message, BlobReader({}))
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.UNSPECIFIED


def test_references_are_collected_and_then_read() -> None:
    reference = common_pb2.PayloadReference(sha256="ab", size=5)
    message = outcome_pb2.Outcome()
    message.succeeded.env_step.stdout.reference.CopyFrom(reference)
    first = BlobReader({})
    decode_outcome(message, first)
    assert first.missing == {"ab": reference}
    second = BlobReader({"ab": b"bytes"})
    assert decode_outcome(message, second) == Succeeded(CommandResult(0, b"bytes"))
    assert second.missing == {}


def test_a_refusal_on_the_stream() -> None:
    status = refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, field="job", value="j", rule="queue is full", retry_delay_s=2)
    error = refusal_of_status(status)
    assert isinstance(error, QueueFullError)
    assert (error.code, error.field, error.value, error.rule) == ("RESOURCE_EXHAUSTED", "job", "j", "queue is full")
    assert error.retry_after_s == 2


def test_a_refusal_without_a_detail_keeps_its_message() -> None:
    status = refusal(grpc.StatusCode.INTERNAL, field="", value="", rule="")
    del status.details[:]
    status.message = "broken"
    error = refusal_of_status(status)
    assert error is not None
    assert (error.code, error.rule, error.retry_after_s) == ("INTERNAL", "broken", None)


def test_status_ok_is_no_refusal() -> None:
    status = refusal(grpc.StatusCode.OK, field="", value="", rule="")
    assert refusal_of_status(status) is None


def test_a_blob_without_content_is_empty() -> None:
    assert BlobReader({}).read(common_pb2.Blob()) == b""
