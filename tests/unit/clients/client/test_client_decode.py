"""From messages to values."""

from __future__ import annotations

import grpc
import pytest
from callsheet.client import (
    Cancelled,
    CommandResult,
    DownloadedFile,
    EnvResetResult,
    Expired,
    Failed,
    FailureKind,
    FinishReason,
    GenerateResult,
    PolicyVersionSpan,
    QueueFullError,
    Reason,
    RewardResult,
    SessionReport,
    Succeeded,
    TimeoutKind,
    ToolCallResult,
)
from callsheet.client.admin_values import ActionState, Holder, Shortage, StoryEvent, WaitReason
from callsheet.client.codec.admin_decode import decode_explanation, decode_status
from callsheet.client.codec.decode import decode_outcome, refusal_of_status
from callsheet.client.codec.fields import BlobReader
from callsheet.client.words.actions import ActionKind
from callsheet.v1 import admin_service_pb2, common_pb2, job_pb2, outcome_pb2

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


def test_results_of_all_kinds() -> None:
    command = CommandResult(3, b"o", b"e", wall_s=0.5)
    assert _succeeded(env_step=_command()) == command
    assert _succeeded(env_reset=outcome_pb2.EnvResetResult(sandbox_id="s")) == EnvResetResult("s")
    assert _succeeded(env_reset=outcome_pb2.EnvResetResult(sandbox_id="s", set_up=_command())) == EnvResetResult(
        "s", command
    )
    assert _succeeded(tool_call=outcome_pb2.ToolCallResult(response=_blob(b"r"))) == ToolCallResult(b"r")
    assert _succeeded(reward=outcome_pb2.RewardResult(score=0.5, passed=1, total=2, command=_command())) == (
        RewardResult(0.5, 1, 2, command)
    )
    assert _succeeded(
        generate=outcome_pb2.GenerateResult(
            token_ids=[1, 2],
            log_probs=[-0.5, -0.25],
            finish_reason=outcome_pb2.FINISH_REASON_LENGTH,
            policy_versions=[outcome_pb2.PolicyVersionSpan(version=3, begin=0, end=2)],
            cached_tokens=4,
        )
    ) == GenerateResult((1, 2), (-0.5, -0.25), FinishReason.LENGTH, (PolicyVersionSpan(3, 0, 2),), 4)


@pytest.mark.parametrize("told", [0, -9])
def test_a_signal_is_the_exit_code_whatever_an_older_scheduler_tells(told: int) -> None:
    assert _succeeded(env_step=_command(told, signal=9)) == CommandResult(-9, b"o", b"e", 9, wall_s=0.5)


def test_what_a_step_was_in_its_session_and_what_it_returned() -> None:
    step = _command(session=outcome_pb2.SessionReport(started=True))
    step.downloads.add(path="a", content=_blob(b"bytes"))
    step.downloads.add(path="b", refusal="missing")
    result = _succeeded(env_step=step)
    assert isinstance(result, CommandResult)
    assert result.session == SessionReport(started=True, ended=False)
    assert result.downloads == (DownloadedFile("a", b"bytes"), DownloadedFile("b", None, "missing"))


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
    message.timeline.submitted.seconds = 10
    message.timeline.submitted.nanos = 500_000_000
    message.timeline.queue_s = 1.25
    message.usage.cpu_s = 2.0
    message.usage.cost.held["cpu"] = 4.0
    outcome = decode_outcome(message, BlobReader({}))
    assert (outcome.job_id, outcome.action_id, outcome.attempts, outcome.manager_id) == ("j", "a", 2, "m")
    assert (outcome.timeline.submitted_at, outcome.timeline.started_at, outcome.timeline.queue_s) == (10.5, None, 1.25)
    assert (outcome.usage.cpu_s, outcome.usage.peak_memory_bytes) == (2.0, None)
    assert outcome.usage.cost.held == {"cpu": 4.0}


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


def test_the_status_of_a_scheduler() -> None:
    message = admin_service_pb2.GetStatusResponse(epoch=3)
    message.started.seconds = 7
    message.jobs.add(
        spec=job_pb2.JobSpec(job_id="j"),
        open_trajectories=2,
        actions={"queued": 1},
        failures={"infra": 4},
        policy_version=5,
    )
    manager = message.managers.add(manager_id="m", node_id="n", connected=True, attempts=1, capabilities={"a": "b"})
    manager.services.add(name="sandbox", kinds=[2, 3, _NEWER_THAN_THIS_CLIENT], reserved={"cpu": 1})
    message.nodes.add(node_id="n", capacity={"cpu": 4}, free={"cpu": 3})
    status = decode_status(message)
    assert (status.epoch, status.started_at) == (3, 7.0)
    assert (status.jobs[0].actions, status.jobs[0].failures, status.jobs[0].policy_version) == (
        {"queued": 1},
        {"infra": 4},
        5,
    )
    (service,) = status.managers[0].services
    assert (service.name, service.kinds, service.slots) == (
        "sandbox",
        (ActionKind.ENV_RESET, ActionKind.ENV_STEP),
        None,
    )
    assert (status.nodes[0].capacity, status.nodes[0].free) == ({"cpu": 4}, {"cpu": 3})


def test_the_explanation_of_an_action() -> None:
    message = admin_service_pb2.ExplainResponse(
        key=common_pb2.ActionKey(job_id="j", action_id="a"),
        kind=3,  # type: ignore[arg-type]
        state=admin_service_pb2.ACTION_STATE_QUEUED,
        wait_reason=admin_service_pb2.WAIT_REASON_RESOURCES,
        explanation="needs 4 cpu",
    )
    message.shortages.add(resource="cpu", needed=4, free=1, capacity=8, node_id="n")
    event = message.story.add(event="submitted")
    event.time.seconds = 5
    message.holders.add(job_id="k", action_id="b", node_id="n", units={"cpu": 7.0}, held_s=3.0, sessions=2)
    message.holders.add(job_id="k", trajectory_id="t", expires_in_s=0.0)
    message.job_closed = True
    explanation = decode_explanation(message)
    assert explanation.holders == (
        Holder("k", "b", "", "n", {"cpu": 7.0}, 3.0, 2),
        Holder("k", "", "t", "", {}, 0.0, 0, 0.0),
    )
    assert explanation.job_closed
    assert (explanation.kind, explanation.state) == (ActionKind.ENV_STEP, ActionState.QUEUED)
    assert (explanation.wait_reason, explanation.explanation) == (WaitReason.RESOURCES, "needs 4 cpu")
    assert explanation.shortages == (Shortage("cpu", 4, 1, 8, "n"),)
    assert explanation.story == (StoryEvent(5.0, "submitted"),)


def test_a_blob_without_content_is_empty() -> None:
    assert BlobReader({}).read(common_pb2.Blob()) == b""
